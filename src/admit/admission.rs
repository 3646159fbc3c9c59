//! Queue and books as one state machine with time handed in: arrivals, tokens, ends, scrapes and
//! ticks go in, admissions and evictions come out. No clock, no lock, no task: `gate.rs` has those.

use std::time::Duration;

use tokio::time::Instant;

use crate::request::{Priority, Tokens};

use super::appointments::{Appointments, LONGEST};
use super::capacity::{Books, Candidate, HeldBy, Outlook, Verdict};
use super::forecast::Forecast;
use super::queue::{Queue, Waiter};
use super::rejection::{Rejection, Unavailable};
use super::settings::Settings;
use super::signals::Signals;

/// A request is refused on arrival where its predicted wait is over this share of its longest one: a
/// prediction is some 10 % off, and to wait for nothing is worse than to be told at once.
const ON_ARRIVAL: f64 = 0.85;
/// And evicted where it is over this multiple of what is left of it.
const IN_QUEUE: f64 = 1.3;
/// How often the queue is looked through for those that cannot make it.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What a refused client is told while the pace is unknown, and by how much more each further one.
const BLIND: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(250));
/// Who returns so much before its place was told less than the truth, because of the longest time.
const EARLY: Duration = Duration::from_secs(10);
/// What a client is told while the engine is away and nobody knows for how long.
const AWAY: Duration = Duration::from_secs(5);

/// What a request asks of the gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// Prompt tokens of all prompts together (0 where nobody counted).
    pub prompt: Tokens,
    /// Prompt tokens of the longest prompt.
    pub longest: Tokens,
    /// The asked output cap of one sequence.
    pub max_output: Option<Tokens>,
    /// Sequences the engine will hold, at least 1.
    pub sequences: u64,
    /// Whether tokens will be seen as they come.
    pub stream: bool,
    /// Bytes of the body that wait with it.
    pub body_bytes: u64,
    /// How long it may wait in the queue.
    pub max_wait: Duration,
    /// Time from now to the first token after which the answer is worth nothing, where there is one.
    pub ttft: Option<Duration>,
    /// Whose it is: any number that is the same for all of one tenant's requests.
    pub tenant: u64,
    /// Whether somebody waits for it.
    pub priority: Priority,
}

/// The answer to an arrival.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrival {
    /// It may go.
    Admitted,
    /// It waits; an [`Action`] will name it.
    Queued,
    /// It is turned away.
    Refused(Rejection),
}

/// What is to be done with a request that was queued.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// It may go: it is in the books.
    Admit {
        /// The request.
        id: u64,
        /// How long it waited.
        waited: Duration,
    },
    /// It is turned away: it is in no book any more.
    Evict {
        /// The request.
        id: u64,
        /// Why.
        why: Rejection,
    },
}

/// The state machine.
#[derive(Debug, Clone)]
pub struct Admission {
    /// What is in flight.
    pub books: Books,
    queue: Queue,
    queue_limit: usize,
    signals: Signals,
    life: Option<u64>,
    forecast: Forecast,
    appointments: Appointments,
    draining: bool,
    looked: Option<Instant>,
    held_by: Option<HeldBy>,
    random: u64,
}

impl Admission {
    /// Empty books, nothing known of the engine. `seed` spreads what refused clients are told.
    #[must_use]
    pub fn new(settings: &Settings, seed: u64) -> Self {
        let queue = &settings.queue;
        Self {
            books: Books::new(settings.capacity.clone()),
            queue: Queue::new(queue.requests, queue.bytes),
            queue_limit: queue.requests,
            signals: Signals::default(),
            life: None,
            forecast: Forecast::default(),
            appointments: Appointments::new(queue.appointments),
            draining: false,
            looked: None,
            held_by: None,
            random: seed | 1,
        }
    }

