//! Queue and books as one state machine with time handed in: arrivals, tokens, ends, scrapes and
//! ticks go in, admissions and evictions come out. No clock, no lock, no task: `gate.rs` has those.

mod late;
mod words;

pub use words::{Action, Arrival, Ask};

use std::time::Duration;

use tokio::time::Instant;

use crate::request::{Priority, Tokens, Trail};

use super::appointments::{Appointments, LONGEST};
use super::capacity::{Books, BrokenOff, Candidate, HeldBy, Outlook, Policy, Verdict};
use super::forecast::{Forecast, Known};
use super::gates::{self, Gates, Look};
use super::predict::Kind;
use super::queue::{Queue, Waiter, cost};
use super::recovery::{Last, Recovery};
use super::rejection::{Held, Rejection, Unavailable};
use super::settings::Settings;
use super::signals::Signals;

/// Who returns so much before its place was told less than the truth, because of the longest time.
const EARLY: Duration = Duration::from_secs(10);
/// Share of the engine that batch gets where it waits, whatever else does.
const BATCH_FLOOR: f64 = 0.05;
/// What is left of the memory of who was served with each request.
const SERVED_MEMORY: f64 = 0.99;
/// An outlook is kept for so long for each request in flight, and so long at most: to make one takes about 0.1 µs for
/// each (`cargo bench --bench admit`). Meanwhile it knows who came and who left, and not how far each has got.
const KEPT: (Duration, Duration) = (Duration::from_micros(60), Duration::from_millis(100));
/// How long nobody goes to an engine whose answer broke, unless a scrape says that it lives.
const SUSPECTED: Duration = Duration::from_secs(2);
/// For how long it is kept what broken answers held (a death is confirmed some time after: an engine whose core has died
/// answers scrapes for a moment longer), and of how many: more than an engine runs.
const BROKEN: (Duration, usize) = (Duration::from_secs(10), 4096);
/// What a client is told while the engine is away and nobody knows for how long.
const AWAY: Duration = Duration::from_secs(5);

