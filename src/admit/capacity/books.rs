//! What is in flight, and what it will come to.

mod scraped;

use std::time::Duration;

use indexmap::IndexMap;
use tokio::time::Instant;

use crate::admit::predict::{Kind, Predictor};
use crate::admit::prefix::Prefixes;
use crate::admit::shares::Shares;
use crate::request::{Priority, Tokens, Trail};

use super::CapacitySettings;
use super::flight::{Candidate, Flight, draw};
use super::measured::Measured;
use super::pace::Pace;
use super::prefill::Prefill;
use super::seats::Seats;
use super::stalls::{Stalls, Stream};
use super::timeline::Job;

/// Bounds of what a request may claim, so that no sum overflows: tokens of a sequence, sequences.
const MOST_TOKENS: u64 = 1 << 32;
const MOST_SEQUENCES: u64 = 1 << 16;
/// Where these quantiles of a length differ, it is a matter of chance.
const LOW: f64 = 0.05;
const HIGH: f64 = 0.95;
const TWO_TO_32: f64 = 4_294_967_296.0;
/// The quantile of what is left of an answer that a stream's budget of inter-token latency is reckoned with: a
/// short one has less to spend.
const SHORT: f64 = 0.3;
/// Tokens after which it is asked again how long an answer will be.
const NEWS: u64 = 16;

/// All that is known of the engine's load.
#[derive(Debug, Clone)]
pub struct Books {
    pub(super) settings: CapacitySettings,
    pub(super) flights: IndexMap<u64, Flight>,
    /// Sequences of all flights.
    sequences: u64,
    /// Tokens reserved for all flights; wide enough for any number of them.
    reserved: u128,
    pub(super) measured: Measured,
    pub(super) seats: Seats,
    /// The engine's pace.
    pub pace: Pace,
    /// Output lengths.
    pub predictor: Predictor,
    /// Prompts that the engine has before it.
    pub prefill: Prefill,
    /// Gaps between tokens.
    pub stalls: Stalls,
    /// What each tenant has had.
    pub shares: Shares,
    /// Beginnings of prompts that the engine has seen.
    pub prefixes: Prefixes,
    /// Tokens of the pool and of a block, once known in this life.
    pub(super) pool: Option<(u64, u64)>,
    pub(super) ranks: u64,
    taken: Option<Instant>,
    /// The most sequences of ours that were seen to run at once in this life.
    pub(super) proven: u64,
    /// Sequence-seconds in flight since the last scrape, up to a moment.
    occupied: f64,
    occupied_at: Option<Instant>,
    /// Seconds in which anything was in flight.
    busy: f64,
    /// Those and the engine's steps, at the last scrape.
    at_scrape: Option<(f64, f64)>,
}

/// What a request held in the engine whose answer broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokenOff {
    /// Its sequences.
    pub sequences: u64,
    /// Tokens of its prompt, where that had no first token yet.
    pub unproven: Option<u64>,
}

impl Books {
    /// Empty books.
    #[must_use]
    pub fn new(settings: CapacitySettings) -> Self {
        let predictor = Predictor::new(Tokens(settings.default_output_tokens));
        Self {
            settings,
            flights: IndexMap::new(),
            sequences: 0,
            reserved: 0,
            measured: Measured::default(),
            seats: Seats::default(),
            pace: Pace::default(),
            predictor,
            prefill: Prefill::default(),
            stalls: Stalls::default(),
            shares: Shares::default(),
            prefixes: Prefixes::default(),
            pool: None,
            ranks: 1,
            taken: None,
            proven: 0,
            occupied: 0.0,
            occupied_at: None,
            busy: 0.0,
            at_scrape: None,
        }
    }

    /// What a request in flight holds in the engine; `None` where it is not in flight.
    #[must_use]
    pub fn held(&self, id: u64) -> Option<BrokenOff> {
        let sequences = self.flights.get(&id)?.asked.sequences;
        Some(BrokenOff { sequences, unproven: self.prefill.unproven_of(id) })
    }

    /// Other settings from now on; what is in flight keeps what was reserved for it, and what was learned stays.
    pub fn reload(&mut self, settings: CapacitySettings) {
        self.predictor.assume(Tokens(settings.default_output_tokens));
        self.settings = settings;
    }

    /// The candidate that request `id` is, by what is known of output lengths.
    #[must_use]
    pub fn candidate(
        &self,
        id: u64,
        kind: Kind,
        (sequences, stream, priority): (u64, bool, Priority),
    ) -> Candidate {
        let cap = kind.cap.map(|cap| cap.min(Tokens(MOST_TOKENS)));
        let kind = Kind { prompt: kind.prompt.min(MOST_TOKENS), cap, ..kind };
        let mut candidate = Candidate {
            kind,
            sequences: sequences.clamp(1, MOST_SEQUENCES),
            stream,
            priority,
            output: 0,
            plan: 0,
            likely: self.predictor.mean(&kind).get(),
            draw: draw(id),
            doubt: false,
            cached: 0,
        };
        self.estimate(&mut candidate, 0);
        candidate
    }

