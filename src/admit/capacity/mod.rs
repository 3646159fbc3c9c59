//! The decision whether a request fits into the engine now: pure, with time handed in.
//!
//! [`Books`] know what is in flight and what was measured of the engine; [`Outlook`] turns them
//! into a [`Timeline`] of KV blocks over the decode steps to come and says [`Verdict`]s on it. The
//! queue and the permits are elsewhere, so that this can be exchanged.
//!
//! Never worse than no gateway: what the books only *believe* yields to what a fresh scrape shows.
//! Where the engine holds clearly less than the books say (shared prefixes), the difference is
//! room. Where it shows nothing waiting, nothing else holds a request than the growth that the
//! requests in flight have been promised: to give that away is what makes an engine preempt. With
//! nothing in flight one request is always admitted; stale or missing signals hold nothing.

mod books;
mod measured;
mod outlook;
mod pace;
mod seats;
mod timeline;

pub use books::{Books, Candidate, Flight};
pub use outlook::{Gate as HeldBy, Outlook, Verdict, Why, decide};
pub use timeline::{Job, Room, Timeline};

use serde::{Deserialize, Serialize};

/// What the capacity decision goes by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CapacitySettings {
    /// Share of the answers that stay within the reserved output, 0.5–1.
    pub output_quantile: f64,
    /// Reserve the asked cap in full where a request names one, whatever was learned: no preemption can
    /// come of a wrong guess, and fewer requests run at once. Default false.
    pub reserve_declared: bool,
    /// Output tokens taken for a request that names no cap, until enough answers were seen; at least 1.
    pub default_output_tokens: u64,
    /// Share of the KV pool that may be promised, 0.5–1.
    pub pool_share: f64,
    /// Decode steps by which an answer may outlast its last token (asynchronous scheduling), and tokens
    /// by which the engine may be ahead of what was seen.
    pub slack_steps: u64,
    /// Requests in flight at most while the pool's size is unknown; at least 1.
    pub unknown_pool_inflight: u64,
}

impl Default for CapacitySettings {
    fn default() -> Self {
        Self {
            output_quantile: 0.9,
            reserve_declared: false,
            default_output_tokens: 512,
            pool_share: 0.98,
            slack_steps: 2,
            unknown_pool_inflight: 64,
        }
    }
}

#[cfg(test)]
mod tests;
