//! The only place where events become metrics and log lines, so that a fact is counted once.
//!
//! Rooms call [`emit`] with an [`Event`]; the names live in [`names`]. Logs carry a constant
//! message with data in fields, never prompt text.

mod events;
mod exporter;
mod logs;
pub mod names;

pub use events::{Access, Alarm, Event, emit};
pub use exporter::Exporter;
pub use logs::{LogFormat, Logs, Settings, init_logs};
