//! When symptoms confirm each other, and when they were nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::{SETTLE, Symptom, WINDOW};

/// The symptoms of an engine that may be dying.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Suspicion {
    /// The first symptom.
    pub since: Instant,
    /// Each symptom once, with the last time it was seen.
    pub symptoms: Vec<(Symptom, Instant)>,
    /// A good scrape with the same start time came after the last symptom.
    pub same_start: bool,
    /// A good `/health` came after the last symptom had settled.
    pub healthy: bool,
}

impl Suspicion {
    /// Nothing seen yet.
    pub const fn new(now: Instant) -> Self {
        Self { since: now, symptoms: Vec::new(), same_start: false, healthy: false }
    }

    /// Lets go of what is too old to count.
    pub fn forget(&mut self, now: Instant) {
        self.symptoms.retain(|(_, at)| now.saturating_duration_since(*at) < WINDOW);
        if self.symptoms.is_empty() {
            self.since = now;
        }
    }

    /// What confirms a death, where that is enough.
    pub fn confirmed(&self) -> Option<Vec<&'static str>> {
        let has = |symptom| self.symptoms.iter().any(|(s, _)| *s == symptom);
        let strong = self.symptoms.iter().filter(|(s, _)| *s != Symptom::Reset).count();
        // A reset beside a refused connection is the process going away; beside anything else it may
        // be an idle connection that was closed.
        let reset = usize::from(has(Symptom::Reset) && has(Symptom::ConnectRefused));
        if !has(Symptom::StartChanged) && strong + reset < 2 {
            return None;
        }
        let mut by: Vec<_> = self.symptoms.iter().map(|(s, _)| s.label()).collect();
        if has(Symptom::StartChanged) {
            by.push("new_process_answers");
        }
        Some(by)
    }

    /// Whether a good answer now says more than the last symptom.
    pub fn settled(&self, now: Instant) -> bool {
        let only_hints = self.symptoms.iter().all(|(s, _)| *s == Symptom::Reset);
        let settle = if only_hints { Duration::ZERO } else { SETTLE };
        self.symptoms.iter().all(|(_, at)| now.saturating_duration_since(*at) >= settle)
    }

    /// Whether it was nothing: the engine answers well, as the same process, after the last symptom;
    /// or every symptom is too old to count.
    pub fn cleared(&mut self, knows_start: bool, now: Instant) -> bool {
        self.forget(now);
        self.symptoms.is_empty() || (self.healthy && (self.same_start || !knows_start))
    }
}
