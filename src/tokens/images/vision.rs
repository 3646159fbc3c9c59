//! A model's eyes: which family it is of, and what images cost it.

use std::path::Path;

use serde_json::{Map, Value};

use super::cost::{ImageCost, ImageRef, Size};
use super::data_url::Bytes;
use super::family::{Family, Rule};
use super::files::{self, Section, VisionError};
use super::header::{self, Turned};

/// Pixels over which the engine refuses an image: twice Pillow's `MAX_IMAGE_PIXELS` (13.0 `Image.py`), and
/// vLLM's own default (0.32.0 `envs.py` `VLLM_MAX_IMAGE_PIXELS`).
const MOST_PIXELS: u64 = 178_956_970;

/// Parts of a `config.json` that show that a model takes more than text.
const SENSES: [&str; 9] = [
    "vision_config",
    "vision_tower",
    "mm_vision_tower",
    "visual",
    "img_processor",
    "audio_config",
    "thinker_config",
    "vision_encoder",
    "image_token_id",
];

/// What images cost a model. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct Vision {
    family: Family,
    rule: Rule,
}

/// A prompt with its images in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WithImages {
    /// Prompt tokens that the engine will see.
    pub tokens: u64,
    /// Whether it will see exactly these; else these or fewer, or it refuses the request.
    pub certain: bool,
}

impl Vision {
    /// Reads the three files of [`Vision::read`] from a model's directory. Nothing where there is no
    /// `config.json`: a tokenizer without its model.
    ///
    /// # Errors
    /// As [`Vision::read`], or a file that is there cannot be read.
    pub fn load(dir: &Path) -> Result<Option<Self>, VisionError> {
        let Some(config) = files::read(dir, "config.json")? else { return Ok(None) };
        let preprocessor = files::read(dir, "preprocessor_config.json")?;
        let processor = files::read(dir, "processor_config.json")?;
        Self::read(&config, preprocessor.as_deref(), processor.as_deref())
    }

    /// Reads what a model's `config.json` says, its `preprocessor_config.json` and its
    /// `processor_config.json`. Nothing where the model names no part that sees or hears.
    ///
    /// # Errors
    /// [`VisionError::UnknownFamily`] for a model that takes more than text in a way that is not known
    /// here; else a file is missing or unusable. The cost of images is then unknown.
    pub fn read(
        config: &[u8],
        preprocessor_config: Option<&[u8]>,
        processor_config: Option<&[u8]>,
    ) -> Result<Option<Self>, VisionError> {
        let config = object("config.json", config)?;
        let preprocessor =
            preprocessor_config.map(|bytes| object("preprocessor_config.json", bytes)).transpose()?;
        let processor = processor_config.map(|bytes| object("processor_config.json", bytes)).transpose()?;
        let config = Section::new("config.json", Some(&config));
        let Some(family) = family(config)? else { return Ok(None) };
        let processor = Section::new("processor_config.json", processor.as_ref());
        // One within the processor's file wins (transformers 5.19 `image_processing_base.py`
        // `get_image_processor_dict`).
        let nested = processor.section("image_processor");
        let image_processor = if nested.exists() {
            nested
        } else {
            Section::new("preprocessor_config.json", preprocessor.as_ref())
        };
        let rule = Rule::read(family, config, image_processor, processor)?;
        Ok(Some(Self { family, rule }))
    }

