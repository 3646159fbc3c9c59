//! Whether, and when, a request may go to the engine.
//!
//! Decides: prompt length ([`length::check`]), a tenant's rate ([`Rates`]), and room in the engine
//! ([`Gate`]); each by its [`Mode`]. Reads: a request's count and shape, and [`Signals`] that
//! `gateway.rs` makes of each scrape. Called by: `proxy` for each request, `gateway` for signals,
//! deaths and ticks, `operate` for the state.
//!
//! The decision is apart from the mechanism. [`decide`] says by the [`Books`] alone whether a
//! request fits; [`Admission`] is queue, books and forecast as one state machine with time handed
//! in, with the order of the queue by each tenant's share and the gates for prefill and latency beside
//! the one for room; [`Gate`] puts it behind a lock, with wakers and [`Permit`]s. Everything up to [`Gate`] runs
//! in virtual time, against a simulated engine, in `tests/`.

mod admission;
mod appointments;
mod capacity;
mod forecast;
mod gate;
mod gates;
pub mod length;
mod mode;
mod permit;
mod policy;
mod predict;
mod prefix;
mod profile;
mod queue;
mod rate;
mod recovery;
mod rejection;
mod settings;
mod shadow;
mod shares;
mod signals;
mod terms;

pub use admission::{Action, Admission, Arrival, Ask};
pub use capacity::{
    Books, Candidate, CapacitySettings, Comparison, Flight, HeldBy, Job, Outlook, Policy, Room, Timeline,
    Verdict, Why, decide,
};
pub use gate::{Gate, GateState};
pub use length::Limits;
pub use mode::{Mode, ModeSettings, Modes, Rule};
pub use permit::Permit;
pub use predict::{Kind, Predictor};
pub use profile::{Class, Profile, ProfileError};
pub use rate::{RateSettings, Rates, Standing};
pub use rejection::{Held, LimitSource, Rejection, Unavailable};
pub use settings::{
    FairnessSettings, LengthSettings, OutputRule, QueueSettings, Settings, SloSettings, TenantSettings,
};
pub use shadow::{Shadow, Tally, reached, upper};
pub use signals::Signals;
pub use terms::Terms;

#[cfg(test)]
mod tests;
