//! What probes are told, as pure functions of what is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::ReadyPolicy;
use crate::engine::{Snapshot, State};

/// The gateway's own loop beats this; `/livez` listens.
#[derive(Debug, Clone)]
pub struct Heart(Arc<Beats>);

#[derive(Debug)]
struct Beats {
    since: Instant,
    last_millis: AtomicU64,
    draining: AtomicBool,
}

/// Silence after which the loop counts as stuck.
const STUCK: Duration = Duration::from_secs(15);

impl Default for Heart {
    fn default() -> Self {
        let beats =
            Beats { since: Instant::now(), last_millis: AtomicU64::new(0), draining: AtomicBool::new(false) };
        Self(Arc::new(beats))
    }
}

impl Heart {
    /// One turn of the loop; to be called at least once a second.
    pub fn beat(&self) {
        let millis = u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_millis.store(millis, Ordering::Relaxed);
    }

    /// Whether the loop turned in the last 15 seconds.
    #[must_use]
    pub fn alive(&self) -> bool {
        let last = Duration::from_millis(self.0.last_millis.load(Ordering::Relaxed));
        self.0.since.elapsed().saturating_sub(last) < STUCK
    }

    /// The gateway is going down.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// Whether it is going down.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }
}

/// The body of `/readyz`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Readiness {
    /// Whether a new request would be served now.
    pub ready: bool,
    /// Why not: `engine_loading`, `engine_down`, `draining`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// For how long, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_seconds: Option<f64>,
    /// How long it is expected to take in all, seconds, where that was learned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_seconds: Option<f64>,
}

impl Readiness {
    /// From what is known of the engine; `settled` once it is known how prompts are counted.
    #[must_use]
    pub fn of(snapshot: &Snapshot, draining: bool, settled: bool, now: Instant) -> Self {
        let reason = match snapshot.state {
            _ if draining => Some("draining"),
            State::Ready | State::Suspect if settled => None,
            State::Ready | State::Suspect => Some("engine_loading"),
            State::Connecting | State::Loading => Some("engine_loading"),
            State::Down => Some("engine_down"),
        };
        let for_seconds = reason.map(|_| now.saturating_duration_since(snapshot.since).as_secs_f64());
        let expected_seconds = reason.and(snapshot.load_seconds);
        Self { ready: reason.is_none(), reason, for_seconds, expected_seconds }
    }

    /// The status under a policy.
    #[must_use]
    pub const fn status(&self, policy: ReadyPolicy) -> u16 {
        match policy {
            ReadyPolicy::Single => 200,
            ReadyPolicy::Pool if self.ready => 200,
            ReadyPolicy::Pool => 503,
        }
    }
}