/// The outlook, and of when it is.
#[derive(Debug, Clone)]
struct Kept {
    outlook: Outlook,
    made: Instant,
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
    /// When an answer broke as if the engine had died.
    suspected: Option<Instant>,
    /// What those held whose answers broke of late, and when they did.
    broken: Vec<(Instant, BrokenOff)>,
    kept: Option<Kept>,
    looked: Option<Instant>,
    swept: Option<Instant>,
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
            suspected: None,
            broken: Vec::new(),
            kept: None,
            looked: None,
            swept: None,
            held: None,
            served: [0.0; 2],
            random: seed | 1,
        }
    }

    /// Other settings from now on. Who waits keeps the place and the deadline, who is in flight what is reserved, and
    /// all that was learned stays. Call [`Admission::advance`] after: there may be room now.
    pub fn reload(&mut self, settings: &Settings) {
        let queue = &settings.queue;
        self.books.reload(settings.capacity.clone());
        self.books.shares.reweigh(settings.fairness.weights());
        self.gates = Gates::new(settings);
        self.queue.bound(queue.requests, queue.bytes);
        self.queue_limit = queue.requests;
        self.appointments.bound(queue.appointments);
        self.kept = None;
        self.forecast.outdated();
    }

    /// An earlier run has learned from deaths to let no longer prompt through.
    pub fn recall_guard(&mut self, tokens: u64) {
        self.recovery.recall_guard(tokens);
    }

    /// Forgets the longest prompt that deaths have taught to let through.
    pub const fn forget_guard(&mut self) {
        self.recovery.forget_guard();
    }

    /// Ends the cut that followed a death by too many.
    pub const fn forget_cut(&mut self) {
        self.recovery.forget_cut();
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
        let promised = self.appointments.keep(&asked, now);
        if (self.queue.is_empty() || self.gates.policy == Policy::None) && !self.is_suspected(now) {
            let mut kept = self.outlook(now);
            let verdict = self.gate(&kept.outlook, &asked, ask.ttft, false, now);
            if matches!(verdict, Verdict::Admit(_)) {
                kept.outlook.add(id, &asked);
            }
            self.kept = Some(kept);
            match verdict {
                Verdict::Admit(_) => {
                    self.sends(id, asked, ask.trail.as_deref(), now);
                    self.forecast.admitted(&asked, now);
                    return Arrival::Admitted;
                }
                Verdict::Hold { gate, needed, free } => self.held = Some(Held { by: gate, needed, free }),
            }
        }
        if promised.is_some() {
            self.forecast.outdated();
        }
        if let Some(refused) = self.no_place(&asked, ask, now) {
            return Arrival::Refused(refused);
        }
        let prefill = self.held.is_some_and(|held| matches!(held.by, HeldBy::Prefill | HeldBy::Latency));
        let known = Known { books: &self.books, queue: &self.queue, signals: &self.signals, prefill };
        let predicted = self.forecast.wait(&asked, known, now);
        let mut wait = predicted.map(|(_, wait)| wait);
        if promised.is_some_and(|promised| promised.place > now + EARLY) {
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
        if self.is_suspected(now) {
            return actions;
        }
        let mut kept = self.outlook(now);
        while let Some((id, asked)) = self.next(&kept.outlook, now) {
            let Some(waiter) = self.take(id) else { break };
            kept.outlook.add(id, &asked);
            self.admit(waiter, asked, now, &mut actions);
        }
        self.kept = Some(kept);
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
            let cached = self.cached(waiter.trail.as_deref(), kind.prompt);
            let asked = self.books.candidate(id, kind, (sequences, stream, priority)).crediting(cached);
            let slack = ttft.unwrap_or(deadline.saturating_duration_since(since));
            let own = self.books.prefill.cost(asked.prompt());
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

    /// The kept outlook, or a new one where that is too old for its size.
    fn outlook(&mut self, now: Instant) -> Kept {
        let age = KEPT.1.min(KEPT.0.saturating_mul(u32::try_from(self.books.len()).unwrap_or(u32::MAX)));
        let young = |kept: &Kept| now.saturating_duration_since(kept.made) < age;
        self.kept.take().filter(young).unwrap_or_else(|| Kept {
            outlook: Outlook::new(&self.books, &self.signals, now, false),
            made: now,
        })
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
        if !self.books.leave(id, now) {
            return self.take(id).is_some();
        }
        if let Some(kept) = &mut self.kept {
            kept.outlook.remove(id);
        }
        true
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
        let lives = |since: &Instant| signals.fresh && signals.taken.is_some_and(|taken| taken > *since);
        self.suspected = self.suspected.filter(|since| !lives(since));
        self.kept = None;
        self.signals = signals;
        self.forecast.outdated();
    }

    /// A request's answer broke as if the engine had died: nobody goes there until a scrape says that it lives, or for
    /// two seconds. The places that are given back meanwhile are those of a dead engine, and what was in them is what
    /// it died with, should it turn out to be dead.
    pub fn suspect(&mut self, id: u64, now: Instant) {
        self.suspected = Some(now);
        self.broken.retain(|(since, _)| now.saturating_duration_since(*since) < BROKEN.0);
        if self.broken.len() < BROKEN.1 {
            self.broken.extend(self.books.held(id).map(|held| (now, held)));
        }
    }

    fn is_suspected(&self, now: Instant) -> bool {
        self.suspected.is_some_and(|since| now.saturating_duration_since(since) < SUSPECTED)
    }

    /// The engine is gone: nothing is in flight any more, and [`Admission::advance`] evicts all that
    /// wait. The next signals that say ready open the gate again.
    pub fn engine_gone(&mut self, retry_after: Option<Duration>, now: Instant) {
        // Some had been given back by then, as their answers broke.
        let mut broken = std::mem::take(&mut self.broken);
        broken.retain(|(since, _)| now.saturating_duration_since(*since) < BROKEN.0);
        let last = Last {
            sequences: self.books.sequences() + broken.iter().map(|(_, one)| one.sequences).sum::<u64>(),
            unproven: self
                .books
                .prefill
                .unproven()
                .chain(broken.iter().filter_map(|(_, one)| one.unproven))
                .collect(),
            proven: self.books.prefill.proven(),
            kv_usage: self.signals.kv_usage,
            waiting: self.signals.waiting,
        };
        self.recovery.died(&last, now);
        self.suspected = None;
        self.books.clear();
        self.kept = None;
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
        // The rules to compare with know no tenants.
        if self.gates.policy != Policy::Kvgate {
            let kind = Kind { tenant: 0, ..ask.kind() };
            return self.books.candidate(id, kind, (ask.sequences, ask.stream, Priority::Interactive));
        }
        let priority = self.gates.priority(ask.tenant, ask.priority);
        let kind = ask.kind();
        let cached = self.cached(ask.trail.as_deref(), kind.prompt);
        self.books.candidate(id, kind, (ask.sequences, ask.stream, priority)).crediting(cached)
    }

    fn cached(&self, trail: Option<&Trail>, prompt: u64) -> u64 {
        trail.map_or(0, |trail| self.books.cached(trail, prompt))
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
            trail: ask.trail.clone(),
        });
    }

    fn sends(&mut self, id: u64, asked: Candidate, trail: Option<&Trail>, now: Instant) {
        self.books.admit(id, asked, now);
        if let Some(trail) = trail {
            self.books.begins(trail, asked.kind.prompt);
        }
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
        self.sends(waiter.id, asked, waiter.trail.as_deref(), now);
        actions.push(Action::Admit { id: waiter.id, waited });
    }
}
