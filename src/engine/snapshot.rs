//! What every other room sees of the engine: one consistent picture.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Facts, Kind, Life, LivezInput, Progress, Sample, Settings, State, Verdict, livez};

/// The engine as last seen.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// How it fares.
    pub state: State,
    /// Since when.
    pub since: Instant,
    /// Which start that kvgate saw; 0 before the first.
    pub incarnation: u64,
    /// Start of its API process, Unix seconds, where said.
    pub start_time: Option<f64>,
    /// What it is; of the engine's last life while it is away.
    pub facts: Arc<Facts>,
    /// The last good scrape of this life; None without metrics.
    pub sample: Option<Arc<Sample>>,
    /// Preemptions between the last two good scrapes.
    pub new_preemptions: u64,
    /// The learned load time in seconds.
    pub load_seconds: Option<f64>,
    /// Since when it has not been ready; None while it is.
    pub unready_since: Option<Instant>,
    /// When its last death was confirmed, while it has not come back.
    pub died_at: Option<Instant>,
    /// Since when new connections have been refused.
    pub refused_since: Option<Instant>,
    /// Several engines answer at this address in turn.
    pub several: bool,
    /// Its steps.
    pub progress: Progress,
    interval: Duration,
    hang: Duration,
    first_load_allowance: Duration,
}

impl Snapshot {
    /// Before anything was seen.
    #[must_use]
    pub fn unseen(settings: &Settings, now: Instant) -> Self {
        Self {
            state: State::Connecting,
            since: now,
            incarnation: 0,
            start_time: None,
            facts: Arc::default(),
            sample: None,
            new_preemptions: 0,
            load_seconds: None,
            unready_since: Some(now),
            died_at: None,
            refused_since: None,
            several: false,
            progress: Progress::default(),
            interval: settings.scrape_interval(),
            hang: settings.hang(),
            first_load_allowance: settings.first_load_allowance(),
        }
    }

    /// The same picture with the life's present facts.
    #[must_use]
    pub(super) fn with_life(mut self, life: &Life) -> Self {
        self.state = life.state();
        self.since = life.since();
        self.incarnation = life.incarnation();
        self.start_time = life.start_time();
        self.load_seconds = life.load().map(|d| d.as_secs_f64());
        self.died_at = life.died_at();
        self.refused_since = life.refused_since();
        self.several = life.several();
        self.unready_since =
            if self.state.serves() { None } else { self.unready_since.or(Some(life.since())) };
        self
    }

    /// Whether requests may go to the engine: ready, or under a suspicion that nothing confirmed.
    #[must_use]
    pub const fn ready(&self) -> bool {
        self.state.serves()
    }

    /// Age of the last good scrape; None where there was none in this life.
    #[must_use]
    pub fn sample_age(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.sample.as_ref()?.taken))
    }

    /// Whether the last good scrape still says something: at most three intervals and one second old.
    #[must_use]
    pub fn fresh(&self, now: Instant) -> bool {
        self.sample_age(now).is_some_and(|age| age <= self.stale_after())
    }

    /// The last good scrape, where it is fresh.
    #[must_use]
    pub fn fresh_sample(&self, now: Instant) -> Option<&Sample> {
        self.sample.as_deref().filter(|_| self.fresh(now))
    }

    /// The age from which a scrape is stale.
    #[must_use]
    pub fn stale_after(&self) -> Duration {
        self.interval * 3 + Duration::from_secs(1)
    }

    /// Whether metrics are expected and old.
    #[must_use]
    pub(super) fn stale(&self, now: Instant) -> bool {
        self.facts.kind == Kind::Vllm && self.ready() && !self.fresh(now)
    }

    /// For how long the engine has not been ready; None while it is.
    #[must_use]
    pub fn unavailable_for(&self, now: Instant) -> Option<Duration> {
        self.unready_since.map(|since| now.saturating_duration_since(since))
    }

    /// How much longer it will take by the learned load time, at least one second; None while it is
    /// ready or nothing was learned.
    #[must_use]
    pub fn expected_for(&self, now: Instant) -> Option<Duration> {
        let gone = self.unavailable_for(now)?;
        let load = Duration::try_from_secs_f64(self.load_seconds?).ok()?;
        Some(load.saturating_sub(gone).max(Duration::from_secs(1)))
    }

    /// When a client that was turned away because of the engine may come back: the learned load time that
    /// is left; while none was learned five seconds, and later a quarter of the time it has been away. 1 to
    /// 60 s.
    #[must_use]
    pub fn retry_after(&self, now: Instant) -> Duration {
        let guess =
            || self.unavailable_for(now).map_or(Duration::ZERO, |away| away / 4).max(Duration::from_secs(5));
        self.expected_for(now).unwrap_or_else(guess).clamp(Duration::from_secs(1), Duration::from_secs(60))
    }

    /// What `/engine/livez` answers; `busy_since` is since when kvgate has had requests at the engine.
    #[must_use]
    pub fn livez(&self, busy_since: Option<Instant>, now: Instant) -> Verdict {
        livez(&LivezInput {
            state: self.state,
            unready_for: self.unavailable_for(now).unwrap_or_default(),
            dead_for: self.died_at.map(|at| now.saturating_duration_since(at)),
            refused: self.refused_since.is_some(),
            sleeping: self.sample.as_ref().is_some_and(|s| s.sleeping),
            load: self.load_seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()),
            first_load_allowance: self.first_load_allowance,
            stalled: self.progress.stalled(busy_since),
            longest_step: self.progress.longest(),
            hang: self.hang,
        })
    }
}
