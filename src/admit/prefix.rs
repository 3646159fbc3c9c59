//! How much of a prompt the engine will find in its prefix cache: from what was sent to it before, corrected by
//! its own counters.
//!
//! A prompt's beginning that was sent within as many tokens as the KV pool holds is taken to be still there. The
//! engine says how many tokens it did find (`vllm:prefix_cache_hits_total`): the share of what was expected that
//! came true is what the next expectation is multiplied by. Where it says nothing, or nothing came true, nothing
//! is credited.

use std::collections::HashMap;

use crate::request::Trail;

/// Marks that are kept of each of two generations.
const MARKS: usize = 1 << 15;
/// Expected tokens from which on what came true says something.
const EVIDENCE: f64 = 2_000.0;
/// Expected tokens after which both sums are halved.
const MEMORY: f64 = 200_000.0;

/// What was sent of late, and how far it is found again.
#[derive(Debug, Clone, Default)]
pub struct Prefixes {
    /// When each beginning was last sent, by `sent`.
    young: HashMap<u64, u64>,
    old: HashMap<u64, u64>,
    /// Prompt tokens sent so far.
    sent: u64,
    /// Tokens that were expected to be found, and tokens that were found.
    expected: f64,
    found: f64,
}

impl Prefixes {
    /// Tokens of a prompt of `prompt` tokens that the engine will likely find, in a pool of `pool` tokens: less
    /// than all of it.
    #[must_use]
    pub fn found(&self, trail: &Trail, prompt: u64, pool: u64) -> u64 {
        (self.known(trail, prompt, pool) as f64 * self.trust()) as u64
    }

    /// A prompt goes to the engine.
    pub fn sent(&mut self, trail: &Trail, prompt: u64, pool: u64) {
        self.expected += self.known(trail, prompt, pool) as f64;
        self.sent = self.sent.saturating_add(prompt);
        for mark in &trail.marks {
            self.young.insert(mark.hash, self.sent);
        }
        if self.young.len() > MARKS {
            self.old = std::mem::take(&mut self.young);
        }
    }

    /// The engine has found so many tokens since it last said so.
    pub fn hits(&mut self, tokens: f64) {
        self.found += tokens.max(0.0);
        if self.expected > MEMORY {
            self.expected /= 2.0;
            self.found /= 2.0;
        }
    }

    /// The engine that held all this is gone; how far expectations come true stays.
    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    /// Share of what is expected to be found that came true, 0–1; 0 before there is evidence.
    #[must_use]
    pub fn trust(&self) -> f64 {
        if self.expected < EVIDENCE { 0.0 } else { (self.found / self.expected).clamp(0.0, 1.0) }
    }

    /// Tokens up to the last mark that was sent while the pool could still hold it.
    fn known(&self, trail: &Trail, prompt: u64, pool: u64) -> u64 {
        let there = |hash: &u64| {
            let at = self.young.get(hash).or_else(|| self.old.get(hash));
            at.is_some_and(|at| self.sent - at <= pool)
        };
        let Some(last) = trail.marks.iter().rev().find(|mark| there(&mark.hash)) else { return 0 };
        let share = last.at as f64 / trail.whole.max(last.at).max(1) as f64;
        ((prompt as f64 * share) as u64).min(prompt.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Mark;

    fn trail(hash: u64) -> Trail {
        Trail { marks: vec![Mark { hash, at: 700 }, Mark { hash: hash + 1000, at: 1000 }], whole: 1000 }
    }

    #[test]
    fn nothing_is_credited_before_the_engine_has_proven_it_and_then_as_much_as_it_proves() {
        let mut prefixes = Prefixes::default();
        for n in 0..10 {
            assert_eq!(prefixes.found(&trail(1), 1000, 100_000), 0, "{n}");
            prefixes.sent(&trail(1), 1000, 100_000);
        }
        assert_eq!(prefixes.found(&trail(1), 1000, 100_000), 0);
        prefixes.hits(9.0 * 500.0);
        let half = prefixes.found(&trail(1), 1000, 100_000);
        assert!((499..=501).contains(&half), "{half}");
        assert_eq!(prefixes.found(&trail(2), 1000, 100_000), 0, "another beginning");
        prefixes.hits(1e9);
        assert_eq!(prefixes.found(&trail(1), 1000, 100_000), 999, "the last token is always computed");
        prefixes.clear();
        assert_eq!(prefixes.found(&trail(1), 1000, 100_000), 0);
    }

    #[test]
    fn what_the_pool_cannot_hold_any_more_is_not_expected() {
        let mut prefixes = Prefixes::default();
        (0..10).for_each(|_| prefixes.sent(&trail(1), 1000, 100_000));
        prefixes.hits(9000.0);
        (0..50).for_each(|_| prefixes.sent(&Trail::default(), 1000, 100_000));
        assert_eq!(prefixes.found(&trail(1), 1000, 100_000), 999);
        assert_eq!(prefixes.found(&trail(1), 1000, 40_000), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut prefixes = Prefixes::default();
        (0..200_000).for_each(|n| prefixes.sent(&trail(n * 2000), 10, u64::MAX));
        assert!(prefixes.young.len() + prefixes.old.len() <= 2 * (MARKS + 2));
    }
}
