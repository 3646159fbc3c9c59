//! What the engine is and how it fares: its facts, its load, its life and death.
//!
//! Decides: whether the engine is loading, ready, suspected or dead ([`Life`]), and whether an
//! orchestrator may end it ([`livez`]). Reads: `/metrics`, `/health`, `/v1/models`, `/version` of the
//! engine, and what the proxy noticed ([`Hint`]). Called by: `gateway` (the loop), `admit`, `tokens`,
//! `proxy`, `operate` and `crash` (a [`Snapshot`], changes, and the engine's words).
//! Engine words become ours in [`dialect`] and nowhere else.

mod client;
pub mod dialect;
mod endpoint;
mod error;
pub mod exposition;
mod lifecycle;
mod progress;
mod sample;
mod settings;
mod snapshot;
pub mod watch;

pub use client::{Answer, Client, Connect, Connection};
pub use dialect::Said;
pub use endpoint::Endpoint;
pub use error::Error;
pub use lifecycle::{Change, Life, Observation, State, Symptom};
pub use progress::{LivezInput, Progress, Verdict, livez};
pub use sample::{Facts, Kind, Pool, Rank, Sample, ServedModel};
pub use settings::Settings;
pub use snapshot::Snapshot;
pub use watch::{Hint, Hints, same_start};
