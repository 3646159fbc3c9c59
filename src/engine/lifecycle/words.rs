//! What was seen, what it means, what changed.

use std::time::Duration;

use tokio::time::Instant;

/// How the engine fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing was seen yet.
    Connecting,
    /// Not ready, and not known to be dead: it loads, or nobody listens yet.
    Loading,
    /// It serves.
    Ready,
    /// It served, and something looks wrong; not confirmed, so requests still go to it.
    Suspect,
    /// It died and has not come back.
    Down,
}

impl State {
    /// Every label, for the state metric.
    pub const LABELS: &'static [&'static str] = &["connecting", "loading", "ready", "suspect", "down"];

    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Suspect => "suspect",
            Self::Down => "down",
        }
    }

    /// Whether requests may go to the engine: a mere suspicion refuses nothing.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::Ready | Self::Suspect)
    }
}

/// A sign of death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symptom {
    /// A connection ended under a request. A hint; it counts only beside a refused connection.
    Reset,
    /// A new connection was refused.
    ConnectRefused,
    /// Connections were refused for [`super::STILL_REFUSED`].
    StillRefused,
    /// The API process has another start time, which makes two: the old one is gone, a new one is there.
    StartChanged,
    /// A counter went backwards under an unchanged start time.
    CountersBack,
    /// An answer said that the engine is dead.
    DeadAnswer,
    /// `/health` failed after the engine had been ready.
    HealthFailing,
}

impl Symptom {
    /// The word for reports and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::ConnectRefused => "connect_refused",
            Self::StillRefused => "still_refused",
            Self::StartChanged => "start_time_changed",
            Self::CountersBack => "counters_went_back",
            Self::DeadAnswer => "dead_answer",
            Self::HealthFailing => "health_failing",
        }
    }
}

/// What was seen of the engine. A call that timed out is no observation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Observation {
    /// `/metrics` was read.
    Scraped {
        /// Start of the API process, Unix seconds.
        start_time: Option<f64>,
        /// Output tokens since its start.
        generation_tokens: Option<f64>,
        /// Steps since its start.
        steps: Option<f64>,
    },
    /// `/health` was answered. Failing means a status of 500 or more; a 404 is an answer too.
    Health {
        /// Below 500.
        ok: bool,
    },
    /// Whether `/v1/models` was answered with a status below 500.
    Models {
        /// It was.
        served: bool,
    },
    /// A new connection was refused.
    ConnectRefused,
    /// A connection ended before its answer was complete.
    Reset,
    /// An answer said that the engine is dead.
    DeadAnswer,
    /// Time went by.
    Tick,
}

/// What changed.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A new engine process was seen.
    Started {
        /// Which start that kvgate saw; the first is 1.
        incarnation: u64,
    },
    /// It serves.
    Ready {
        /// From first seen unready to ready; None where the beginning was not seen.
        load: Option<Duration>,
        /// Since its death, after one.
        away: Option<Duration>,
    },
    /// Something looks wrong.
    Suspected {
        /// What.
        by: &'static str,
    },
    /// It was nothing.
    Cleared,
    /// It died. One death is one of these, however many symptoms it has.
    Died {
        /// The first symptom.
        suspected_at: Instant,
        /// The confirmation.
        at: Instant,
        /// At least two, in the order seen.
        confirmed_by: Vec<&'static str>,
        /// Which start died.
        incarnation: u64,
    },
}
