//! What a scrape says against the books.

use std::time::Duration;

use tokio::time::Instant;

use crate::admit::capacity::flight::{Candidate, Flight};
use crate::admit::capacity::measured::Believed;
use crate::admit::capacity::pace::Scrape;
use crate::admit::capacity::seats::Look;
use crate::admit::predict::Kind;
use crate::admit::signals::Signals;
use crate::request::Tokens;

use super::Books;

/// Bound of a block's size, tokens.
const MOST_BLOCK: u64 = 1 << 16;
/// A plain answer is taken for begun after this.
const PLAIN_BEGUN_SECONDS: f64 = 2.0;

impl Books {
    /// A scrape.
    pub fn scraped(&mut self, signals: &Signals, now: Instant) {
        if let Some(pool) = signals.pool.filter(|pool| *pool > Tokens::ZERO) {
            self.pool = Some((pool.get().min(u64::MAX / 4), signals.block.clamp(1, MOST_BLOCK)));
        }
        self.ranks = u64::from(signals.ranks.max(1));
        let taken = signals.taken.unwrap_or(now);
        if !signals.fresh || self.taken.is_some_and(|before| taken <= before) {
            return;
        }
        self.prefixes.hits(signals.prefix_hits);
        self.occupy(now);
        let before = self.taken.replace(taken);
        let since = before.map(|before| taken.saturating_duration_since(before));
        let decoding = before.is_some_and(|before| self.decoding(before, taken));
        let occupied = std::mem::take(&mut self.occupied);
        // Ours is all that runs, and all of it runs.
        let all_ours = signals.waiting < 1.0 && (signals.running - self.sequences() as f64).abs() < 0.5;
        let ours = since.map(|since| occupied / since.as_secs_f64()).filter(|ours| ours.is_finite());
        let (running, rate) = (signals.running, signals.generation_rate);
        self.pace.scraped(&Scrape { running, ours, all_ours, rate, decoding }, taken);
        self.settle();
        if let Some((tokens, block)) = self.pool {
            let believed = self.believed(taken, now, block);
            self.measured.looked(signals, tokens / block, believed);
        }
        self.prefill.pass(taken);
        let ours = self.flights.iter().filter(|(_, flight)| flight.admitted <= taken);
        let (ours, unstarted) = ours.fold((0, 0), |(all, unstarted), (id, flight)| {
            let (sequences, waits) = (flight.asked.sequences, self.prefill.has(*id));
            (all + sequences, unstarted + if waits { sequences } else { 0 })
        });
        self.proven = self.proven.max(ours.min(signals.running.max(0.0) as u64));
        let look = Look {
            waiting: signals.waiting.max(0.0).round() as u64,
            running: signals.running.max(0.0).round() as u64,
            ours,
            unstarted,
            kv_room: self.kv_room(signals),
            step: self.pace.step(now),
            taken,
        };
        self.seats.looked(look);
    }

    /// Whether all that was in flight between two scrapes had begun its answer before the first.
    fn decoding(&self, from: Instant, to: Instant) -> bool {
        let begun = |flight: &Flight| {
            let plain = || {
                flight.admitted
                    + Duration::from_secs_f64(PLAIN_BEGUN_SECONDS.max(self.pace.lead()).min(3600.0))
            };
            flight.first.or_else(|| (!flight.asked.stream).then(plain)).is_some_and(|at| at <= from)
        };
        self.flights.values().filter(|flight| flight.admitted <= to).all(begun)
    }

    /// Finds the steps at which those began that were admitted since the last scrape: as if the steps
    /// between two scrapes were even over the time in which there was work.
    fn settle(&mut self) {
        let Some((steps, _)) = self.pace.counted() else { return };
        let Some((before, busy_before)) = self.at_scrape.replace((steps, self.busy)) else { return };
        let busy = self.busy - busy_before;
        for flight in self.flights.values_mut().filter(|flight| flight.clock.is_none()) {
            let share = if busy > 0.0 { ((flight.busy - busy_before) / busy).clamp(0.0, 1.0) } else { 0.0 };
            flight.clock = Some(before + share * (steps - before));
        }
    }

    /// Whether the engine had KV room for the largest prompt in flight and a block for each sequence.
    fn kv_room(&self, signals: &Signals) -> bool {
        let (Some((tokens, block)), Some(usage)) = (self.pool, signals.kv_usage) else { return true };
        let largest =
            self.flights.values().map(|f| f.asked.sequences * f.asked.kind.prompt.div_ceil(block)).max();
        let free = (1.0 - usage.clamp(0.0, 1.0)) * (tokens / block) as f64;
        free >= largest.unwrap_or(0) as f64 + signals.running.max(0.0)
    }

    fn believed(&self, taken: Instant, now: Instant, block: u64) -> Believed {
        let mut believed = Believed::default();
        for flight in self.flights.values().filter(|flight| flight.admitted <= taken) {
            let (least, most) = self.progress(flight, now);
            let Candidate { kind: Kind { prompt, .. }, sequences, .. } = flight.asked;
            believed.most += sequences * (prompt + most + 1).div_ceil(block);
            let age = taken.saturating_duration_since(flight.admitted).as_secs_f64();
            let begun = flight.first.is_some_and(|first| first <= taken)
                || (!flight.asked.stream && age >= PLAIN_BEGUN_SECONDS);
            if begun {
                believed.least += sequences * (prompt + least).div_ceil(block);
                believed.begun += sequences;
            }
        }
        believed
    }
}
