//! The verdict: would this request, now, ever make the engine run out of KV blocks?

use tokio::time::Instant;

use crate::admit::signals::Signals;

use super::books::Books;
use super::flight::Candidate;
use super::timeline::{Job, Room, Timeline};

/// Share of the pool that one leaves free who should: batch, and a tenant that holds far more than its
/// share. Choosing the right tenant next does not help where another's long streams hold the memory.
const HEADROOM: f64 = 0.08;
/// Blocks of a pool whose size is unknown: never the limit.
const ENDLESS: u64 = u64::MAX / 4;

/// Why a request may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Nothing else is in flight.
    Alone,
    /// Its peak and that of all in flight stay within the pool.
    Fits,
    /// The pool is unknown and few are in flight.
    PoolUnknown,
    /// The rule to compare with lets it.
    Policy,
}

/// What holds a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// The KV pool would be exceeded before it ends.
    Kv,
    /// All seats of the engine are taken, or requests wait there.
    Seats,
    /// The pool is unknown and enough are in flight.
    PoolUnknown,
    /// The engine has as much prefill before it as may wait there.
    Prefill,
    /// Its prefill would hold streams up beyond their budget.
    Latency,
    /// The engine is filled slowly after a start.
    Start,
    /// Fewer may run at once since a death by too many.
    Cut,
    /// The rule to compare with.
    Policy,
}

impl Gate {
    /// The word in logs and on the state page.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Seats => "seats",
            Self::PoolUnknown => "pool_unknown",
            Self::Prefill => "prefill",
            Self::Latency => "latency",
            Self::Start => "start",
            Self::Cut => "cut",
            Self::Policy => "policy",
        }
    }
}

/// The decision on one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may go.
    Admit(Why),
    /// It must wait.
    Hold {
        /// For what.
        gate: Gate,
        /// What it needs: KV blocks at its end, sequences, prompt tokens, or streams that it would harm.
        needed: u64,
        /// What is free of that, at the peak to come.
        free: u64,
    },
}

/// Decides on one request: pure.
#[must_use]
pub fn decide(books: &Books, signals: &Signals, now: Instant, candidate: &Candidate) -> Verdict {
    Outlook::new(books, signals, now, false).decide(candidate, 0)
}

/// Whose a job is.
#[derive(Debug, Clone, Copy)]
struct Whose {
    id: u64,
    /// Whether it may wait for a seat in the engine.
    waits: bool,
    /// Its part of [`Room::doubt`].
    doubt: f64,
}

/// The books as they are at one moment, ready for several decisions in a row.
#[derive(Debug, Clone)]
pub struct Outlook {
    timeline: Timeline,
    /// For each job of the timeline.
    whose: Vec<Whose>,
    room: Room,
    block: u64,
    pool_known: bool,
    /// Blocks that one rank holds at most: what one sequence can have.
    per_rank: u64,
    slack: u64,
    likely: bool,
    /// Blocks that all hold at their own ends, together: an upper bound of any peak.
    bound: u64,
    /// When those that run end, in order.
    ends: Vec<u64>,
    /// Requests that may wait in the engine for one of these ends.
    waiting: usize,
    /// Sequences that were seen to run at once.
    proven: u64,
    /// Square of the deviations that are left free.
    caution: f64,
    /// Blocks that one is held below who should leave some to the others.
    headroom: u64,
}

impl Outlook {
    /// The outlook now. `likely` makes a forecast: each answer ends when it likely does; without it
    /// each holds what is reserved for it.
    #[must_use]
    pub fn new(books: &Books, signals: &Signals, now: Instant, likely: bool) -> Self {
        let (tokens, block) = books.pool.unwrap_or((ENDLESS, 1));
        let pool_known = books.pool.is_some();
        let measured = &books.measured;
        let share = books.settings.pool_share.clamp(0.1, 1.0) * measured.trust;
        let usable = if pool_known { (tokens / block) as f64 * share } else { ENDLESS as f64 };
        let caution = books.settings.caution * books.settings.caution;
        let (jobs, whose, ends) = jobs(books, now, (likely, caution, block));
        let alive = jobs.iter().filter(|job| job.measured).map(|job| job.sequences).sum();
        let most = if signals.fresh && !likely {
            books.seats.most(now)
        } else {
            books.seats.learned().unwrap_or(u64::MAX)
        };
        let unknown = if pool_known { u64::MAX } else { books.settings.unknown_pool_inflight.max(1) };
        let foreign = if signals.fresh { measured.foreign } else { 0.0 };
        let room = Room {
            blocks: (usable - foreign).max(0.0) as u64,
            // Those that ended since the scrape took their share of the sharing with them.
            shared: shared(measured.shared, measured.sharers, alive),
            measured: alive,
            seats: most.min(unknown),
            doubt: 0.0,
        };
        let bound = jobs.iter().map(|job| job.sequences.saturating_mul(job.most.div_ceil(block))).sum();
        let timeline = Timeline::new(jobs, block);
        let waiting = whose.iter().filter(|whose| whose.waits).count();
        let room = Room { doubt: whose.iter().map(|whose| whose.doubt).sum(), ..room };
        let headroom = if pool_known { (usable * HEADROOM) as u64 } else { 0 };
        let per_rank = (usable as u64 / books.ranks).max(1);
        let slack = books.settings.slack_steps;
        let proven = books.proven;
        Self {
            timeline,
            whose,
            room,
            block,
            pool_known,
            per_rank,
            slack,
            likely,
            bound,
            ends,
            waiting,
            proven,
            caution,
            headroom,
        }
    }

