//! Queue and books as one state machine with time handed in: arrivals, tokens, ends, scrapes and
//! ticks go in, admissions and evictions come out. No clock, no lock, no task: `gate.rs` has those.

use std::time::Duration;

use tokio::time::Instant;

use crate::request::{Priority, Tokens};

use super::appointments::{Appointments, LONGEST};
use super::capacity::{Books, Candidate, HeldBy, Outlook, Policy, Verdict};
use super::forecast::{Forecast, Known};
use super::gates::{self, Gates, Look};
use super::predict::Kind;
use super::queue::{Queue, Waiter, cost};
use super::recovery::{Last, Recovery};
use super::rejection::{Held, Rejection, Unavailable};
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
/// Share of the engine that batch gets where it waits, whatever else does.
const BATCH_FLOOR: f64 = 0.05;
/// What is left of the memory of who was served with each request.
const SERVED_MEMORY: f64 = 0.99;
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
    gates: Gates,
    queue: Queue,
    queue_limit: usize,
    signals: Signals,
    life: Option<u64>,
    forecast: Forecast,
    appointments: Appointments,
    recovery: Recovery,
    draining: bool,
    looked: Option<Instant>,
    held: Option<Held>,
    /// Cost served of late, by priority.
    served: [f64; 2],
    random: u64,
}