    /// Says how long an answer will be that has generated so many tokens.
    fn estimate(&self, asked: &mut Candidate, generated: u64) {
        if let Some(cap) = asked.kind.cap.filter(|_| self.settings.reserve_declared) {
            (asked.output, asked.plan, asked.doubt) = (cap.get(), cap.get(), false);
            return;
        }
        let total = |quantile: f64| {
            let left = self.predictor.remaining(&asked.kind, Tokens(generated), quantile);
            generated.saturating_add(left.get())
        };
        asked.output = total(self.settings.output_quantile);
        asked.doubt = self.predictor.knows(&asked.kind) && total(LOW) < total(HIGH);
        asked.plan = if asked.doubt { total(f64::from(asked.draw) / TWO_TO_32) } else { asked.output };
    }

    /// Prompt tokens of one that begins so that the engine will likely find in its prefix cache.
    #[must_use]
    pub fn cached(&self, trail: &Trail, prompt: u64) -> u64 {
        self.prefixes.found(trail, prompt, self.pool.map_or(0, |(tokens, _)| tokens))
    }

    /// The prompt of one that begins so goes to the engine.
    pub fn begins(&mut self, trail: &Trail, prompt: u64) {
        self.prefixes.sent(trail, prompt, self.pool.map_or(0, |(tokens, _)| tokens));
    }

    /// Requests in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Sequences in flight.
    #[must_use]
    pub const fn sequences(&self) -> u64 {
        self.sequences
    }

    /// Seconds per token of one sequence while the engine is as full as it was seen to get.
    #[must_use]
    pub fn busy_step(&self, now: Instant) -> Option<f64> {
        self.pace.step_with(self.sequences.max(self.proven), now)
    }

    /// Tokens reserved by what is in flight.
    #[must_use]
    pub fn reserved(&self) -> Tokens {
        Tokens(u64::try_from(self.reserved).unwrap_or(u64::MAX))
    }

    /// Tokens of the usable pool, where known.
    #[must_use]
    pub fn pool(&self) -> Option<Tokens> {
        self.pool.map(|(tokens, _)| Tokens(tokens))
    }

    /// The learned number of sequences that the engine runs at once.
    #[must_use]
    pub fn seats(&self) -> Option<u64> {
        self.seats.learned()
    }

    /// A request goes to the engine.
    pub fn admit(&mut self, id: u64, asked: Candidate, now: Instant) {
        self.occupy(now);
        let flight = Flight::new(asked, self.busy, now);
        self.prefill.sent(id, asked.prompt(), asked.stream, now);
        self.shares.sent(asked.kind.tenant, asked.kind.prompt.saturating_mul(asked.sequences));
        self.sequences += asked.sequences;
        self.reserved += u128::from(asked.reserved().get());
        if let Some(replaced) = self.flights.insert(id, flight) {
            self.sequences -= replaced.asked.sequences;
            self.reserved -= u128::from(replaced.asked.reserved().get());
        }
    }

    /// Its first token came; false where that was known, or says nothing: a plain answer shows its first token
    /// with its last.
    pub fn first_token(&mut self, id: u64, now: Instant) -> bool {
        let Some(flight) = self.flights.get_mut(&id).filter(|f| f.asked.stream && f.first.is_none()) else {
            return false;
        };
        flight.first = Some(now);
        flight.last = Some(now);
        flight.generated = flight.generated.max(1);
        self.shares.generated(flight.asked.kind.tenant, flight.asked.sequences);
        self.prefill.first_token(id, now);
        self.pace.first_token(now.saturating_duration_since(flight.admitted), now);
        let begun = self.flights.values().filter(|flight| flight.first.is_some());
        self.proven = self.proven.max(begun.map(|flight| flight.asked.sequences).sum());
        true
    }

    /// A stream has generated `total` tokens over all its sequences, the last of them now. A plain answer
    /// reports all at once, which says nothing.
    pub fn tokens(&mut self, id: u64, total: u64, now: Instant) {
        if let Some((tokens, gap)) = self.generated(id, total, now) {
            self.pace.streamed(tokens, gap, self.sequences, now);
            self.stalls.gap(gap.as_secs_f64() / tokens as f64, now);
        }
    }

    /// The same, where it is not known when the last of them came: the engine's own count is another than
    /// that of the events.
    pub fn corrected(&mut self, id: u64, total: u64, now: Instant) {
        self.generated(id, total, now);
    }

    /// Notes what a stream has generated; how many tokens of a sequence are new, and the time since those
    /// before.
    fn generated(&mut self, id: u64, total: u64, now: Instant) -> Option<(u64, Duration)> {
        let begins = self.flights.get(&id)?.first.is_none();
        self.first_token(id, now);
        let flight = self.flights.get_mut(&id).filter(|flight| flight.asked.stream)?;
        let each = (total / flight.asked.sequences).min(MOST_TOKENS);
        let tokens = each.checked_sub(flight.generated).filter(|tokens| *tokens > 0)?;
        // What comes with the first token says nothing of the gap between two.
        let last = flight.last.replace(now).filter(|_| !begins);
        let news = each / NEWS != flight.generated / NEWS || each >= flight.asked.plan;
        flight.generated = each;
        self.shares.generated(flight.asked.kind.tenant, tokens.saturating_mul(flight.asked.sequences));
        if news {
            self.renew(id, each);
        }
        Some((tokens, now.saturating_duration_since(last?)))
    }

