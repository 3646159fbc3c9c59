//! Who is turned away, and what they are told.

use std::time::Duration;

use tokio::time::Instant;

use crate::admit::capacity::{Candidate, HeldBy, Policy};
use crate::admit::forecast::Known;
use crate::admit::gates;
use crate::admit::queue::Waiter;
use crate::admit::rejection::Rejection;

use super::{Action, Admission, Ask};

/// A request is refused on arrival where its predicted wait is over this share of its longest one: a
/// prediction is some 10 % off, and to wait for nothing is worse than to be told at once.
const ON_ARRIVAL: f64 = 0.85;
/// And evicted where it is over this multiple of what is left of it.
const IN_QUEUE: f64 = 1.3;
/// How often the queue is looked through for those that cannot make it.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A queue longer than this is looked through for first tokens that would come too late once in so long.
const SWEPT: (usize, Duration) = (128, Duration::from_millis(10));
/// What a refused client is told while the pace is unknown, and by how much more each further one.
const BLIND: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(250));

impl Admission {
    /// The queue is full, or there is none.
    pub(super) fn no_place(&mut self, asked: &Candidate, ask: &Ask, now: Instant) -> Option<Rejection> {
        if self.gates.policy != Policy::PrefillCap && self.queue.has_place(ask.body_bytes) {
            return None;
        }
        let retry_after = self.told(*asked, now);
        let (queued, limit) = (self.queue.len(), self.queue_limit);
        Some(Rejection::QueueFull { queued, limit, held: self.held, retry_after })
    }

    /// Whether a request would be too late if it waited so long: its wait, and what it may be.
    pub(super) fn too_late(
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
        let engine = self.books.prefill.ttft(asked.prompt(), now);
        let hopeless = gates::hopeless(Duration::ZERO, ttft, engine);
        let slack = ttft.as_secs_f64() - engine;
        let mine = self.queue.of(asked.kind.tenant, asked.priority);
        let far = mine >= gates::OWN_QUEUED && wait.as_secs_f64() > gates::FAR * slack;
        (hopeless || far).then(|| (wait + Duration::from_secs_f64(engine.clamp(0.0, 3600.0)), ttft))
    }

    pub(super) fn evict_late(&mut self, now: Instant, actions: &mut Vec<Action>) {
        for id in self.queue.passed(now) {
            if let Some(why) = self.give_up(id, now) {
                actions.push(Action::Evict { id, why });
            }
        }
        // A long queue is not looked through at each arrival.
        let swept = self.swept.map_or(SWEPT.1, |swept| now.saturating_duration_since(swept));
        if self.queue.len() > SWEPT.0 && swept < SWEPT.1 {
            return;
        }
        self.swept = Some(now);
        let mut evicted = self.first_tokens_missed(now);
        // A look costs some microseconds for each request, under the gate's lock.
        let every = LOOK_EVERY + Duration::from_micros(500) * (self.books.len() + self.queue.len()) as u32;
        let due = self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= every);
        if due && self.gates.policy == Policy::Kvgate {
            self.looked = Some(now);
            let prefill = self.held.is_some_and(|held| matches!(held.by, HeldBy::Prefill | HeldBy::Latency));
            let known = Known { books: &self.books, queue: &self.queue, signals: &self.signals, prefill };
            let fates = self.forecast.hopeless(known, (ON_ARRIVAL, IN_QUEUE), now);
            fates.predicted.into_iter().for_each(|(id, seconds)| self.queue.predict(id, seconds));
            let found = fates.late.into_iter().filter_map(|(id, wait)| {
                let waiter = self.queue.get(id)?;
                let waited = now.saturating_duration_since(waiter.since);
                Some((id, waited + wait, waiter.deadline.saturating_duration_since(waiter.since)))
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
        if !self.queue.hurried() {
            return Vec::new();
        }
        let missed = |waiter: &Waiter, standing: Instant| {
            let ttft = waiter.ttft?;
            let waited = now.saturating_duration_since(waiter.since);
            let stood = now.saturating_duration_since(standing);
            let engine = self.books.prefill.ttft(waiter.asked.prompt(), now);
            let late = self.gates.misses(waited, stood, ttft, engine);
            late.then(|| (waiter.id, waited + Duration::from_secs_f64(engine.clamp(0.0, 3600.0)), ttft))
        };
        self.queue.iter().filter_map(|(waiter, standing)| missed(waiter, standing)).collect()
    }

    pub(super) fn passed(&mut self, waiter: &Waiter, now: Instant) -> Rejection {
        let waited = now.saturating_duration_since(waiter.since);
        Rejection::DeadlinePassed { waited, held: self.held, retry_after: self.told(waiter.asked, now) }
    }

    /// What a refused client is told, and the appointment that goes with it.
    pub(super) fn told(&mut self, asked: Candidate, now: Instant) -> Duration {
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
