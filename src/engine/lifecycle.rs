//! The fold from observations to the engine's life. Pure: no clock, no IO.
//!
//! A transport error is a hint: an engine that closes idle connections is not dead, and one that is
//! slow to answer is busy. A death needs two independent kinds of confirmation within [`WINDOW`].
//! From outside, an engine that was asked to stop cannot be told from one that died.

use std::time::Duration;

use tokio::time::Instant;

/// How long a confirmation counts.
pub const WINDOW: Duration = Duration::from_secs(30);
/// Refused for so long, with no answer between: nobody listens any more. A full listen queue is no
/// such case: Linux lets those connections time out.
pub const STILL_REFUSED: Duration = Duration::from_secs(2);
/// A good answer clears a confirmation only after so long: the answer of an engine that dies may
/// overtake the news of its death.
pub const SETTLE: Duration = Duration::from_secs(1);
/// Start times of one process differ by less than this many seconds.
pub(super) const SAME_START: f64 = 0.5;
/// Start times remembered, to notice an address behind which several engines answer in turn.
const STARTS: usize = 8;

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
    /// Connections were refused for [`STILL_REFUSED`].
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

#[derive(Debug, Clone, PartialEq)]
struct Suspicion {
    since: Instant,
    /// Each symptom once, with the last time it was seen.
    symptoms: Vec<(Symptom, Instant)>,
    /// A good scrape with the same start time came after the last symptom.
    same_start: bool,
    /// A good `/health` came after the last symptom had settled.
    healthy: bool,
}

/// The engine's life as far as it was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    state: State,
    since: Instant,
    incarnation: u64,
    start_time: Option<f64>,
    /// Start times seen before the present one.
    old_starts: Vec<f64>,
    several: bool,
    generation: Option<f64>,
    steps: Option<f64>,
    models_served: bool,
    healthy: bool,
    suspicion: Option<Suspicion>,
    refused_since: Option<Instant>,
    /// Since the death, connections were refused or another start time was seen: what answers is new.
    gone: bool,
    unready_since: Option<Instant>,
    load: Option<Duration>,
    died_at: Option<Instant>,
    /// A scrape after the death showed the start time of before.
    same_after_death: bool,
    downtime: Duration,
}

type Changes = Vec<Change>;

