//! Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5: the image resized to whole merged patches and a number of
//! pixels between two bounds, one token a merged patch (transformers 5.19
//! `image_processing_qwen2_vl.py` `smart_resize`; vLLM 0.32.0 `qwen2_vl.py`, `qwen3_vl.py`, which take the
//! grid that this processor makes).

use super::super::cost::Size;
use super::super::files::{Section, VisionError};

/// The largest ratio of an image's sides that the processor takes.
const RATIO: f64 = 200.0;

/// A model's numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resized {
    /// Pixels of a side of what becomes one token.
    factor: f64,
    /// The fewest pixels of a resized image.
    fewest: f64,
    /// The most pixels of a resized image.
    most: f64,
}

impl Resized {
    /// Reads the image processor's configuration.
    pub fn read(image_processor: Section) -> Result<Self, VisionError> {
        if !image_processor.exists() {
            return Err(VisionError::Missing { file: "preprocessor_config.json" });
        }
        if image_processor.get("do_resize").is_some_and(|given| given.as_bool() != Some(true)) {
            return Err(image_processor.invalid("do_resize is off".to_owned()));
        }
        // The older names win over the newer ones.
        let bound = |old: &str, edge: &str, default: u64| {
            let of_size = match image_processor.get("size") {
                None => Some(default),
                Some(_) => image_processor.section("size").number(edge)?,
            };
            let bound = image_processor.number(old)?.or(of_size);
            bound.ok_or_else(|| image_processor.invalid(format!("size has no {edge}")))
        };
        let patch = image_processor.number_or("patch_size", 14)?;
        let merged = image_processor.number_or("merge_size", 2)?;
        Ok(Self {
            factor: (patch.saturating_mul(merged)) as f64,
            fewest: bound("min_pixels", "shortest_edge", 56 * 56)? as f64,
            most: bound("max_pixels", "longest_edge", 28 * 28 * 1280)? as f64,
        })
    }

    /// The tokens of an image of this size; nothing where it is refused as too long and thin.
    pub fn tokens(&self, size: Size) -> Option<u64> {
        let (height, width) = (f64::from(size.height), f64::from(size.width));
        if height.max(width) / height.min(width) > RATIO {
            return None;
        }
        // In factors; Python's round() takes ties to the even one.
        let (mut rows, mut columns) =
            ((height / self.factor).round_ties_even(), (width / self.factor).round_ties_even());
        let pixels = (rows * self.factor) * (columns * self.factor);
        if pixels > self.most {
            let beta = ((height * width) / self.most).sqrt();
            rows = (height / beta / self.factor).floor().max(1.0);
            columns = (width / beta / self.factor).floor().max(1.0);
        } else if pixels < self.fewest {
            let beta = (self.fewest / (height * width)).sqrt();
            rows = (height * beta / self.factor).ceil();
            columns = (width * beta / self.factor).ceil();
        }
        let tokens = rows * columns;
        (tokens >= 1.0).then_some(tokens as u64)
    }

    /// The most of any image. With f the factor and r the largest ratio, the resized image has at most
    /// these pixels: where it need not be resized, or shrinks, the upper bound; where one side would
    /// shrink below f and is kept there, f × √(r × the upper bound), or f² where both would; where it
    /// grows to the lower bound m, (a + f)(b + f) with ab = m, and a + b ≤ √m (√r + 1/√r).
    pub fn most(&self) -> u64 {
        let square = self.factor * self.factor;
        let thin = self.factor * (RATIO * self.most).sqrt();
        let grown =
            self.fewest + self.factor * self.fewest.sqrt() * (RATIO.sqrt() + 1.0 / RATIO.sqrt()) + square;
        // One more for what rounding may add to roots.
        let rest = (thin.max(grown) / square).floor() + 1.0;
        (self.most / square).floor().max(rest) as u64
    }
}
