//! Pixtral and Mistral Small 3: the image shrunk to fit a longest edge, in rows of patches, each row
//! with a token at its end (vLLM 0.32.0 `pixtral.py` `PixtralHFEncoderInfo`, `mistral3.py`
//! `Mistral3HFEncoderInfo`; transformers 5.19 `image_processing_pixtral.py`, `processing_pixtral.py`).

use super::super::cost::Size;
use super::super::files::{Section, VisionError};

/// A model's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// The longest that a side may be, in pixels.
    longest: u64,
    /// Pixels of a side of what becomes one token.
    patch: u64,
}

impl Rows {
    /// Pixtral: all from `config.json`, as vLLM takes it.
    pub fn pixtral(config: Section) -> Result<Self, VisionError> {
        let vision = config.section("vision_config");
        let merged = config.number_or("spatial_merge_size", 1)?;
        let patch = vision.number_or("patch_size", 16)?;
        Self { longest: vision.number_or("image_size", 1024)?, patch: patch.saturating_mul(merged) }
            .checked(config)
    }

    /// Mistral Small 3: the longest edge is the image processor's.
    pub fn mistral3(config: Section, image_processor: Section) -> Result<Self, VisionError> {
        if !image_processor.exists() {
            return Err(VisionError::Missing { file: "preprocessor_config.json" });
        }
        let vision = config.section("vision_config");
        let kind = vision.text("model_type").unwrap_or("pixtral");
        if kind != "pixtral" {
            return Err(config.invalid(format!("vision_config.model_type is {kind:?}")));
        }
        // transformers 5.19 `configuration_mistral3.py`: without any `vision_config` it is 14.
        let patch = vision.number_or("patch_size", if vision.exists() { 16 } else { 14 })?;
        let merged = config.number_or("spatial_merge_size", 2)?;
        let longest = match image_processor.get("size") {
            None => 1024,
            Some(_) => match image_processor.section("size").number("longest_edge")? {
                Some(longest) => longest,
                None => return Err(image_processor.invalid("size has no longest_edge".to_owned())),
            },
        };
        Self { longest, patch: patch.saturating_mul(merged) }.checked(config)
    }

    /// One row at least, and not so many that their square is out of range.
    fn checked(self, config: Section) -> Result<Self, VisionError> {
        if self.longest.div_ceil(self.patch) > 1 << 16 {
            return Err(config.invalid("an image would have over 65536 rows".to_owned()));
        }
        Ok(self)
    }

    /// The tokens of an image of this size; nothing where a side shrinks to nothing, on which the
    /// processor fails.
    pub fn tokens(&self, size: Size) -> Option<u64> {
        let (mut width, mut height) = (u64::from(size.width), u64::from(size.height));
        let longest = self.longest as f64;
        let ratio = (width as f64 / longest).max(height as f64 / longest);
        if ratio > 1.0 {
            width = (width as f64 / ratio).floor() as u64;
            height = (height as f64 / ratio).floor() as u64;
        }
        let (columns, rows) = (width.div_ceil(self.patch), height.div_ceil(self.patch));
        (columns > 0 && rows > 0).then_some(rows * (columns + 1))
    }

    /// A square of the longest edge.
    pub const fn most(&self) -> u64 {
        let side = self.longest.div_ceil(self.patch);
        side * (side + 1)
    }
}