    /// Says anew how long an answer will be that has come so far.
    fn renew(&mut self, id: u64, generated: u64) {
        let Some(mut flight) = self.flights.get(&id).copied() else { return };
        self.reserved -= u128::from(flight.asked.reserved().get());
        self.estimate(&mut flight.asked, generated);
        self.reserved += u128::from(flight.asked.reserved().get());
        flight.left = self.predictor.remaining(&flight.asked.kind, Tokens(generated), SHORT).get();
        self.flights.insert(id, flight);
    }

    /// The streams of those for whom somebody waits, as the budget of inter-token latency sees them.
    pub fn streams(&self, now: Instant) -> impl Iterator<Item = Stream> + '_ {
        let waited = self
            .flights
            .values()
            .filter(|flight| flight.asked.priority == Priority::Interactive && flight.asked.stream);
        waited.map(move |flight| {
            let since = |first| now.saturating_duration_since(first).as_secs_f64();
            Stream { generated: flight.generated, left: flight.left, since_first: flight.first.map(since) }
        })
    }

    /// An answer ended by itself with `output` tokens over all its sequences.
    pub fn completed(&mut self, id: u64, output: u64, now: Instant) {
        let Some(flight) = self.flights.get(&id) else { return };
        let each = output / flight.asked.sequences;
        if each > 0 && !flight.asked.stream {
            self.prefill.completed(flight.asked.kind.prompt);
            self.shares.charged(flight.asked.kind.tenant, output);
            self.pace.completed_plain(each, &flight.began(), now);
        }
    }

    /// It is no longer in the engine; false if it was not in the books.
    pub fn leave(&mut self, id: u64, now: Instant) -> bool {
        self.occupy(now);
        let Some(flight) = self.flights.swap_remove(&id) else { return false };
        self.prefill.left(id, now);
        self.shares.left(flight.asked.kind.tenant, flight.held());
        self.sequences -= flight.asked.sequences;
        self.reserved -= u128::from(flight.asked.reserved().get());
        self.seats.finished(flight.asked.sequences);
        true
    }

    /// The engine that held all this is gone.
    pub fn clear(&mut self) {
        self.flights.clear();
        self.prefill.clear();
        self.shares.clear();
        self.prefixes.clear();
        self.sequences = 0;
        self.reserved = 0;
        self.measured = Measured::default();
        self.seats = Seats::default();
        self.pool = None;
        self.taken = None;
        self.proven = 0;
    }

    /// Counts the sequence-seconds up to now.
    fn occupy(&mut self, now: Instant) {
        if let Some(before) = self.occupied_at.replace(now) {
            let seconds = now.saturating_duration_since(before).as_secs_f64();
            self.occupied += self.sequences() as f64 * seconds;
            self.busy += if self.flights.is_empty() { 0.0 } else { seconds };
        }
    }

    /// Tokens that each sequence of a flight has generated: at least, at most.
    fn progress(&self, flight: &Flight, now: Instant) -> (u64, u64) {
        // A plan that is a bound is not outlived; one that is a draw is, by some.
        let bound = if flight.asked.doubt { MOST_TOKENS } else { flight.asked.plan };
        let total = flight.asked.kind.cap.map_or(bound, |cap| bound.min(cap.get())).max(flight.generated);
        if flight.asked.stream {
            let ahead = if flight.first.is_some() { self.settings.slack_steps } else { 0 };
            return (flight.generated, (flight.generated + ahead).min(total));
        }
        let Some((least, most)) = self.pace.progress(&flight.began(), now) else {
            return (flight.generated, total);
        };
        let most = (most as u64).saturating_add(self.settings.slack_steps);
        ((least as u64).min(total).max(flight.generated), most.min(total).max(flight.generated))
    }

    /// The job that a flight still is; for a forecast it ends when it likely does.
    pub(super) fn job(&self, flight: &Flight, now: Instant, likely: bool) -> Job {
        let (least, most) = self.progress(flight, now);
        let mut asked = flight.asked;
        if asked.doubt && !asked.stream && self.pace.step(now).is_none() {
            // Nobody knows how far it is: it may be one of the longer ones.
            asked.plan = asked.output;
        } else if asked.doubt && least >= asked.plan {
            // It outlived its draw, where nobody saw its tokens: it is one of the longer ones.
            self.estimate(&mut asked, least);
        }
        let total = if !likely {
            asked.plan
        } else if least < asked.likely {
            asked.likely
        } else {
            least + self.predictor.remaining(&asked.kind, Tokens(least), 0.5).get()
        };
        let (total, most) = (total.max(least), most.min(total.max(least)));
        Job {
            start: 0,
            end: (total - least).saturating_add(self.settings.slack_steps),
            tokens: asked.kind.prompt.saturating_add(most),
            most: asked.kind.prompt.saturating_add(total),
            sequences: asked.sequences,
            measured: self.taken.is_some_and(|taken| flight.first.is_some_and(|first| first <= taken)),
        }
    }
}
