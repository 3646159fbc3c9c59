//! Whether, and when, a request may go to the engine.
mod admission;
mod appointments;
mod capacity;
mod forecast;
mod gate;
pub mod length;
mod mode;
mod permit;
mod predict;
mod profile;
mod queue;
mod rate;
mod rejection;
mod settings;
mod signals;

pub use admission::{Action, Admission, Arrival, Ask, QueueSettings};
pub use capacity::{
    Books, Candidate, CapacitySettings, Flight, HeldBy, Job, Outlook, Room, Timeline, Verdict, Why, decide,
};
pub use gate::{Gate, GateSettings, GateState};
pub use length::{Certainty, Count, Limits};
pub use mode::{Mode, ModeSettings, Modes, Rule};
pub use permit::Permit;
pub use predict::Predictor;
pub use profile::{Class, Profile, ProfileError};
pub use rate::{RateSettings, Rates, Standing};
pub use rejection::{LimitSource, Rejection, Unavailable};
pub use settings::{LengthSettings, OutputRule, Settings, WaitSettings};
pub use signals::Signals;

#[cfg(test)]
mod tests;
