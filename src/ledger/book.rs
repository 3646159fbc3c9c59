//! The requests in flight and the last that ended, in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::entry::{Arrival, Ending};
use super::record::{Flight, Record, unix_seconds};
use crate::request::{Phase, Shape, Tokens};

/// How many ended requests are remembered.
pub(super) const ENDED_KEPT: usize = 1024;

/// A moment, set at most once, as microseconds since arrival plus one; 0 is "not yet".
#[derive(Debug, Default)]
struct Mark(AtomicU64);

impl Mark {
    fn set(&self, since_arrival: Duration) {
        let micros = u64::try_from(since_arrival.as_micros()).unwrap_or(u64::MAX - 1);
        let _ = self.0.compare_exchange(0, micros.saturating_add(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn get(&self) -> Option<Duration> {
        self.0.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_micros)
    }
}

/// A number that may not be known yet.
#[derive(Debug)]
struct Known(AtomicU64);

impl Known {
    const UNKNOWN: u64 = u64::MAX;

    fn new(value: Option<u64>) -> Self {
        Self(AtomicU64::new(value.unwrap_or(Self::UNKNOWN)))
    }

    fn set(&self, value: u64) {
        self.0.store(value.min(Self::UNKNOWN - 1), Ordering::Relaxed);
    }

    fn get(&self) -> Option<u64> {
        let value = self.0.load(Ordering::Relaxed);
        (value != Self::UNKNOWN).then_some(value)
    }
}

/// One request, shared by its entry and the book; what changes are atomics, so that a token costs no lock.
#[derive(Debug)]
pub(super) struct Slot {
    seq: u64,
    who: Arrival,
    /// The features, once the body was read.
    shape: OnceLock<Shape>,
    arrived: Instant,
    arrived_at: SystemTime,
    prompt_tokens: Known,
    reserved: Known,
    counted: Mark,
    admitted: Mark,
    first_token: Mark,
    ended: Mark,
    output: AtomicU64,
    status: AtomicU16,
    ending: OnceLock<Ending>,
}

impl Slot {
    pub(super) fn id(&self) -> &str {
        self.who.id.as_str()
    }

    pub(super) fn shaped(&self, shape: Shape) {
        let _ = self.shape.set(shape);
    }

    pub(super) fn counted(&self, tokens: Tokens) {
        self.prompt_tokens.set(tokens.get());
        self.counted.set(self.arrived.elapsed());
    }

    pub(super) fn admit(&self, reserved: Tokens) {
        self.reserved.set(reserved.get());
        self.admitted.set(self.arrived.elapsed());
    }

    pub(super) fn was_admitted(&self) -> bool {
        self.admitted.get().is_some()
    }

    pub(super) fn first_token(&self) {
        self.first_token.set(self.arrived.elapsed());
    }

    pub(super) fn output(&self, so_far: Tokens) {
        self.output.fetch_max(so_far.get(), Ordering::Relaxed);
    }

    pub(super) fn answering(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    pub(super) fn status(&self) -> u16 {
        self.status.load(Ordering::Relaxed)
    }

    fn phase(&self) -> Phase {
        match (self.admitted.get(), self.first_token.get()) {
            (None, _) => Phase::Queued,
            (Some(_), None) => Phase::Prefill,
            (Some(_), Some(_)) => Phase::Decode,
        }
    }

    pub(super) fn record(&self) -> Record {
        let unix = |mark: &Mark| mark.get().map(|since| unix_seconds(self.arrived_at, since));
        let mut shape = self.shape.get().unwrap_or(&self.who.shape).clone();
        shape.prompt_tokens = self.prompt_tokens.get();
        Record {
            id: self.who.id.as_str().to_owned(),
            client_id: self.who.client_id.as_ref().map(|c| c.as_str().to_owned()),
            t_arrived: unix_seconds(self.arrived_at, Duration::ZERO),
            t_admitted: unix(&self.admitted),
            t_first_token: unix(&self.first_token),
            t_ended: unix(&self.ended),
            outcome: self.ending.get().map(|e| e.outcome),
            tenant: self.who.tenant.as_str().to_owned(),
            shape,
            output_tokens: self.output.load(Ordering::Relaxed),
            reserved_tokens: self.reserved.get(),
            phase: self.phase(),
        }
    }

    fn flight(&self) -> Flight {
        let at = |mark: &Mark| mark.get().map(|since| self.arrived + since);
        Flight {
            record: self.record(),
            arrived: self.arrived,
            admitted: at(&self.admitted),
            ended: at(&self.ended),
        }
    }

    /// Time in the queue: from the count (else the arrival) until it was sent (else until `total`).
    pub(super) fn queued(&self, total: Duration) -> Duration {
        let until = self.admitted.get().unwrap_or(total);
        until.saturating_sub(self.counted.get().unwrap_or_default())
    }

    pub(super) fn ttft(&self) -> Option<Duration> {
        self.first_token.get()
    }

    pub(super) fn total(&self) -> Duration {
        self.ended.get().unwrap_or_else(|| self.arrived.elapsed())
    }
}

#[derive(Debug, Default)]
struct Pages {
    live: BTreeMap<u64, Arc<Slot>>,
    ended: VecDeque<Arc<Slot>>,
}

/// All requests in flight, in order of arrival, and the last that ended.
#[derive(Debug, Default)]
pub(super) struct Book {
    next: AtomicU64,
    pages: Mutex<Pages>,
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arrive(&self, who: Arrival) -> Arc<Slot> {
        let slot = Arc::new(Slot {
            seq: self.next.fetch_add(1, Ordering::Relaxed),
            arrived: Instant::now(),
            arrived_at: SystemTime::now(),
            prompt_tokens: Known::new(who.shape.prompt_tokens),
            reserved: Known::new(None),
            counted: Mark::default(),
            admitted: Mark::default(),
            first_token: Mark::default(),
            ended: Mark::default(),
            output: AtomicU64::new(0),
            status: AtomicU16::new(0),
            ending: OnceLock::new(),
            shape: OnceLock::new(),
            who,
        });
        self.pages().live.insert(slot.seq, Arc::clone(&slot));
        slot
    }

    /// Ends a request: gone from those in flight and among the ended in one step, so that no reader
    /// misses it. A refusal is not remembered: a storm of them would push out what a crash report needs.
    pub(super) fn end(&self, slot: &Slot, ending: Ending) {
        let kept = ending.outcome != crate::request::Outcome::Rejected;
        slot.ended.set(slot.arrived.elapsed());
        let _ = slot.ending.set(ending);
        let mut pages = self.pages();
        let Some(slot) = pages.live.remove(&slot.seq) else { return };
        if kept {
            if pages.ended.len() == ENDED_KEPT {
                pages.ended.pop_front();
            }
            pages.ended.push_back(slot);
        }
    }

    /// Those sent to the engine whose answer has not ended.
    pub(super) fn sent(&self) -> Vec<Arc<Slot>> {
        self.pages().live.values().filter(|s| s.was_admitted()).map(Arc::clone).collect()
    }

    pub(super) fn in_flight(&self) -> Vec<Record> {
        let slots: Vec<_> = self.pages().live.values().map(Arc::clone).collect();
        slots.iter().map(|s| s.record()).collect()
    }

    pub(super) fn ended(&self) -> Vec<Record> {
        let slots: Vec<_> = self.pages().ended.iter().map(Arc::clone).collect();
        slots.iter().map(|s| s.record()).collect()
    }

    /// The remembered ended ones, then those in flight, as of one moment.
    pub(super) fn flights(&self) -> Vec<Flight> {
        let slots: Vec<_> = {
            let pages = self.pages();
            pages.ended.iter().chain(pages.live.values()).map(Arc::clone).collect()
        };
        slots.iter().map(|s| s.flight()).collect()
    }
}
