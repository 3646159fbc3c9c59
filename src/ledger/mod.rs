//! Which requests are in flight: in memory for the living, in a journal on disk for after a death.
//!
//! Decides: nothing. It remembers the shape of each request from its arrival to its end, and says
//! once, at the end, what became of it (the access line).
//! Reads: what `proxy` tells an [`Entry`], and at start the journal that the last run left behind.
//! Called by: `proxy` (entries), `gateway` (open, close), `operate` and `crash` (what is in flight).
//!
//! No prompt text passes through here.

mod book;
mod directory;
mod entry;
mod journal;
mod open;
mod record;

pub use directory::{Unusable, tenant_key};
pub use entry::{Arrival, Ending, Entry};
pub use open::{Ledger, Recovered, Settings};
pub use record::{Flight, Record};

#[cfg(test)]
mod tests;