impl Life {
    /// Nothing seen yet.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            state: State::Connecting,
            since: now,
            incarnation: 0,
            start_time: None,
            old_starts: Vec::new(),
            several: false,
            generation: None,
            steps: None,
            models_served: false,
            healthy: false,
            suspicion: None,
            refused_since: None,
            gone: false,
            unready_since: None,
            load: None,
            died_at: None,
            same_after_death: false,
            downtime: Duration::ZERO,
        }
    }

    /// How it fares.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Since when.
    #[must_use]
    pub const fn since(&self) -> Instant {
        self.since
    }

    /// Which start that kvgate saw; 0 before the first.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Start of the present API process, Unix seconds, where said.
    #[must_use]
    pub const fn start_time(&self) -> Option<f64> {
        self.start_time
    }

    /// Several engines answer at this address in turn: start times say nothing then.
    #[must_use]
    pub const fn several(&self) -> bool {
        self.several
    }

    /// The learned load time.
    #[must_use]
    pub const fn load(&self) -> Option<Duration> {
        self.load
    }

    /// Since when connections have been refused without an answer between.
    #[must_use]
    pub const fn refused_since(&self) -> Option<Instant> {
        self.refused_since
    }

    /// When the last death was confirmed, while the engine has not come back.
    #[must_use]
    pub const fn died_at(&self) -> Option<Instant> {
        self.died_at
    }

    /// All time so far between a death and the engine's return.
    #[must_use]
    pub fn downtime(&self, now: Instant) -> Duration {
        self.downtime + self.died_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }

    /// The life after one more observation, and what changed by it.
    #[must_use]
    pub fn next(mut self, seen: Observation, now: Instant) -> (Self, Vec<Change>) {
        let mut changes = Changes::new();
        match seen {
            Observation::Scraped { start_time, generation_tokens, steps } => {
                self.answered(now, &mut changes);
                self.scraped(start_time, (generation_tokens, steps), now, &mut changes);
            }
            Observation::Health { ok } => {
                self.answered(now, &mut changes);
                self.healthy = ok;
                if ok {
                    if let Some(suspicion) = &mut self.suspicion {
                        suspicion.healthy |= suspicion.settled(now);
                    }
                } else {
                    self.seen_unready(now);
                    self.symptom(Symptom::HealthFailing, now, &mut changes);
                }
            }
            Observation::Models { served } => {
                self.answered(now, &mut changes);
                self.models_served |= served;
                if !served {
                    self.seen_unready(now);
                }
            }
            Observation::ConnectRefused => self.refused(now, &mut changes),
            Observation::Reset => self.symptom(Symptom::Reset, now, &mut changes),
            Observation::DeadAnswer => self.symptom(Symptom::DeadAnswer, now, &mut changes),
            Observation::Tick => {}
        }
        self.settle(now, &mut changes);
        (self, changes)
    }

    fn enter(&mut self, state: State, now: Instant) {
        if self.state != state {
            (self.state, self.since) = (state, now);
        }
    }

    /// The beginning of a load, where it is one.
    fn seen_unready(&mut self, now: Instant) {
        if !self.state.serves() {
            self.unready_since.get_or_insert(now);
        }
    }

    /// Something answered: a process is there.
    fn answered(&mut self, now: Instant, changes: &mut Changes) {
        self.refused_since = None;
        if self.incarnation == 0 || (self.gone && !self.state.serves()) {
            self.started(now, changes);
        }
    }

    fn refused(&mut self, now: Instant, changes: &mut Changes) {
        let since = *self.refused_since.get_or_insert(now);
        self.healthy = false;
        self.seen_unready(now);
        match self.state {
            State::Connecting => self.enter(State::Loading, now),
            // A process that was seen loading is gone: the next one to answer is another.
            State::Loading => self.gone |= self.incarnation > 0,
            State::Down => self.gone = true,
            State::Ready | State::Suspect => {
                self.symptom(Symptom::ConnectRefused, now, changes);
                if now.saturating_duration_since(since) >= STILL_REFUSED {
                    self.symptom(Symptom::StillRefused, now, changes);
                }
            }
        }
    }

    fn scraped(
        &mut self,
        start_time: Option<f64>,
        (generation, steps): (Option<f64>, Option<f64>),
        now: Instant,
        changes: &mut Changes,
    ) {
        let start_time = start_time.filter(|s| s.is_finite());
        match (self.start_time, start_time) {
            (Some(known), Some(said)) if (known - said).abs() >= SAME_START => {
                self.another_start(known, said, now, changes);
            }
            (None, Some(said)) => self.start_time = Some(said),
            _ => {
                let back =
                    |old: Option<f64>, new: Option<f64>| matches!((old, new), (Some(o), Some(n)) if n < o);
                if !self.several && (back(self.generation, generation) || back(self.steps, steps)) {
                    self.symptom(Symptom::CountersBack, now, changes);
                }
                self.same_after_death = true;
                if let Some(suspicion) = &mut self.suspicion {
                    suspicion.same_start = true;
                }
            }
        }
        self.generation = generation.or(self.generation);
        self.steps = steps.or(self.steps);
    }

    fn another_start(&mut self, known: f64, said: f64, now: Instant, changes: &mut Changes) {
        let seen_before = self.old_starts.iter().any(|old| (old - said).abs() < SAME_START);
        if self.state.serves() && (self.several || seen_before || said < known) {
            // Two processes that answer in turn, not a restart: no clock runs backwards.
            self.several = true;
            if let Some(suspicion) = &mut self.suspicion {
                suspicion.same_start = true;
            }
            return;
        }
        if self.state.serves() {
            self.symptom(Symptom::StartChanged, now, changes);
            // It answers already: how long it loaded was not seen.
            self.unready_since = None;
        }
        self.started(now, changes);
        self.start_time = Some(said);
    }

    /// A new process: nothing of the old one holds.
    fn started(&mut self, now: Instant, changes: &mut Changes) {
        self.incarnation += 1;
        if let Some(old) = self.start_time.take() {
            self.old_starts.push(old);
        }
        self.old_starts.drain(..self.old_starts.len().saturating_sub(STARTS));
        (self.generation, self.steps) = (None, None);
        (self.gone, self.healthy, self.models_served) = (false, false, false);
        self.suspicion = None;
        self.enter(State::Loading, now);
        changes.push(Change::Started { incarnation: self.incarnation });
    }

    /// Notes a symptom of an engine that serves; two kinds are a death.
    fn symptom(&mut self, symptom: Symptom, now: Instant, changes: &mut Changes) {
        if !self.state.serves() {
            return;
        }
        if self.suspicion.is_none() {
            changes.push(Change::Suspected { by: symptom.label() });
            self.enter(State::Suspect, now);
        }
        let suspicion = self.suspicion.get_or_insert(Suspicion::new(now));
        (suspicion.same_start, suspicion.healthy) = (false, false);
        suspicion.forget(now);
        match suspicion.symptoms.iter_mut().find(|(s, _)| *s == symptom) {
            Some((_, at)) => *at = now,
            None => suspicion.symptoms.push((symptom, now)),
        }
        if let Some(confirmed_by) = suspicion.confirmed() {
            let suspected_at = suspicion.since;
            changes.push(Change::Died { suspected_at, at: now, confirmed_by, incarnation: self.incarnation });
            self.died(now);
        }
    }

    fn died(&mut self, now: Instant) {
        self.suspicion = None;
        self.gone = self.refused_since.is_some();
        (self.healthy, self.models_served) = (false, false);
        (self.died_at, self.unready_since) = (Some(now), Some(now));
        self.same_after_death = false;
        self.enter(State::Down, now);
    }

    /// Draws the conclusions that several observations allow together.
    fn settle(&mut self, now: Instant, changes: &mut Changes) {
        match self.state {
            State::Suspect => {
                let knows_start = self.start_time.is_some();
                if self.suspicion.as_mut().is_some_and(|s| s.cleared(knows_start, now)) {
                    self.suspicion = None;
                    self.enter(State::Ready, now);
                    changes.push(Change::Cleared);
                }
            }
            State::Loading if self.healthy && self.models_served => self.ready(now, changes),
            State::Down if self.healthy && self.models_served && self.came_back(now) => {
                if self.start_time.is_none() {
                    // Nothing shows that it is the old process: an engine that died does not recover.
                    self.started(now, changes);
                }
                self.ready(now, changes);
            }
            _ => {}
        }
    }

    /// Whether an engine that answers well after its death is back, and is not merely about to show
    /// another start time, which is a start and no recovery.
    fn came_back(&self, now: Instant) -> bool {
        let since = self.died_at.map_or(WINDOW, |at| now.saturating_duration_since(at));
        let known = self.start_time.is_none() || self.same_after_death || since >= WINDOW;
        since >= SETTLE && known
    }

    fn ready(&mut self, now: Instant, changes: &mut Changes) {
        let began = self.unready_since.take();
        // A process that recovered has loaded nothing.
        let load = began.filter(|_| self.state == State::Loading).map(|at| now.saturating_duration_since(at));
        self.load = load.or(self.load);
        let away = self.died_at.take().map(|at| now.saturating_duration_since(at));
        self.downtime += away.unwrap_or_default();
        self.enter(State::Ready, now);
        changes.push(Change::Ready { load, away });
    }
}

impl Suspicion {
    const fn new(now: Instant) -> Self {
        Self { since: now, symptoms: Vec::new(), same_start: false, healthy: false }
    }

    fn forget(&mut self, now: Instant) {
        self.symptoms.retain(|(_, at)| now.saturating_duration_since(*at) < WINDOW);
        if self.symptoms.is_empty() {
            self.since = now;
        }
    }

    /// What confirms a death, where that is enough.
    fn confirmed(&self) -> Option<Vec<&'static str>> {
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
    fn settled(&self, now: Instant) -> bool {
        let only_hints = self.symptoms.iter().all(|(s, _)| *s == Symptom::Reset);
        let settle = if only_hints { Duration::ZERO } else { SETTLE };
        self.symptoms.iter().all(|(_, at)| now.saturating_duration_since(*at) >= settle)
    }

    /// Whether it was nothing: the engine answers well, as the same process, after the last symptom;
    /// or every symptom is too old to count.
    fn cleared(&mut self, knows_start: bool, now: Instant) -> bool {
        self.forget(now);
        self.symptoms.is_empty() || (self.healthy && (self.same_start || !knows_start))
    }
}

#[cfg(test)]
mod tests;
