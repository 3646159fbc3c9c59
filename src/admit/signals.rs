//! What the gate is told about the engine at each scrape.

use std::time::Duration;

use tokio::time::Instant;

use crate::request::Tokens;

/// One look at the engine, in this room's words; `gateway.rs` fills it from the engine's snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Signals {
    /// Whether the engine takes requests.
    pub state_ready: bool,
    /// What is left of the learned load time, where the engine is not ready.
    pub retry_after: Option<Duration>,
    /// Tokens that the usable KV pool of all ranks together holds; `None` for unknown (the last
    /// known one of this life stays in force).
    pub pool: Option<Tokens>,
    /// Tokens of one KV block; 0 or 1 where the engine has none.
    pub block: u64,
    /// Data-parallel ranks, at least 1.
    pub ranks: u32,
    /// Whether the scrape is recent enough to be believed.
    pub fresh: bool,
    /// Requests waiting in the engine.
    pub waiting: f64,
    /// Requests running in the engine.
    pub running: f64,
    /// KV-cache usage, 0–1, the largest of the ranks.
    pub kv_usage: Option<f64>,
    /// Whether there were new preemptions since the scrape before.
    pub preempted: bool,
    /// When the scrape was taken.
    pub taken: Option<Instant>,
    /// Prompt tokens that the engine found in its prefix cache since the scrape before.
    pub prefix_hits: f64,
    /// Tokens generated per second by all running requests, from the engine's counter.
    pub generation_rate: Option<f64>,
    /// Which start of the engine this is; a new one empties the books.
    pub incarnation: u64,
}

impl Default for Signals {
    /// Nothing known: nothing is held or refused because of it.
    fn default() -> Self {
        Self {
            state_ready: true,
            retry_after: None,
            pool: None,
            block: 1,
            ranks: 1,
            fresh: false,
            waiting: 0.0,
            running: 0.0,
            kv_usage: None,
            preempted: false,
            taken: None,
            prefix_hits: 0.0,
            generation_rate: None,
            incarnation: 0,
        }
    }
}

impl Signals {
    /// KV blocks of the whole pool, where known.
    #[must_use]
    pub fn blocks(&self) -> Option<u64> {
        self.pool.map(|pool| pool.get() / self.block.max(1))
    }
}