    /// The verdict on one more request, of one who should leave `modest` times a little free for the others.
    #[must_use]
    pub fn decide(&self, candidate: &Candidate, modest: u64) -> Verdict {
        if self.timeline.is_empty() {
            return Verdict::Admit(Why::Alone);
        }
        let running = self.timeline.sequences(0);
        if running.saturating_add(candidate.sequences) > self.room.seats {
            let gate = if self.pool_known { Gate::Seats } else { Gate::PoolUnknown };
            let free = self.room.seats.saturating_sub(running);
            return Verdict::Hold { gate, needed: candidate.sequences, free };
        }
        if !self.pool_known {
            return Verdict::Admit(Why::PoolUnknown);
        }
        let job = self.job(candidate);
        let each = job.most.div_ceil(self.block);
        let needed = each.saturating_mul(job.sequences);
        let room = Room {
            blocks: self.room.blocks.saturating_sub(self.headroom.saturating_mul(modest)),
            doubt: self.room.doubt + self.caution * candidate.doubt(self.block),
            ..self.room
        };
        let within = room.doubt == 0.0 && self.bound.saturating_add(needed) <= room.blocks;
        if each <= self.per_rank && (within || self.timeline.fits(&job, &room)) {
            return Verdict::Admit(Why::Fits);
        }
        let free = room.blocks.saturating_sub(self.timeline.peak());
        Verdict::Hold { gate: Gate::Kv, needed, free }
    }

    /// Takes an admitted request into the outlook.
    pub fn add(&mut self, id: u64, candidate: &Candidate) {
        let job = self.job(candidate);
        let doubt = self.caution * candidate.doubt(self.block);
        self.waiting += 1;
        self.room.doubt += doubt;
        self.insert(job, Whose { id, waits: true, doubt });
    }

    /// A request left: its blocks are free from now on, and its seat; O(n).
    pub fn remove(&mut self, id: u64) {
        let Some(place) = self.whose.iter().position(|whose| whose.id == id) else { return };
        let whose = self.whose.swap_remove(place);
        let job = self.timeline.remove(place);
        self.bound = self.bound.saturating_sub(job.sequences.saturating_mul(job.most.div_ceil(self.block)));
        self.room.doubt = (self.room.doubt - whose.doubt).max(0.0);
        if whose.waits {
            self.waiting -= 1;
        } else if let Ok(end) = self.ends.binary_search(&job.end) {
            self.ends.remove(end);
        }
    }

    /// Takes a request into the forecast that begins at `step`.
    pub fn add_at(&mut self, candidate: &Candidate, step: u64) {
        let nobody = Whose { id: u64::MAX, waits: false, doubt: 0.0 };
        self.insert(candidate.job(self.slack, self.likely).at(step), nobody);
    }

    /// The job that a request would be now. Where it is not known that the engine has a seat for it,
    /// it may begin only when one of those that run has ended: a short one is then still there at a
    /// peak before which it would have been gone.
    fn job(&self, candidate: &Candidate) -> Job {
        let mut job = candidate.job(self.slack, self.likely);
        let seated = self.timeline.sequences(0).saturating_add(job.sequences) <= self.proven;
        if let Some(last) = self.ends.len().checked_sub(1).filter(|_| !seated && !self.likely) {
            job.end = job.end.saturating_add(self.ends[self.waiting.min(last)]);
        }
        job
    }

    fn insert(&mut self, job: Job, whose: Whose) {
        self.bound = self.bound.saturating_add(job.sequences.saturating_mul(job.most.div_ceil(self.block)));
        self.timeline.add(job);
        self.whose.push(whose);
    }

    /// The first step, not before `from`, at which a request would get in.
    #[must_use]
    pub fn earliest(&self, candidate: &Candidate, from: u64) -> u64 {
        self.timeline.earliest(&candidate.job(self.slack, self.likely), from, &self.room)
    }
}

/// The jobs in flight, whose they are, and the ends of those that run.
///
/// A stream that has not begun may wait for a seat in the engine: the first of them until the first
/// of those that run has ended, the next until the second. It then holds as much as if it had begun
/// now, for as long as if it had begun then.
fn jobs(
    books: &Books,
    now: Instant,
    (likely, caution, block): (bool, f64, u64),
) -> (Vec<Job>, Vec<Whose>, Vec<u64>) {
    let mut jobs = Vec::with_capacity(books.flights.len());
    let mut whose = Vec::with_capacity(books.flights.len());
    let (mut waiting, mut ends) = (Vec::new(), Vec::with_capacity(books.flights.len()));
    for (id, flight) in &books.flights {
        let job = books.job(flight, now, likely);
        let waits = flight.asked.stream && flight.first.is_none();
        if waits {
            waiting.push((flight.admitted, jobs.len()));
        } else {
            ends.push(job.end);
        }
        jobs.push(job);
        let doubt = if likely { 0.0 } else { caution * flight.asked.doubt(block) };
        whose.push(Whose { id: *id, waits, doubt });
    }
    ends.sort_unstable();
    if let Some(last) = ends.len().checked_sub(1).filter(|_| !likely) {
        waiting.sort_unstable();
        for (rank, (_, place)) in waiting.iter().enumerate() {
            jobs[*place].end = jobs[*place].end.saturating_add(ends[rank.min(last)]);
        }
    }
    (jobs, whose, ends)
}

/// What is still shared when of `sharers` sequences `alive` are left.
fn shared(shared: f64, sharers: u64, alive: u64) -> f64 {
    if sharers < 2 || alive < 2 {
        return 0.0;
    }
    shared * ((alive - 1) as f64 / (sharers - 1) as f64).min(1.0)
}
