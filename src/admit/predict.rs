//! How long an answer will be, learned from the answers that ended by themselves.
//!
//! A log histogram (72 buckets, edges ×1.15 from 8 tokens: 8 … ~160,000) over all answers and one
//! for each power of two of the asked cap. The most specific one with at least 60 samples speaks.
//! Counts are halved at 4,000 so that the past fades. Answers that were cut short by the client
//! teach nothing: their true length is unknown.

use crate::request::Tokens;

/// Buckets of one histogram.
const BUCKETS: usize = 72;
/// Upper edge of the first bucket, tokens.
const FIRST: f64 = 8.0;
/// Ratio of neighbouring edges.
const RATIO: f64 = 1.15;
/// Samples from which on a histogram's quantiles are believed.
const ENOUGH: u32 = 60;
/// Before that, the longest of n answers times 1 + this / n is taken for a bound: a declared cap that
/// is never nearly reached must not hold memory for long. The first that end are the short ones.
const CAUTION: u64 = 8;
/// Samples from which on a histogram's mean is believed (it decides waits, never memory).
const ENOUGH_FOR_MEAN: u32 = 4;
/// Samples at which the counts are halved.
const HALVE_AT: u32 = 4000;
/// Classes by the power of two of the asked cap; the last one is of those that ask none.
const CLASSES: usize = 33;

/// A decaying histogram of output lengths.
#[derive(Debug, Clone)]
struct Histogram {
    counts: [u32; BUCKETS],
    total: u32,
    sum: f64,
}

impl Histogram {
    const fn new() -> Self {
        Self { counts: [0; BUCKETS], total: 0, sum: 0.0 }
    }

    fn learn(&mut self, tokens: u64) {
        self.counts[bucket(tokens)] += 1;
        self.total += 1;
        self.sum += tokens as f64;
        if self.total >= HALVE_AT {
            let mean = self.sum / f64::from(self.total);
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
            self.sum = mean * f64::from(self.total);
        }
    }

    /// The upper edge of the bucket in which `quantile` of the answers longer than `beyond` end.
    fn quantile(&self, quantile: f64, beyond: u64) -> Option<u64> {
        let first = if beyond == 0 { 0 } else { bucket(beyond) };
        let total: u32 = self.counts[first..].iter().sum();
        if total == 0 {
            return None;
        }
        let wanted = f64::from(total) * quantile.clamp(0.0, 1.0);
        let mut seen = 0.0;
        for (i, count) in self.counts.iter().enumerate().skip(first) {
            seen += f64::from(*count);
            if *count > 0 && seen >= wanted {
                return Some(edge(i));
            }
        }
        None
    }

    fn mean(&self) -> f64 {
        self.sum / f64::from(self.total.max(1))
    }
}

/// The bucket of a length: the first whose upper edge is not below it.
fn bucket(tokens: u64) -> usize {
    if tokens <= FIRST as u64 {
        return 0;
    }
    let steps = ((tokens as f64 / FIRST).ln() / RATIO.ln()).ceil();
    (steps as usize).min(BUCKETS - 1)
}

/// The upper edge of a bucket, tokens.
fn edge(bucket: usize) -> u64 {
    (FIRST * RATIO.powi(bucket as i32)).ceil() as u64
}

/// Learned output lengths.
#[derive(Debug, Clone)]
pub struct Predictor {
    all: Histogram,
    by_cap: Vec<Histogram>,
    default_output: u64,
}

impl Predictor {
    /// `default_output`: what an answer without a cap is taken for until enough were seen.
    #[must_use]
    pub fn new(default_output: Tokens) -> Self {
        Self {
            all: Histogram::new(),
            by_cap: vec![Histogram::new(); CLASSES],
            default_output: default_output.get().max(1),
        }
    }

    /// Learns from an answer that ended by itself.
    pub fn learn(&mut self, cap: Option<Tokens>, output: Tokens) {
        let output = output.get().max(1);
        self.all.learn(output);
        self.by_cap[class(cap)].learn(output);
    }

    /// Answers learned from (halved as they fade).
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.all.total
    }

    /// Total output of one sequence that `quantile` of the answers stay within: never over the
    /// cap; before enough answers were seen the cap itself, or the default where there is none.
    #[must_use]
    pub fn estimate(&self, cap: Option<Tokens>, quantile: f64) -> Tokens {
        self.total(cap, quantile, 0)
    }

    /// What is still to come of a sequence that has generated `generated` tokens: conditional on
    /// its being that long. Past all that was ever seen: a tenth of it and 16 more.
    #[must_use]
    pub fn remaining(&self, cap: Option<Tokens>, generated: Tokens, quantile: f64) -> Tokens {
        self.total(cap, quantile, generated.get()).saturating_sub(generated)
    }

    /// The mean output of one sequence, for waits: from few answers on, because waits only inform.
    #[must_use]
    pub fn mean(&self, cap: Option<Tokens>) -> Tokens {
        let mean = self.speaker(cap, ENOUGH_FOR_MEAN).map(|h| h.mean().round().max(1.0) as u64);
        let cap = cap.map_or(u64::MAX, Tokens::get);
        Tokens(mean.unwrap_or(if cap == u64::MAX { self.default_output } else { cap }).min(cap))
    }

    fn total(&self, cap: Option<Tokens>, quantile: f64, generated: u64) -> Tokens {
        let beyond = generated.saturating_add(generated / 10).saturating_add(16);
        let least = |total: u64| if total <= generated { beyond } else { total };
        let learned = || {
            let longest = self.speaker(cap, ENOUGH)?.quantile(quantile, generated);
            Some(least(longest.unwrap_or(0)))
        };
        let bounded = || {
            let few = self.speaker(cap, 1)?;
            let longest = few.quantile(1.0, 0)?;
            Some(least(longest.saturating_add(longest.saturating_mul(CAUTION) / u64::from(few.total))))
        };
        let unlearned = || cap.map_or(least(self.default_output), Tokens::get);
        let total = learned().or_else(bounded).unwrap_or_else(unlearned);
        Tokens(total.min(cap.map_or(u64::MAX, Tokens::get)))
    }

    /// The most specific histogram with enough samples.
    fn speaker(&self, cap: Option<Tokens>, enough: u32) -> Option<&Histogram> {
        let own = &self.by_cap[class(cap)];
        [own, &self.all].into_iter().find(|h| h.total >= enough)
    }
}

