//! The fold from observations to the engine's life. Pure: no clock, no IO.
//!
//! A transport error is a hint: an engine that closes idle connections is not dead, and one that is
//! slow to answer is busy. A death needs two independent kinds of confirmation within [`WINDOW`].
//! From outside, an engine that was asked to stop cannot be told from one that died.

mod suspicion;
mod words;

use std::time::Duration;

use tokio::time::Instant;

use self::suspicion::Suspicion;
pub use self::words::{Change, Observation, State, Symptom};

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
                // A page that says no start time tells nothing about one that was known.
                let same = start_time.is_some() || self.start_time.is_none();
                self.same_after_death |= same;
                if let Some(suspicion) = &mut self.suspicion {
                    suspicion.same_start |= same;
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

#[cfg(test)]
mod tests;
