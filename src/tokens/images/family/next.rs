//! LLaVA-NeXT: the image as a whole, and tiles of it at the best of a few resolutions, without
//! their padding and with a token at the end of each row (vLLM 0.32.0 `llava_next.py`
//! `get_num_image_tokens`; transformers 5.19 `processing_llava_next.py`, `select_best_resolution` of
//! `image_processing_utils.py`). The floating-point steps and their order are theirs.

use serde_json::Value;

use super::super::cost::Size;
use super::super::files::{Section, VisionError};
use super::Tower;

/// Resolutions that transformers 5.19 takes where a model names none (height, width).
const DEFAULT: [(u64, u64); 5] = [(336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)];

/// More resolutions than any model has; each costs a step per image.
const MOST: usize = 256;

/// A LLaVA-NeXT model's numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Next {
    tower: Tower,
    /// Height and width of each resolution.
    resolutions: Vec<(u64, u64)>,
}

impl Next {
    /// Reads the tower and `image_grid_pinpoints`.
    pub fn read(config: Section) -> Result<Self, VisionError> {
        let tower = Tower::read(config)?;
        let wrong = || config.invalid("image_grid_pinpoints is no list of [height, width]".to_owned());
        let resolutions = match config.get("image_grid_pinpoints") {
            None => DEFAULT.to_vec(),
            Some(value) => {
                let pairs = value.as_array().filter(|all| (1..=MOST).contains(&all.len()));
                let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
                    Some([height, width]) => Ok((
                        config.positive("image_grid_pinpoints", height)?,
                        config.positive("image_grid_pinpoints", width)?,
                    )),
                    _ => Err(wrong()),
                };
                pairs.ok_or_else(wrong)?.iter().map(pair).collect::<Result<_, _>>()?
            }
        };
        Ok(Self { tower, resolutions })
    }

    /// The tokens of an image of this size.
    pub fn tokens(&self, size: Size) -> u64 {
        let (tile_rows, tile_columns) = self.tiles(size);
        let (width, height) = (f64::from(size.width), f64::from(size.height));
        let rows = self.tower.grid * tile_rows;
        let columns = self.tower.grid * tile_columns;
        let (rows, columns) = if columns == 0 || rows == 0 {
            (rows, columns)
        } else if width / height > columns as f64 / rows as f64 {
            let kept = seven_places(height * (columns as f64 / width));
            (rows - rows.saturating_sub(kept) / 2 * 2, columns)
        } else {
            let kept = seven_places(width * (rows as f64 / height));
            (rows, columns - columns.saturating_sub(kept) / 2 * 2)
        };
        rows * columns + rows + self.tower.selected
    }

    /// Rows and columns of tiles at the resolution that keeps most of the image and wastes least.
    fn tiles(&self, size: Size) -> (u64, u64) {
        let (width, height) = (f64::from(size.width), f64::from(size.height));
        let mut best = (0, 0);
        let mut most_kept = 0_u128;
        let mut least_wasted = i128::MAX;
        for &(rows, columns) in &self.resolutions {
            let scale = (columns as f64 / width).min(rows as f64 / height);
            // The product of two sides may need more than 64 bits.
            let scaled = ((width * scale) as u128).saturating_mul((height * scale) as u128);
            let kept = scaled.min(u128::from(size.pixels()));
            let wasted = i128::from(rows * columns) - i128::try_from(kept).unwrap_or(i128::MAX);
            if kept > most_kept || (kept == most_kept && wasted < least_wasted) {
                (most_kept, least_wasted) = (kept, wasted);
                best = (rows, columns);
            }
        }
        (best.0 / self.tower.side, best.1 / self.tower.side)
    }

    /// Whole tiles at the largest resolution, nothing cut off.
    pub fn most(&self) -> u64 {
        let all = |&(rows, columns): &(u64, u64)| {
            let side = |pixels: u64| self.tower.grid * (pixels / self.tower.side);
            side(rows) * side(columns) + side(rows)
        };
        self.resolutions.iter().map(all).max().unwrap_or(0) + self.tower.selected
    }
}

/// Python's `int(round(x, 7))`: rounded to seven decimal places, ties to even, then cut.
fn seven_places(number: f64) -> u64 {
    // Formatting rounds the exact binary value, as Python does.
    format!("{number:.7}").parse::<f64>().unwrap_or(number) as u64
}
