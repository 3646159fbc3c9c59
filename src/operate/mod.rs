//! The admin port: probes, metrics, state. Read-only snapshots, but for what the token opens.
//!
//! Served from a thread of its own, which counting and proxying cannot starve. Called by: `gateway`.

mod api;
mod probes;
mod server;
mod settings;

pub use api::Handles;
pub use probes::{Heart, Readiness};
pub use server::{AdminError, Server};
pub use settings::{ReadyPolicy, Settings};
