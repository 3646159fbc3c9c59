//! What was in flight when the engine died, and which of it is suspect.
//!
//! Decides: which requests a death took with it, and in what order to suspect them; never the cause
//! without evidence. Reads: one [`Death`] and the [`crate::ledger`]. Called by: `gateway` (compose and
//! keep), `operate` and `cli` (list and show).
//!
//! A report holds shapes and times, never prompt text.

mod compose;
mod report;
mod reports;
mod suspects;

pub use crate::ledger::Record;
pub use compose::{Death, compose};
pub use report::{Cause, Engine, Evidence, LastSample, Report, Suspect};
pub use reports::{Listing, ReportError, Reports, Summary};

#[cfg(test)]
mod tests;