impl Admission {
    /// Empty books, nothing known of the engine. `seed` spreads what refused clients are told.
    #[must_use]
    pub fn new(settings: &Settings, seed: u64) -> Self {
        let queue = &settings.queue;
        let mut books = Books::new(settings.capacity.clone());
        books.shares = settings.fairness.shares();
        Self {
            books,
            gates: Gates::new(settings),
            queue: Queue::new(queue.requests, queue.bytes),
            queue_limit: queue.requests,
            signals: Signals::default(),
            life: None,
            forecast: Forecast::default(),
            appointments: Appointments::new(queue.appointments),
            recovery: Recovery::default(),
            draining: false,
            looked: None,
            held: None,
            served: [0.0; 2],
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
    pub const fn queued_bytes(&self) -> u64 {
        self.queue.bytes()
    }

    /// What holds the first in line, where one waits.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        self.held.filter(|_| !self.queue.is_empty())
    }

    /// Refused clients that are expected back.
    #[must_use]
    pub fn expected_back(&self) -> usize {
        self.appointments.len()
    }

    /// The longest prompt that a death has taught to let through, tokens.
    #[must_use]
    pub const fn guard(&self) -> Option<u64> {
        self.recovery.guard()
    }

    /// Sequences that may be in flight since a death by too many; `None` where that is over.
    #[must_use]
    pub fn cut(&self, now: Instant) -> Option<u64> {
        self.recovery.cut_now(now)
    }

    /// A request arrives. One that is [`Arrival::Queued`] may be the first in line: [`Admission::advance`]
    /// says.
    pub fn arrive(&mut self, id: u64, ask: &Ask, now: Instant) -> Arrival {
        let asked = self.candidate(id, ask);
        if let Err(refused) = self.open() {
            return Arrival::Refused(refused);
        }
        self.appointments.expire(now);
        let kept = self.appointments.keep(&asked, now);
        if self.queue.is_empty() || self.gates.policy == Policy::None {
            match self.gate(&self.outlook(now), &asked, ask.ttft, false, now) {
                Verdict::Admit(_) => {
                    self.books.admit(id, asked, now);
                    self.forecast.admitted(&asked, now);
                    return Arrival::Admitted;
                }
                Verdict::Hold { gate, needed, free } => self.held = Some(Held { by: gate, needed, free }),
            }
        }
        if kept.is_some() {
            self.forecast.outdated();
        }
        if let Some(refused) = self.no_place(&asked, ask, now) {
            return Arrival::Refused(refused);
        }
        let prefill = self.held.is_some_and(|held| matches!(held.by, HeldBy::Prefill | HeldBy::Latency));
        let known = Known { books: &self.books, queue: &self.queue, signals: &self.signals, prefill };
        let predicted = self.forecast.wait(&asked, known, now);
        let mut wait = predicted.map(|(_, wait)| wait);
        if kept.is_some_and(|kept| kept.place > now + EARLY) {
            // It was told the longest time that may be told, which is before its place: those that
            // were promised an earlier one must not find it taken.
            wait = self.forecast.place(&asked, known, (&self.appointments, false), now);
        }
        let waits = wait.filter(|_| self.gates.policy == Policy::Kvgate);
        if let Some(late) = waits.and_then(|wait| self.too_late(&asked, ask, wait, now)) {
            let (predicted, deadline) = late;
            let (retry_after, held) = (self.told(asked, now), self.held);
            return Arrival::Refused(Rejection::WaitTooLong { predicted, deadline, held, retry_after });
        }
        self.join(id, asked, ask, predicted.map(|(raw, _)| raw), now);
        Arrival::Queued
    }

    /// Admits from the front of the queue while it fits, and evicts those whose deadline passed or
    /// cannot be met any more. Call it after anything that frees room, after an arrival that was queued, and
    /// on a tick.
    pub fn advance(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Err(why) = self.open() {
            while let Some(waiter) = self.pop() {
                actions.push(Action::Evict { id: waiter.id, why: why.clone() });
            }
            return actions;
        }
        self.forecast.look(!self.queue.is_empty(), now);
        if self.queue.is_empty() {
            return actions;
        }
        self.books.prefill.pass(now);
        self.evict_late(now, &mut actions);
        let mut outlook = self.outlook(now);
        while let Some((id, asked)) = self.next(&outlook, now) {
            let Some(waiter) = self.take(id) else { break };
            outlook.add(&asked);
            self.admit(waiter, asked, now, &mut actions);
        }
        actions
    }

    /// The first in line that may go now. One that is held is overtaken only where its own prompt is what
    /// holds it, and only until it has waited for long: what it needs can then drain.
    fn next(&mut self, outlook: &Outlook, now: Instant) -> Option<(u64, Candidate)> {
        let mut first = None;
        for id in self.queue.first(&self.books.shares, self.batch_is_due()) {
            let waiter = self.queue.get(id)?;
            let (since, ttft, deadline) = (waiter.since, waiter.ttft, waiter.deadline);
            // What is known of lengths may have changed since it came.
            let Candidate { kind, sequences, stream, priority, .. } = waiter.asked;
            let asked = self.books.candidate(id, kind, (sequences, stream, priority));
            let slack = ttft.unwrap_or(deadline.saturating_duration_since(since));
            let own = self.books.prefill.cost(kind.prompt as f64);
            let urgent = gates::urgent(now.saturating_duration_since(since), slack, own);
            match self.gate(outlook, &asked, ttft, urgent, now) {
                Verdict::Admit(_) => return Some((id, asked)),
                Verdict::Hold { gate, needed, free } => {
                    first.get_or_insert(Held { by: gate, needed, free });
                    if urgent || !matches!(gate, HeldBy::Prefill | HeldBy::Latency) {
                        break;
                    }
                }
            }
        }
        self.held = first.or(self.held);
        None
    }

    /// All gates, for one request.
    fn gate(
        &self,
        outlook: &Outlook,
        asked: &Candidate,
        ttft: Option<Duration>,
        urgent: bool,
        now: Instant,
    ) -> Verdict {
        let look =
            Look { books: &self.books, signals: &self.signals, recovery: &self.recovery, ttft, urgent, now };
        self.gates.decide(outlook, asked, &look)
    }

    fn outlook(&self, now: Instant) -> Outlook {
        Outlook::new(&self.books, &self.signals, now, false)
    }

    /// Whether batch waits and has had less than its floor.
    fn batch_is_due(&self) -> bool {
        let [interactive, batch] = self.served;
        self.queue.has(Priority::Batch) && batch < BATCH_FLOOR * (interactive + batch)
    }

    /// Lets everything in the queue go, whatever the books say (the gate was switched off).
    pub fn release(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(waiter) = self.pop() {
            let asked = waiter.asked;
            self.admit(waiter, asked, now, &mut actions);
        }
        actions
    }

    /// A request leaves: from the queue or from the books, wherever it is; false where it was in
    /// neither (it was evicted, or the engine that held it is gone).
    pub fn leave(&mut self, id: u64, now: Instant) -> bool {
        self.books.leave(id, now) || self.take(id).is_some()
    }

    /// Evicts one request if it still waits: its own clock says that its deadline passed.
    pub fn give_up(&mut self, id: u64, now: Instant) -> Option<Rejection> {
        let waiter = self.take(id)?;
        Some(self.passed(&waiter, now))
    }

    /// The first token of a request came.
    pub fn first_token(&mut self, id: u64, now: Instant) {
        if self.books.first_token(id, now) {
            self.recovery.began();
        }
    }

    /// An answer ended by itself: teaches lengths and pace. `output` is over all sequences.
    pub fn completed(
        &mut self,
        id: Option<u64>,
        (kind, sequences): (Kind, u64),
        output: Tokens,
        now: Instant,
    ) {
        if output > Tokens::ZERO {
            self.books.predictor.learn(&kind, Tokens(output.get() / sequences.max(1)));
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
    pub fn engine_gone(&mut self, retry_after: Option<Duration>, now: Instant) {
        let last = Last {
            sequences: self.books.sequences(),
            unproven: self.books.prefill.unproven().collect(),
            proven: self.books.prefill.proven(),
            kv_usage: self.signals.kv_usage,
            waiting: self.signals.waiting,
        };
        self.recovery.died(&last, now);
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

    pub(super) fn candidate(&self, id: u64, ask: &Ask) -> Candidate {
        let sequences = ask.sequences.max(1);
        // The prompt of one sequence: the longest is an upper bound of the mean over prompts.
        let prompt = if sequences == 1 { ask.prompt.max(ask.longest) } else { ask.longest };
        let kind = Kind { tenant: ask.tenant, prompt: prompt.get(), cap: ask.max_output };
        let priority = self.gates.priority(ask.tenant, ask.priority);
        self.books.candidate(id, kind, (sequences, ask.stream, priority))
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

    /// The queue is full, or there is none.
    fn no_place(&mut self, asked: &Candidate, ask: &Ask, now: Instant) -> Option<Rejection> {
        if self.gates.policy != Policy::PrefillCap && self.queue.has_place(ask.body_bytes) {
            return None;
        }
        let retry_after = self.told(*asked, now);
        let (queued, limit) = (self.queue.len(), self.queue_limit);
        Some(Rejection::QueueFull { queued, limit, held: self.held, retry_after })
    }

    /// Whether a request would be too late if it waited so long: its wait, and what it may be.
    fn too_late(
        &self,
        asked: &Candidate,
        ask: &Ask,
        wait: Duration,
        now: Instant,
    ) -> Option<(Duration, Duration)> {
        if wait > ask.max_wait.mul_f64(ON_ARRIVAL) {
            return Some((wait, ask.max_wait));
        }
        let ttft = ask.ttft?;
        let engine = self.books.prefill.ttft(asked.kind.prompt, now);
        let hopeless = gates::hopeless(Duration::ZERO, ttft, engine);
        let slack = ttft.as_secs_f64() - engine;
        let mine = self.queue.of(asked.kind.tenant, asked.priority);
        let far = mine >= gates::OWN_QUEUED && wait.as_secs_f64() > gates::FAR * slack;
        (hopeless || far).then(|| (wait + Duration::from_secs_f64(engine.clamp(0.0, 3600.0)), ttft))
    }

    fn join(&mut self, id: u64, asked: Candidate, ask: &Ask, predicted: Option<f64>, now: Instant) {
        let ahead = self.queue.ahead(&asked, &self.books.shares);
        self.forecast.queued(&asked, ahead, now);
        self.books.shares.queued(asked.kind.tenant);
        self.queue.push(Waiter {
            id,
            asked,
            bytes: ask.body_bytes,
            since: now,
            deadline: now + ask.max_wait,
            ttft: ask.ttft,
            predicted,
        });
    }

    fn take(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.queue.remove(id)?;
        self.books.shares.unqueued(waiter.asked.kind.tenant);
        Some(waiter)
    }

    fn pop(&mut self) -> Option<Waiter> {
        let waiter = self.queue.pop()?;
        self.books.shares.unqueued(waiter.asked.kind.tenant);
        Some(waiter)
    }

    fn admit(&mut self, waiter: Waiter, asked: Candidate, now: Instant, actions: &mut Vec<Action>) {
        let waited = now.saturating_duration_since(waiter.since);
        if let Some(predicted) = waiter.predicted {
            self.forecast.learn(predicted, waited.as_secs_f64());
        }
        self.served.iter_mut().for_each(|cost| *cost *= SERVED_MEMORY);
        self.served[asked.priority as usize] += cost(&asked);
        self.forecast.served(&asked);
        self.books.admit(waiter.id, asked, now);
        actions.push(Action::Admit { id: waiter.id, waited });
    }

    fn evict_late(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let late = |waiter: &Waiter| waiter.deadline <= now;
        let passed: Vec<u64> = self.queue.iter().filter(|(w, _)| late(w)).map(|(w, _)| w.id).collect();
        for id in passed {
            if let Some(why) = self.give_up(id, now) {
                actions.push(Action::Evict { id, why });
            }
        }
        let mut evicted = self.first_tokens_missed(now);
        // A look costs some microseconds for each request, under the gate's lock.
        let every = LOOK_EVERY + Duration::from_micros(500) * (self.books.len() + self.queue.len()) as u32;
        let due = self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= every);
        if due && self.gates.policy == Policy::Kvgate {
            self.looked = Some(now);
            let prefill = self.held.is_some_and(|held| matches!(held.by, HeldBy::Prefill | HeldBy::Latency));
            let known = Known { books: &self.books, queue: &self.queue, signals: &self.signals, prefill };
            let (hopeless, predicted) = self.forecast.hopeless(known, (ON_ARRIVAL, IN_QUEUE), now);
            predicted.into_iter().for_each(|(id, seconds)| self.queue.predict(id, seconds));
            let found = hopeless.into_iter().filter_map(|(id, wait)| {
                let deadline = self.queue.get(id)?.deadline.saturating_duration_since(now);
                Some((id, wait, deadline))
            });
            evicted.extend(found);
        }
        if evicted.is_empty() {
            return;
        }
        // All leave before the first is told when to come back: none of them is in another's way.
        let leave = |(id, wait, deadline)| Some((self.take(id)?, wait, deadline));
        let evicted: Vec<_> = evicted.into_iter().filter_map(leave).collect();
        self.forecast.outdated();
        for (waiter, predicted, deadline) in evicted {
            let (retry_after, held) = (self.told(waiter.asked, now), self.held);
            let why = Rejection::WaitTooLong { predicted, deadline, held, retry_after };
            actions.push(Action::Evict { id: waiter.id, why });
        }
    }

    /// Those whose first token would come too late even if they went now, or who stand in a line that
    /// does not shorten: ticket, what it would be, what it may be.
    fn first_tokens_missed(&self, now: Instant) -> Vec<(u64, Duration, Duration)> {
        let missed = |waiter: &Waiter, standing: Instant| {
            let ttft = waiter.ttft?;
            let waited = now.saturating_duration_since(waiter.since);
            let stood = now.saturating_duration_since(standing);
            let engine = self.books.prefill.ttft(waiter.asked.kind.prompt, now);
            let late = self.gates.misses(waited, stood, ttft, engine);
            late.then(|| (waiter.id, waited + Duration::from_secs_f64(engine.clamp(0.0, 3600.0)), ttft))
        };
        self.queue.iter().filter_map(|(waiter, standing)| missed(waiter, standing)).collect()
    }

    fn passed(&mut self, waiter: &Waiter, now: Instant) -> Rejection {
        let waited = now.saturating_duration_since(waiter.since);
        Rejection::DeadlinePassed { waited, held: self.held, retry_after: self.told(waiter.asked, now) }
    }

    /// What a refused client is told, and the appointment that goes with it.
    fn told(&mut self, asked: Candidate, now: Instant) -> Duration {
        let prefill = self.held.is_some_and(|held| matches!(held.by, HeldBy::Prefill | HeldBy::Latency));
        let known = Known { books: &self.books, queue: &self.queue, signals: &self.signals, prefill };
        let place = self.forecast.place(&asked, known, (&self.appointments, true), now);
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
