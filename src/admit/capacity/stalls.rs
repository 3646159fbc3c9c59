//! Whose tokens a prompt would hold up: the budget of inter-token latency.
//!
//! While the engine computes a prompt all streams stand still. A stream of n gaps has n times the
//! target to spend; one that has spent little can stand a long stall, one near its end none. So a
//! prompt is held where its prefill would push a stream over its target that is still within it, or
//! where many are over it already: then less must be let in, whatever this one would do.

use tokio::time::Instant;

/// Gaps that are kept.
const KEPT: usize = 1024;
/// How often the low quantile is looked for, seconds.
const LOOK_EVERY: f64 = 0.25;
/// What is left of the mean gap's memory with each look: some five seconds.
const MEMORY: f64 = 0.95;
/// Gaps from which on they are believed, and what is taken before, seconds.
const ENOUGH: usize = 16;
const UNKNOWN: f64 = 0.02;
/// Share of the target that is planned with: nobody knows how long an answer will be.
const PLANNED: f64 = 0.9;
/// A stream is taken for over that a little before it is.
const NEARLY: f64 = 0.95;

/// One stream as this file sees it, seconds.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    /// Tokens of each sequence that came.
    pub generated: u64,
    /// Tokens that likely come.
    pub left: u64,
    /// Since its first token; `None` before it.
    pub since_first: Option<f64>,
}

/// What a prompt would do to the streams.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Harm {
    /// Streams that it would push over the target.
    pub harmed: u64,
    /// Streams that end over the target as things are.
    pub over: u64,
    /// Streams looked at.
    pub all: u64,
}

/// Recent gaps between tokens.
#[derive(Debug, Clone, Default)]
pub struct Stalls {
    gaps: Vec<f32>,
    next: usize,
    low: Option<f64>,
    sum: f64,
    count: f64,
    looked: Option<Instant>,
}

impl Stalls {
    /// Tokens of a stream came, `gap` seconds each.
    pub fn gap(&mut self, gap: f64, now: Instant) {
        if self.gaps.len() < KEPT {
            self.gaps.push(gap as f32);
        } else {
            self.gaps[self.next] = gap as f32;
        }
        self.next = (self.next + 1) % KEPT;
        self.sum += gap;
        self.count += 1.0;
        let due = self.looked.is_none_or(|at| now.saturating_duration_since(at).as_secs_f64() >= LOOK_EVERY);
        if due && self.gaps.len() >= ENOUGH {
            self.looked = Some(now);
            let quarter = self.gaps.len() / 4;
            let mut gaps = self.gaps.clone();
            self.low = Some(f64::from(*gaps.select_nth_unstable_by(quarter, f32::total_cmp).1));
            self.sum *= MEMORY;
            self.count *= MEMORY;
        }
    }

    /// What a prompt of `own` seconds of prefill, behind `backlog` seconds of others', would do to `streams`, by a
    /// `target` of seconds per token; O(n). One that has not begun is itself in the backlog: the new prompt will
    /// hold it up right after its first token.
    pub fn harm(
        &self,
        streams: impl Iterator<Item = Stream>,
        (backlog, own): (f64, f64),
        target: f64,
    ) -> Harm {
        let quick = self.low.unwrap_or(UNKNOWN);
        let mean = if self.count > 1.0 { self.sum / self.count } else { UNKNOWN };
        let mut harm = Harm::default();
        for stream in streams {
            let left = stream.left as f64;
            let budget = PLANNED * target * (stream.generated as f64 - 1.0 + left).max(0.0);
            let spent = stream.since_first.unwrap_or(0.0) + left * quick;
            let stall = if stream.since_first.is_some() { backlog + own } else { own };
            harm.all += 1;
            harm.harmed += u64::from(spent <= budget && spent + stall > budget);
            let Some(since_first) = stream.since_first.filter(|_| stream.generated >= 2) else { continue };
            harm.over += u64::from(since_first + left * mean > NEARLY * budget);
        }
        harm
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn stream(generated: u64, left: u64, since_first: f64) -> Stream {
        Stream { generated, left, since_first: Some(since_first) }
    }

    #[test]
    fn a_stall_harms_who_cannot_make_it_up_and_is_nothing_to_a_long_one() {
        let mut stalls = Stalls::default();
        let mut now = Instant::now();
        for _ in 0..200 {
            now += Duration::from_millis(20);
            stalls.gap(0.02, now);
        }
        let all = [stream(50, 50, 1.0), stream(10, 5, 0.2), stream(1000, 3000, 20.0), stream(1, 500, 0.0)];
        let harm = |stall| stalls.harm(all.iter().copied(), (stall / 2.0, stall / 2.0), 0.1);
        assert_eq!(harm(0.5), Harm { harmed: 0, over: 0, all: 4 });
        assert_eq!(harm(2.0).harmed, 1, "the short one");
        assert_eq!(harm(10.0).harmed, 2);
        let slow = [stream(50, 50, 10.0)];
        assert_eq!(stalls.harm(slow.into_iter(), (0.0, 0.5), 0.1), Harm { harmed: 0, over: 1, all: 1 });
        // One in prefill is held up by the new prompt alone.
        let unbegun = Stream { generated: 0, left: 21, since_first: None };
        let harmed = |own| stalls.harm([unbegun].into_iter(), (60.0, own), 0.1).harmed;
        assert_eq!((harmed(1.0), harmed(2.0)), (0, 1));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut stalls = Stalls::default();
        let now = Instant::now();
        (0..10_000).for_each(|i| stalls.gap(f64::from(i), now));
        assert_eq!(stalls.gaps.len(), KEPT);
    }
}