    /// The model's family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// What vLLM writes for an image into a content that the template takes as text; see
    /// [`Family::written`].
    #[must_use]
    pub const fn written(&self) -> Option<&'static str> {
        self.family.written()
    }

    /// The most tokens that any image takes.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.rule.most()
    }

    /// What one image costs. Looks at its header only; bounded, whatever the bytes are.
    #[must_use]
    pub fn cost(&self, image: ImageRef) -> ImageCost {
        let most = self.most();
        let at_most = |size| ImageCost { tokens: most, certain: false, size };
        let header = match image {
            ImageRef::Url(url) => Bytes::of_url(url).and_then(header::read),
            ImageRef::Unseen => None,
        };
        let Some(header) = header else {
            // It does not matter what an image is where all cost the same.
            return match &self.rule {
                Rule::Fixed(tokens) => ImageCost { tokens: *tokens, certain: true, size: None },
                _ => at_most(None),
            };
        };
        if header.size.pixels() > MOST_PIXELS {
            return at_most(Some(header.size));
        }
        let (upright, turned) = (self.rule.tokens(header.size), self.rule.tokens(header.size.turned()));
        let (size, tokens) = match header.turned {
            Turned::No => (header.size, upright),
            Turned::Yes => (header.size.turned(), turned),
            Turned::Unsure if upright == turned => (header.size, upright),
            Turned::Unsure => {
                let tokens = upright.zip(turned).map_or(most, |(one, other)| one.max(other));
                return ImageCost { tokens, certain: false, size: Some(header.size) };
            }
        };
        match tokens {
            Some(tokens) => ImageCost { tokens, certain: true, size: Some(size) },
            None => at_most(Some(size)),
        }
    }

    /// The cost of an image of this size, where the engine takes it.
    #[must_use]
    pub fn tokens_of(&self, size: Size) -> Option<u64> {
        self.rule.tokens(size)
    }

    /// A prompt's tokens: those of its text (`ids`, as the tokenizer gives them), with each image's own
    /// in place of the token that stands for it. `id_of` is the tokenizer's vocabulary.
    pub fn total(
        &self,
        ids: &[u32],
        images: &[ImageCost],
        id_of: impl Fn(&str) -> Option<u32>,
    ) -> WithImages {
        let text = ids.len() as u64;
        let Some(marker) = id_of(self.family.marker()) else {
            return WithImages { tokens: sum(text, images), certain: images.is_empty() };
        };
        let markers = ids.iter().filter(|id| **id == marker).count();
        // vLLM refuses a prompt that has not a place for each image. Places without one stay as they are.
        let mut certain = markers >= images.len() && images.iter().all(|image| image.certain);
        let mut tokens = sum(text, images);
        if self.family == Family::Gemma3 && !images.is_empty() {
            match newlines(&id_of) {
                Some(newlines) => tokens -= merged(ids, marker, images.len(), newlines),
                None => certain = false,
            }
        }
        WithImages { tokens, certain }
    }
}

/// The tokens of the text, and of each image less the one that stands for it.
fn sum(text: u64, images: &[ImageCost]) -> u64 {
    let more = images.iter().map(|image| image.tokens.saturating_sub(1));
    more.fold(text, u64::saturating_add)
}

/// The tokens of one to four line breaks.
fn newlines(id_of: impl Fn(&str) -> Option<u32>) -> Option<[u32; 4]> {
    Some([id_of("\n")?, id_of("\n\n")?, id_of("\n\n\n")?, id_of("\n\n\n\n")?])
}

/// How many tokens fewer a Gemma 3 prompt has because line breaks around images join others: vLLM
/// 0.32.0 (`gemma3_mm.py` `_apply_token_matches`) makes three of one and two, then of two and one,
/// then four of two and two, once each over the whole prompt.
fn merged(ids: &[u32], marker: u32, images: usize, newlines: [u32; 4]) -> u64 {
    // Line breaks by their number, all else as 0; what lies between an image's marks as one.
    let mut left = images;
    let mut seen: Vec<u8> = Vec::with_capacity(ids.len() + images * 3);
    for id in ids {
        if *id == marker && left > 0 {
            left -= 1;
            seen.extend([2, 0, 2]);
        } else {
            let breaks = newlines.iter().position(|newline| newline == id);
            seen.push(breaks.map_or(0, |at| at as u8 + 1));
        }
    }
    let before = seen.len();
    for (pair, joined) in [([1, 2], 3), ([2, 1], 3), ([2, 2], 4)] {
        seen = join(&seen, pair, joined);
    }
    (before - seen.len()) as u64
}

/// Each pair, from the left, as one.
fn join(seen: &[u8], pair: [u8; 2], joined: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(seen.len());
    let mut rest = seen;
    while let Some((first, behind)) = rest.split_first() {
        if rest.starts_with(&pair) {
            out.push(joined);
            rest = &rest[2..];
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    out
}

/// The family of a model, by its type.
fn family(config: Section) -> Result<Option<Family>, VisionError> {
    let model_type = config.text("model_type").unwrap_or_default();
    let family = match model_type {
        "llava" if config.section("vision_config").text("model_type") == Some("pixtral") => Family::Pixtral,
        "llava" => Family::Llava,
        "llava_next" => Family::LlavaNext,
        "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe" => Family::QwenVl,
        "mllama" => Family::Mllama,
        "mistral3" => Family::Mistral3,
        "gemma3" => Family::Gemma3,
        other if SENSES.iter().any(|key| config.get(key).is_some()) => {
            return Err(VisionError::UnknownFamily { model_type: other.chars().take(64).collect() });
        }
        _ => return Ok(None),
    };
    Ok(Some(family))
}

fn object(file: &'static str, bytes: &[u8]) -> Result<Map<String, Value>, VisionError> {
    serde_json::from_slice(bytes).map_err(|error| VisionError::Invalid { file, reason: error.to_string() })
}