/// The class of a cap: its power of two, or the last for none.
fn class(cap: Option<Tokens>) -> usize {
    cap.map_or(CLASSES - 1, |cap| (cap.get().max(1).ilog2() as usize).min(CLASSES - 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taught(lengths: impl Iterator<Item = u64>, cap: Option<Tokens>) -> Predictor {
        let mut predictor = Predictor::new(Tokens(512));
        lengths.for_each(|n| predictor.learn(cap, Tokens(n)));
        predictor
    }

    #[test]
    fn before_it_has_learned_the_cap_or_the_default_stands() {
        let p = Predictor::new(Tokens(512));
        assert_eq!(p.estimate(Some(Tokens(4096)), 0.9), Tokens(4096));
        assert_eq!(p.estimate(None, 0.9), Tokens(512));
        let p = taught(std::iter::repeat_n(10, 4), None);
        assert_eq!(p.mean(Some(Tokens(4096))), Tokens(10), "few answers are enough for a mean");
    }

    #[test]
    fn after_a_few_answers_their_longest_bounds_a_cap_that_nobody_reaches() {
        let p = taught(std::iter::once(100), None);
        assert!((900..=1040).contains(&p.estimate(Some(Tokens(4096)), 0.9).get()));
        let p = taught(std::iter::repeat_n(100, 8), None);
        assert!((200..240).contains(&p.estimate(Some(Tokens(4096)), 0.9).get()));
        assert_eq!(p.estimate(Some(Tokens(150)), 0.9), Tokens(150));
    }

    #[test]
    fn after_sixty_answers_the_quantile_stands_and_never_over_the_cap() {
        let p = taught((1..=100).map(|i| i * 10), None);
        let q = p.estimate(None, 0.9).get();
        assert!((900..=1040).contains(&q), "{q}");
        assert_eq!(p.estimate(Some(Tokens(64)), 0.9), Tokens(64));
        let q = p.estimate(Some(Tokens(100_000)), 0.5).get();
        assert!((500..=580).contains(&q), "{q}");
    }

    #[test]
    fn what_remains_is_conditional_on_what_came() {
        let p = taught((0..200).map(|i| if i % 10 == 0 { 2000 } else { 20 }), None);
        assert!(p.remaining(None, Tokens(0), 0.8).get() < 30);
        let late = p.remaining(None, Tokens(100), 0.5).get();
        assert!((1850..2300).contains(&late), "having outlived the short ones it is a long one: {late}");
        assert_eq!(p.remaining(None, Tokens(10_000), 0.9), Tokens(1016), "past all that was seen");
        assert_eq!(p.remaining(Some(Tokens(10_000)), Tokens(10_000), 0.9), Tokens(0));
    }

    #[test]
    fn a_class_of_its_own_speaks_before_all() {
        let mut p = taught(std::iter::repeat_n(1000, 200), None);
        for _ in 0..60 {
            p.learn(Some(Tokens(256)), Tokens(30));
        }
        assert!(p.estimate(Some(Tokens(256)), 0.95).get() < 40);
        assert!(p.estimate(None, 0.95).get() >= 1000);
    }

    #[test]
    fn the_past_fades() {
        let mut p = taught(std::iter::repeat_n(2000, 4000), None);
        (0..12_000).for_each(|_| p.learn(None, Tokens(50)));
        assert!(p.estimate(None, 0.8).get() < 70);
        assert!(p.samples() < 4000);
    }

    proptest! {
        #[test]
        fn an_estimate_is_at_least_one_and_never_over_the_cap(
            lengths in proptest::collection::vec(0u64..1_000_000, 0..200),
            cap in proptest::option::of(1u64..200_000), generated in 0u64..300_000, q in 0.0f64..=1.0,
        ) {
            let cap = cap.map(Tokens);
            let p = taught(lengths.into_iter(), cap);
            let estimate = p.estimate(cap, q);
            prop_assert!(estimate >= Tokens(1) && estimate <= cap.unwrap_or(Tokens::MAX));
            let remaining = p.remaining(cap, Tokens(generated), q);
            if let Some(cap) = cap {
                prop_assert!(remaining <= cap.saturating_sub(Tokens(generated)));
            }
            prop_assert!(p.mean(cap) >= Tokens(1) && p.mean(cap) <= cap.unwrap_or(Tokens::MAX));
        }
    }
}
