//! Whether the engine makes progress, and what an orchestrator's liveness probe should hear. Pure.

use std::time::Duration;

use tokio::time::Instant;

use super::{Sample, State};

/// After a death, connections refused are reported as dead for so long. Then the process that the
/// orchestrator started meanwhile is loading, and must not be killed for it: an engine opens its
/// port only when it has loaded, so from outside the two look the same.
pub const DEAD_NOTICE: Duration = Duration::from_secs(20);
/// A later load may take so many times the learned one.
const LOAD_FACTOR: u32 = 3;
/// A step may take so many times the longest seen.
const STEP_FACTOR: u32 = 3;

/// The engine's steps, as good scrapes show them. A scrape that failed is not folded, so that it
/// never looks like a step that is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Progress {
    steps: Option<f64>,
    generation: Option<f64>,
    moved_at: Option<Instant>,
    seen_at: Option<Instant>,
    busy_since: Option<Instant>,
    longest: Duration,
}

impl Progress {
    /// The progress after one more good scrape.
    #[must_use]
    pub fn next(mut self, sample: &Sample) -> Self {
        let now = sample.taken;
        let counters = (sample.steps_total, sample.generation_tokens_total);
        let moved = self.moved_at.is_none() || counters != (self.steps, self.generation);
        if moved {
            if let (Some(at), Some(busy)) = (self.moved_at, self.busy_since) {
                self.longest = self.longest.max(now.saturating_duration_since(at.max(busy)));
            }
            self.moved_at = Some(now);
        }
        (self.steps, self.generation) = counters;
        self.busy_since = if sample.has_work() { self.busy_since.or(Some(now)) } else { None };
        self.seen_at = Some(now);
        self
    }

    /// Something the engine made was seen at `now`: it is not hung, whatever its metrics say.
    #[must_use]
    pub fn served(mut self, now: Instant) -> Self {
        self.moved_at = self.moved_at.map(|at| at.max(now));
        self
    }

    /// The longest time with work between two steps; 0 before the first.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// For how long, up to the last good scrape, the engine had work and made no step; `busy_since`
    /// is since when kvgate itself has had requests at the engine. None without work, or where the
    /// engine does not count its steps.
    #[must_use]
    pub fn stalled(&self, busy_since: Option<Instant>) -> Option<Duration> {
        let (moved, seen) = (self.moved_at?, self.seen_at?);
        self.steps.or(self.generation)?;
        let busy = match (self.busy_since, busy_since) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(seen.saturating_duration_since(moved.max(busy)))
    }
}

/// What `/engine/livez` is decided from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LivezInput {
    /// The engine's state.
    pub state: State,
    /// For how long it has not been ready; zero while it is.
    pub unready_for: Duration,
    /// Since its last death, while it has not come back.
    pub dead_for: Option<Duration>,
    /// New connections are refused now.
    pub refused: bool,
    /// The engine was put to sleep.
    pub sleeping: bool,
    /// The learned load time.
    pub load: Option<Duration>,
    /// What a load may take while none was learned.
    pub first_load_allowance: Duration,
    /// Time with work and without a step ([`Progress::stalled`]).
    pub stalled: Option<Duration>,
    /// The longest step seen ([`Progress::longest`]).
    pub longest_step: Duration,
    /// The configured bound of a hang.
    pub hang: Duration,
}

/// The answer of `/engine/livez`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// 200, and why.
    Live(&'static str),
    /// 503, and why: the orchestrator should end the engine.
    Dead(&'static str),
}

impl Verdict {
    /// 200?
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// One word.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Live(why) | Self::Dead(why) => why,
        }
    }
}

/// Whether the engine's own container should be kept. A busy engine is never dead; a frozen one that
/// answers `/health` is; what is unknown is alive.
#[must_use]
pub fn livez(input: &LivezInput) -> Verdict {
    let allowed = input.load.map_or(input.first_load_allowance, |load| load * LOAD_FACTOR);
    // A learned load of moments must not make the next one, of another model or a cold cache, a fault.
    let allowed = allowed.max(Duration::from_secs(60));
    match input.state {
        State::Down if !input.refused => Verdict::Dead("engine_dead"),
        State::Down if input.dead_for.is_some_and(|d| d < DEAD_NOTICE) => {
            Verdict::Dead("refuses_connections")
        }
        State::Connecting | State::Loading | State::Down => {
            if input.unready_for <= allowed {
                Verdict::Live("loading")
            } else {
                Verdict::Dead("load_took_too_long")
            }
        }
        State::Ready | State::Suspect => {
            let hang = input.hang.max(input.longest_step * STEP_FACTOR);
            if input.sleeping {
                Verdict::Live("sleeping")
            } else if input.stalled.is_some_and(|stalled| stalled >= hang) {
                Verdict::Dead("no_step")
            } else {
                Verdict::Live("serving")
            }
        }
    }
}

#[cfg(test)]
mod tests;
