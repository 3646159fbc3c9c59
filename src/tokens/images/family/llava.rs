//! LLaVA's vision tower: its patches, of a fixed size, are the image's tokens
//! (vLLM 0.32.0 `llava.py` `get_num_image_tokens`, `clip.py`, `siglip.py`, `vision.py`).

use super::super::files::{Section, VisionError};

/// A CLIP or SigLIP tower and what LLaVA takes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tower {
    /// Pixels of a side of what it sees.
    pub side: u64,
    /// Patches on a side.
    pub grid: u64,
    /// Tokens taken of one view.
    pub selected: u64,
}

impl Tower {
    /// Reads `vision_config` and `vision_feature_select_strategy`; defaults are transformers' 5.19
    /// (`configuration_llava.py`, `configuration_clip.py`, `configuration_siglip.py`).
    pub fn read(config: Section) -> Result<Self, VisionError> {
        let vision = config.section("vision_config");
        let kind = vision.text("model_type").unwrap_or("clip_vision_model");
        let (side, patch, class_token) = match kind {
            // Without any `vision_config` it is the tower of LLaVA-1.5.
            "clip_vision_model" if !vision.exists() => (336, 14, true),
            "clip_vision_model" => (224, 32, true),
            "siglip_vision_model" => (224, 16, false),
            other => return Err(config.invalid(format!("vision_config.model_type is {other:?}"))),
        };
        let side = vision.number_or("image_size", side)?;
        let grid = side / vision.number_or("patch_size", patch)?;
        let all = grid.saturating_mul(grid).saturating_add(u64::from(class_token));
        let selected = match config.text("vision_feature_select_strategy").unwrap_or("default") {
            "default" => all.saturating_sub(1),
            "full" => all,
            "class" => 1,
            other => {
                return Err(config.invalid(format!("vision_feature_select_strategy is {other:?}")));
            }
        };
        if grid == 0 || selected == 0 {
            return Err(config.invalid("vision_config.patch_size is over its image_size".to_owned()));
        }
        Ok(Self { side, grid, selected })
    }
}
