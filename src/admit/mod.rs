//! Whether, and when, a request may go to the engine.
mod length;
mod mode;
mod predict;
mod profile;
mod rate;
mod rejection;

pub use length::{Certainty, Count, Limits};
pub use mode::{Mode, ModeSettings, Modes, Rule};
pub use predict::Predictor;
pub use profile::{Class, Profile, ProfileError};
pub use rate::{RateSettings, Rates, Standing};
pub use rejection::{LimitSource, Rejection, Unavailable};