    /// Requests that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Bytes that wait.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queue.bytes()
    }

    /// What holds the first in line, where one waits.
    #[must_use]
    pub fn held_by(&self) -> Option<HeldBy> {
        self.held_by.filter(|_| !self.queue.is_empty())
    }

    /// Refused clients that are expected back.
    #[must_use]
    pub fn expected_back(&self) -> usize {
        self.appointments.len()
    }

    /// A request arrives.
    pub fn arrive(&mut self, id: u64, ask: &Ask, now: Instant) -> Arrival {
        let asked = self.candidate(ask);
        if let Err(refused) = self.open() {
            return Arrival::Refused(refused);
        }
        self.appointments.expire(now);
        let kept = self.appointments.keep(&asked, now);
        if self.queue.is_empty() {
            match Outlook::new(&self.books, &self.signals, now, false).decide(&asked) {
                Verdict::Admit(_) => {
                    self.books.admit(id, asked, now);
                    self.forecast.admitted(&asked, now);
                    return Arrival::Admitted;
                }
                Verdict::Hold { gate, .. } => self.held_by = Some(gate),
            }
        }
        if kept.is_some() {
            self.forecast.outdated();
        }
        if !self.queue.has_place(ask.body_bytes) {
            let retry_after = self.told(asked, now);
            let queued = self.queue.len();
            return Arrival::Refused(Rejection::QueueFull { queued, limit: self.queue_limit, retry_after });
        }
        let parts = (&self.books, &self.queue, &self.signals);
        let predicted = self.forecast.wait(&asked, parts, now);
        let mut wait = predicted.map(|(_, wait)| wait);
        if kept.is_some_and(|kept| kept.place > now + EARLY) {
            // It was told the longest time that may be told, which is before its place: those that
            // were promised an earlier one must not find it taken.
            wait = self.forecast.place(&asked, parts, (&self.appointments, false), now);
        }
        if let Some(predicted) = wait.filter(|wait| *wait > ask.max_wait.mul_f64(ON_ARRIVAL)) {
            let (retry_after, deadline) = (self.told(asked, now), ask.max_wait);
            return Arrival::Refused(Rejection::WaitTooLong { predicted, deadline, retry_after });
        }
        self.forecast.queued(&asked, now);
        self.queue.push(Waiter {
            id,
            asked,
            bytes: ask.body_bytes,
            since: now,
            deadline: now + ask.max_wait,
            predicted: predicted.map(|(raw, _)| raw),
        });
        Arrival::Queued
    }

    /// Admits from the front of the queue while it fits, and evicts those whose deadline passed or
    /// cannot be met any more. Call it after anything that frees room, and on a tick.
    pub fn advance(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Err(why) = self.open() {
            while let Some(waiter) = self.queue.pop() {
                actions.push(Action::Evict { id: waiter.id, why: why.clone() });
            }
            return actions;
        }
        if self.queue.is_empty() {
            return actions;
        }
        self.evict_late(now, &mut actions);
        let mut outlook = Outlook::new(&self.books, &self.signals, now, false);
        while let Some(asked) = self.queue.front().map(|waiter| waiter.asked) {
            // What is known of lengths may have changed since it came.
            let asked = self.books.candidate(asked.prompt, asked.cap, asked.sequences, asked.stream);
            match outlook.decide(&asked) {
                Verdict::Admit(_) => {
                    let Some(waiter) = self.queue.pop() else { break };
                    outlook.add(&asked);
                    self.admit(waiter, asked, now, &mut actions);
                }
                Verdict::Hold { gate, .. } => {
                    self.held_by = Some(gate);
                    break;
                }
            }
        }
        actions
    }

    /// Lets everything in the queue go, whatever the books say (the gate was switched off).
    pub fn release(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(waiter) = self.queue.pop() {
            let asked = waiter.asked;
            self.admit(waiter, asked, now, &mut actions);
        }
        actions
    }

    /// A request leaves: from the queue or from the books, wherever it is; false where it was in
    /// neither (it was evicted, or the engine that held it is gone).
    pub fn leave(&mut self, id: u64, now: Instant) -> bool {
        self.books.leave(id, now) || self.queue.remove(id).is_some()
    }

    /// Evicts one request if it still waits: its own clock says that its deadline passed.
    pub fn give_up(&mut self, id: u64, now: Instant) -> Option<Rejection> {
        let waiter = self.queue.remove(id)?;
        Some(self.passed(&waiter, now))
    }

    /// An answer ended by itself: teaches lengths and pace. `output` is over all sequences.
    pub fn completed(
        &mut self,
        id: Option<u64>,
        (cap, sequences): (Option<Tokens>, u64),
        output: Tokens,
        now: Instant,
    ) {
        if output > Tokens::ZERO {
            self.books.predictor.learn(cap, Tokens(output.get() / sequences.max(1)));
            if let Some(id) = id {
                self.books.completed(id, output.get(), now);
            }
        }
    }

    /// A scrape, or the news that there was none.
    pub fn signals(&mut self, signals: Signals, now: Instant) {
        if self.life.replace(signals.incarnation).is_some_and(|life| life != signals.incarnation) {
            self.books.clear();
        }
        self.books.scraped(&signals, now);
        self.signals = signals;
        self.forecast.outdated();
    }

    /// The engine is gone: nothing is in flight any more, and [`Admission::advance`] evicts all that
    /// wait. The next signals that say ready open the gate again.
    pub fn engine_gone(&mut self, retry_after: Option<Duration>) {
        self.books.clear();
        self.signals.state_ready = false;
        self.signals.retry_after = retry_after;
        self.signals.fresh = false;
        self.appointments.clear();
        self.forecast.outdated();
    }

    /// No request is admitted any more; what is in flight ends by itself.
    pub const fn drain(&mut self) {
        self.draining = true;
    }

    pub(super) fn candidate(&self, ask: &Ask) -> Candidate {
        let sequences = ask.sequences.max(1);
        // The prompt of one sequence: the longest is an upper bound of the mean over prompts.
        let prompt = if sequences == 1 { ask.prompt.max(ask.longest) } else { ask.longest };
        self.books.candidate(prompt.get(), ask.max_output, sequences, ask.stream)
    }

    /// Whether the gate is open at all.
    fn open(&self) -> Result<(), Rejection> {
        if self.draining {
            return Err(Rejection::Draining { retry_after: AWAY });
        }
        if !self.signals.state_ready {
            let known = self.signals.retry_after;
            let why = if known.is_some() { Unavailable::Loading } else { Unavailable::Down };
            let retry_after = known.unwrap_or(AWAY).clamp(Duration::from_secs(1), LONGEST);
            return Err(Rejection::EngineUnavailable { retry_after, why });
        }
        Ok(())
    }

    fn admit(&mut self, waiter: Waiter, asked: Candidate, now: Instant, actions: &mut Vec<Action>) {
        let waited = now.saturating_duration_since(waiter.since);
        if let Some(predicted) = waiter.predicted {
            self.forecast.learn(predicted, waited.as_secs_f64());
        }
        self.books.admit(waiter.id, asked, now);
        actions.push(Action::Admit { id: waiter.id, waited });
    }

    fn evict_late(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let passed: Vec<u64> = self.queue.iter().filter(|w| w.deadline <= now).map(|w| w.id).collect();
        for id in passed {
            if let Some(why) = self.give_up(id, now) {
                actions.push(Action::Evict { id, why });
            }
        }
        // A look costs some microseconds for each request, under the gate's lock.
        let every = LOOK_EVERY + Duration::from_micros(500) * (self.books.len() + self.queue.len()) as u32;
        if self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < every) {
            return;
        }
        self.looked = Some(now);
        let parts = (&self.books, &mut self.queue, &self.signals);
        let hopeless = self.forecast.hopeless(parts, (ON_ARRIVAL, IN_QUEUE), now);
        if hopeless.is_empty() {
            return;
        }
        // All leave before the first is told when to come back: none of them is in another's way.
        let leave = |(id, wait)| Some((self.queue.remove(id)?, wait));
        let evicted: Vec<_> = hopeless.into_iter().filter_map(leave).collect();
        self.forecast.outdated();
        for (waiter, predicted) in evicted {
            let deadline = waiter.deadline.saturating_duration_since(now);
            let retry_after = self.told(waiter.asked, now);
            let why = Rejection::WaitTooLong { predicted, deadline, retry_after };
            actions.push(Action::Evict { id: waiter.id, why });
        }
    }

    fn passed(&mut self, waiter: &Waiter, now: Instant) -> Rejection {
        let waited = now.saturating_duration_since(waiter.since);
        Rejection::DeadlinePassed { waited, retry_after: self.told(waiter.asked, now) }
    }

    /// What a refused client is told, and the appointment that goes with it.
    fn told(&mut self, asked: Candidate, now: Instant) -> Duration {
        let parts = (&self.books, &self.queue, &self.signals);
        let place = self.forecast.place(&asked, parts, (&self.appointments, true), now);
        let blind = || BLIND.0 + BLIND.1 * self.appointments.len() as u32;
        let wait = place.unwrap_or_else(blind);
        let jitter = self.jitter();
        self.appointments.make(asked, wait, jitter, now)
    }

    /// A number in −1…1 (xorshift64: spreads clients, decides nothing).
    fn jitter(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % 2001) as f64 / 1000.0 - 1.0
    }
}
