//! After a death: the engine is filled slowly, with fewer at once where too many were the cause, and
//! without the size that killed it.
//!
//! A prompt larger than any that ever had its first token and that was in prefill at the death is a
//! suspect: prompts over half the smallest such one, and over the largest proven one, are what the guard
//! refuses from then on (the rule `guard`, in shadow unless switched on; a configured limit takes
//! precedence, being checked first). Where there is no suspect and the engine was full, it is taken to
//! have died of too many: seven tenths of what ran then may run, for a quarter of an hour, and then a
//! tenth more each minute until it is what it was.

use std::time::Duration;

use tokio::time::Instant;

use super::capacity::HeldBy;

/// Requests that may be in flight at once after a start that follows a death, and those begun after which
/// any number may: one more for each first token.
const RAMP: (u64, u64) = (8, 256);
/// What is left of the concurrency after a death by too many, and never less than the second.
const CUT: (f64, u64) = (0.7, 4);
/// How long it stays so, and how much more is allowed with each minute after.
const CUT_FOR: Duration = Duration::from_secs(900);
const REGAIN: f64 = 0.1;
/// KV usage from which on an engine was full.
const FULL: f64 = 0.9;

/// What was known of the engine when it died.
#[derive(Debug, Clone, PartialEq)]
pub struct Last {
    /// Sequences in flight.
    pub sequences: u64,
    /// Prompts in flight without a first token, tokens each.
    pub unproven: Vec<u64>,
    /// The largest prompt that ever had its first token, tokens.
    pub proven: u64,
    /// KV usage at the last scrape, 0–1.
    pub kv_usage: Option<f64>,
    /// Requests waiting in the engine at the last scrape.
    pub waiting: f64,
}

/// The concurrency that is left.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cut {
    to: u64,
    from: u64,
    since: Instant,
}

/// What is allowed after deaths.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recovery {
    /// First tokens since the start, after a death.
    begun: Option<u64>,
    cut: Option<Cut>,
    guard: Option<u64>,
}

impl Recovery {
    /// The engine died.
    pub fn died(&mut self, last: &Last, now: Instant) {
        self.begun = Some(0);
        let suspects = last.unproven.iter().copied().filter(|prompt| *prompt > last.proven);
        if let Some(smallest) = suspects.min() {
            let guard = (smallest / 2).max(last.proven).max(1);
            self.guard = Some(self.guard.map_or(guard, |before| before.min(guard)));
        } else if last.waiting >= 1.0 || last.kv_usage.is_some_and(|usage| usage >= FULL) {
            let cut = self.cut.filter(|_| self.cut_now(now).is_some());
            let from = cut.map_or(last.sequences, |cut| cut.from.max(last.sequences));
            let to = ((last.sequences as f64 * CUT.0) as u64).max(CUT.1);
            self.cut = (to < from).then_some(Cut { to, from, since: now });
        }
    }

    /// A first token came.
    pub fn began(&mut self) {
        self.begun = self.begun.map(|begun| begun + 1).filter(|begun| RAMP.0 + begun < RAMP.1);
    }

    /// Sequences that may be in flight, and what says so; `None` where any number may.
    #[must_use]
    pub fn most(&self, now: Instant) -> Option<(u64, HeldBy)> {
        let cut = self.cut_now(now).map(|most| (most, HeldBy::Cut));
        let ramp = self.begun.map(|begun| (RAMP.0 + begun, HeldBy::Start));
        [cut, ramp].into_iter().flatten().min_by_key(|(most, _)| *most)
    }

    /// Sequences that may be in flight since a death by too many; `None` once that is over.
    #[must_use]
    pub fn cut_now(&self, now: Instant) -> Option<u64> {
        let cut = self.cut?;
        let minutes = now.saturating_duration_since(cut.since + CUT_FOR).as_secs_f64() / 60.0;
        let most = cut.to + (cut.to as f64 * REGAIN * minutes.floor()) as u64;
        (most < cut.from).then_some(most)
    }

    /// An earlier run has learned so much.
    pub fn recall_guard(&mut self, tokens: u64) {
        let tokens = tokens.max(1);
        self.guard = Some(self.guard.map_or(tokens, |before| before.min(tokens)));
    }

    /// Forgets what the guard has learned.
    pub const fn forget_guard(&mut self) {
        self.guard = None;
    }

    /// As many may run again as before.
    pub const fn forget_cut(&mut self) {
        self.cut = None;
    }

    /// The longest prompt that passes, where a death has taught one.
    #[must_use]
    pub const fn guard(&self) -> Option<u64> {
        self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn last(unproven: &[u64]) -> Last {
        Last { sequences: 100, unproven: unproven.to_vec(), proven: 8000, kv_usage: Some(0.95), waiting: 3.0 }
    }

    #[test]
    fn an_engine_that_comes_back_is_filled_one_by_one_with_each_that_begins() {
        let (mut recovery, now) = (Recovery::default(), Instant::now());
        assert_eq!(recovery.most(now), None, "the first start follows no death");
        recovery.died(&Last { kv_usage: None, waiting: 0.0, ..last(&[]) }, now);
        assert_eq!(recovery.most(now), Some((8, HeldBy::Start)));
        (0..10).for_each(|_| recovery.began());
        assert_eq!(recovery.most(now), Some((18, HeldBy::Start)));
        (0..300).for_each(|_| recovery.began());
        assert_eq!(recovery.most(now), None);
    }

    #[test]
    fn a_prompt_that_none_was_as_long_as_is_suspected_and_its_like_kept_out() {
        let (mut recovery, now) = (Recovery::default(), Instant::now());
        recovery.died(&last(&[500, 100_000, 90_000]), now);
        assert_eq!((recovery.guard(), recovery.cut), (Some(45_000), None));
        recovery.died(&last(&[12_000]), now);
        assert_eq!(recovery.guard(), Some(8000), "never under what is proven");
        recovery.died(&last(&[100_000]), now);
        assert_eq!(recovery.guard(), Some(8000));
    }

    #[test]
    fn after_a_death_by_too_many_fewer_run_until_that_ends_by_itself() {
        let (mut recovery, now) = (Recovery::default(), Instant::now());
        recovery.died(&last(&[500]), now);
        (0..300).for_each(|_| recovery.began());
        assert_eq!(recovery.most(now + 14 * MINUTE), Some((70, HeldBy::Cut)));
        assert_eq!(recovery.most(now + 17 * MINUTE), Some((84, HeldBy::Cut)));
        let mut again = recovery.clone();
        assert_eq!(recovery.most(now + 20 * MINUTE), None);
        // Another meanwhile cuts further, and ends where the first would.
        again.died(&Last { sequences: 84, ..last(&[]) }, now + 17 * MINUTE);
        assert_eq!(again.cut_now(now + 18 * MINUTE), Some(58));
        assert_eq!(again.cut, Some(Cut { to: 58, from: 100, since: now + 17 * MINUTE }));
    }

    #[test]
    fn an_idle_engine_that_dies_is_not_cut() {
        let (mut recovery, now) = (Recovery::default(), Instant::now());
        recovery.died(&Last { kv_usage: Some(0.3), waiting: 0.0, ..last(&[]) }, now);
        assert_eq!((recovery.cut, recovery.guard()), (None, None));
    }
}
