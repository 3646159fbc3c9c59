//! What a request's images cost in prompt tokens.
//!
//! Decides: how many tokens an image takes in the prompt, by the rule of the model's family, from the
//! model's own configuration and the size in the image's header. Nothing is decoded and nothing is
//! fetched. Reads: `config.json`, `preprocessor_config.json` and `processor_config.json` of the model
//! ([`Vision::read`]), and the images that a conversation refers to ([`ImageRef`]).
//! Called by: the encoder.
//!
//! The chat template writes one token for an image (or, where it shows no images, vLLM writes
//! [`Vision::written`] before the message's text); vLLM then puts the image's own tokens in that
//! token's place. So a prompt has as many tokens as its text, less one and plus
//! [`ImageCost::tokens`] for each image: [`Vision::total`].
//!
//! | `model_type` | token written | what takes its place |
//! |---|---|---|
//! | `llava` with CLIP or SigLIP | `<image>` | one token a patch of the tower's fixed size: 576 for LLaVA-1.5 |
//! | `llava` with Pixtral | `[IMG]` | rows × (columns + 1) |
//! | `llava_next` | `<image>` | the base image, the tiles without their padding, a token a row |
//! | `qwen2_vl`, `qwen2_5_vl`, `qwen3_vl(_moe)`, `qwen3_5(_moe)` | `<\|image_pad\|>` between two more | one token a merged patch of the resized image |
//! | `mllama` | `<\|image\|>` | itself: the image goes to cross-attention, not into the prompt |
//! | `mistral3` | `[IMG]` | rows × (columns + 1), of merged patches |
//! | `gemma3` | `<start_of_image>` | `\n\n`, itself, 256 tokens, `<end_of_image>`, `\n\n` |
//!
//! The rules are vLLM 0.32.0's (`model_executor/models/`), which are those of transformers 5.19
//! (`models/*/processing_*.py`). vLLM dropped `mllama` after 0.10.2; its rule is transformers'.
//!
//! Known limits: a request's `mm_processor_kwargs` (which vLLM 0.32 refuses unless it is told to take
//! them: `entrypoints/generate/base/protocol.py`) and the engine's `--mm-processor-kwargs` change what a
//! processor does and are not seen here; a Mistral model that vLLM loads in Mistral's own format
//! rounds the resized sides where this rule cuts them, and may take one row or column more.

mod cost;
mod data_url;
mod family;
mod files;
mod header;
mod vision;

pub use cost::{ImageCost, ImageRef, Size};
pub(super) use data_url::Bytes;
pub use family::Family;
pub use files::VisionError;
pub use vision::{Vision, WithImages};

#[cfg(test)]
mod tests;
