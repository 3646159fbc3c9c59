//! The families' rules: from an image's size to its tokens.

mod llava;
mod next;
mod pixtral;
mod qwen;

use super::cost::Size;
use super::files::{Section, VisionError};

use llava::Tower;

/// How a kind of models puts images into its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// LLaVA-1.5 and its kind: the tower's patches.
    Llava,
    /// LLaVA-NeXT (1.6): tiles.
    LlavaNext,
    /// Pixtral, as transformers has it.
    Pixtral,
    /// Mistral Small 3.1 and later, as transformers has it.
    Mistral3,
    /// Qwen2-VL to Qwen3.5.
    QwenVl,
    /// Llama 3.2 Vision.
    Mllama,
    /// Gemma 3.
    Gemma3,
}

impl Family {
    /// The family's name, for logs and pages.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Llava => "llava",
            Self::LlavaNext => "llava_next",
            Self::Pixtral => "pixtral",
            Self::Mistral3 => "mistral3",
            Self::QwenVl => "qwen_vl",
            Self::Mllama => "mllama",
            Self::Gemma3 => "gemma3",
        }
    }

    /// The token that stands for an image before its own tokens take its place.
    #[must_use]
    pub const fn marker(self) -> &'static str {
        match self {
            Self::Llava | Self::LlavaNext => "<image>",
            Self::Pixtral | Self::Mistral3 => "[IMG]",
            Self::QwenVl => "<|image_pad|>",
            Self::Mllama => "<|image|>",
            Self::Gemma3 => "<start_of_image>",
        }
    }

    /// What vLLM 0.32 (`get_placeholder_str` of each model) writes for an image into the text of a
    /// message whose template takes contents as text; nothing where it writes nothing.
    #[must_use]
    pub const fn written(self) -> Option<&'static str> {
        match self {
            // Pixtral as transformers has it is loaded by the class of LLaVA.
            Self::Llava | Self::LlavaNext | Self::Pixtral => Some("<image>"),
            Self::Mistral3 => None,
            Self::QwenVl => Some("<|vision_start|><|image_pad|><|vision_end|>"),
            Self::Mllama => Some("<|image|>"),
            Self::Gemma3 => Some("<start_of_image>"),
        }
    }
}

/// A family's rule with a model's numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// Every image costs the same.
    Fixed(u64),
    /// Tiles.
    Next(next::Next),
    /// Rows with a token at the end of each.
    Rows(pixtral::Rows),
    /// A resized image's patches.
    Resized(qwen::Resized),
}

/// Tokens that Gemma 3 puts around an image's own (transformers 5.19 `processing_gemma3.py`
/// `full_image_sequence`): `\n\n`, `<start_of_image>`, `<end_of_image>`, `\n\n`.
const GEMMA_FRAME: u64 = 4;

impl Rule {
    /// Reads a family's numbers.
    pub fn read(
        family: Family,
        config: Section,
        image_processor: Section,
        processor: Section,
    ) -> Result<Self, VisionError> {
        Ok(match family {
            Family::Llava => Self::Fixed(Tower::read(config)?.selected),
            Family::LlavaNext => Self::Next(next::Next::read(config)?),
            Family::Pixtral => Self::Rows(pixtral::Rows::pixtral(config)?),
            Family::Mistral3 => Self::Rows(pixtral::Rows::mistral3(config, image_processor)?),
            Family::QwenVl => Self::Resized(qwen::Resized::read(image_processor)?),
            Family::Mllama => Self::Fixed(1),
            Family::Gemma3 => {
                Self::Fixed(processor.number_or("image_seq_length", 256)?.saturating_add(GEMMA_FRAME))
            }
        })
    }

    /// The tokens of an image of this size; nothing where the engine refuses it.
    pub fn tokens(&self, size: Size) -> Option<u64> {
        match self {
            Self::Fixed(tokens) => Some(*tokens),
            Self::Next(rule) => Some(rule.tokens(size)),
            Self::Rows(rule) => rule.tokens(size),
            Self::Resized(rule) => rule.tokens(size),
        }
    }

    /// The most that any image takes.
    pub fn most(&self) -> u64 {
        match self {
            Self::Fixed(tokens) => *tokens,
            Self::Next(rule) => rule.most(),
            Self::Rows(rule) => rule.most(),
            Self::Resized(rule) => rule.most(),
        }
    }
}
