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
mod flight;
mod measured;
mod outlook;
mod pace;
mod prefill;
mod seats;
mod stalls;
mod timeline;

pub use books::{Books, BrokenOff};
pub use flight::{Candidate, Flight};
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
    /// Standard deviations of the occupancy to come that are left free, 0–5. It is nothing where lengths are
    /// known (declared and reached, or unlearned and taken for the most).
    pub caution: f64,
    /// Decode steps by which an answer may outlast its last token (asynchronous scheduling), and tokens
    /// by which the engine may be ahead of what was seen.
    pub slack_steps: u64,
    /// Requests in flight at most while the pool's size is unknown; at least 1.
    pub unknown_pool_inflight: u64,
    /// Which rule decides.
    pub policy: Policy,
    /// What the rules to compare with go by.
    pub comparison: Comparison,
}

/// Which rule decides whether a request goes. All but the first are there to be compared with, on an
/// operator's own traffic or in the bench.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// All gates of this room.
    #[default]
    Kvgate,
    /// Every request goes at once: what the engine does alone.
    None,
    /// At most `inflight` requests.
    Cap,
    /// While the scraped KV usage is under `kv_usage`.
    KvThreshold,
    /// While max(waiting / `waiting`, KV usage / `kv_usage`) of the last scrape is under 1, and the scrape is
    /// recent (the saturation detector of the Gateway API Inference Extension, v1.0, its utilization
    /// detector).
    KvAndQueue,
    /// While the prompt tokens in prefill are at most `prefill_tokens`, else refused at once (vLLM's
    /// `--max-num-queued-tokens`, pull request 49445).
    PrefillCap,
}

/// What the rules to compare with go by.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Comparison {
    /// Requests in flight, at least 1.
    pub inflight: u64,
    /// KV usage, over 0 to 1.
    pub kv_usage: f64,
    /// Requests waiting in the engine, over 0.
    pub waiting: f64,
    /// Prompt tokens in prefill, at least 1.
    pub prefill_tokens: u64,
    /// Share of the time to the first token that a request may spend in the queue, over 0 to 1; absent:
    /// only the queue's own longest wait holds.
    pub queue_share: Option<f64>,
}

impl Comparison {
    /// What is wrong with them: key, value, range.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let over = |key: &str, value: f64, most: f64| {
            let fine = value > 0.0 && value <= most;
            (!fine).then(|| {
                format!("admit.capacity.comparison.{key} = {value}: must be over 0 and at most {most}")
            })
        };
        let checks = [
            over("inflight", self.inflight as f64, 1e9),
            over("kv_usage", self.kv_usage, 1.0),
            over("waiting", self.waiting, 1e9),
            over("prefill_tokens", self.prefill_tokens as f64, 1e12),
            self.queue_share.and_then(|share| over("queue_share", share, 1.0)),
        ];
        checks.into_iter().flatten().collect()
    }
}

impl Default for Comparison {
    fn default() -> Self {
        Self { inflight: 100, kv_usage: 0.8, waiting: 5.0, prefill_tokens: 16_384, queue_share: None }
    }
}

impl Default for CapacitySettings {
    fn default() -> Self {
        Self {
            output_quantile: 0.9,
            reserve_declared: false,
            default_output_tokens: 512,
            pool_share: 0.98,
            caution: 2.4,
            slack_steps: 2,
            unknown_pool_inflight: 64,
            policy: Policy::default(),
            comparison: Comparison::default(),
        }
    }
}

#[cfg(test)]
mod tests;
