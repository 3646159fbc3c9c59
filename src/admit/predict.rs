//! How long an answer will be, learned from the answers that ended by themselves.
//!
//! A log histogram (72 buckets, edges ×1.15 from 8 tokens: 8 … ~160,000) for each kind of request:
//! tenant, power of two of the prompt and of the asked cap; then tenant and cap; then cap; then all.
//! The most specific one with at least 60 samples speaks. Answers that ran into their cap are
//! counted apart: a kind which always does is known exactly, and one with a larger cap is taken to
//! run into that. Counts are halved at 4,000 so that
//! the past fades. Answers that were cut short by the client teach nothing: their true length is
//! unknown.

use std::sync::LazyLock;

use indexmap::IndexMap;

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
/// The class of requests that ask no cap.
const NO_CAP: u8 = 33;
/// Kinds that are kept; a new one takes the place of any other.
const MOST_KINDS: usize = 4096;

/// What is known of a request that tells how long its answer will be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kind {
    /// Whose it is.
    pub tenant: u64,
    /// Prompt tokens of one sequence.
    pub prompt: u64,
    /// The asked output cap of one sequence.
    pub cap: Option<Tokens>,
}

/// The key of a histogram, from the most specific to that of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Prompt(u64, u8, u8),
    Tenant(u64, u8),
    Cap(u8),
    All,
}

impl Kind {
    fn keys(&self) -> [Key; 4] {
        let cap = self.cap.map_or(NO_CAP, |cap| power(cap.get()));
        let prompt = power(self.prompt);
        [Key::Prompt(self.tenant, prompt, cap), Key::Tenant(self.tenant, cap), Key::Cap(cap), Key::All]
    }

    fn most(&self) -> u64 {
        self.cap.map_or(u64::MAX, Tokens::get)
    }
}

/// The power of two of a number of tokens.
fn power(tokens: u64) -> u8 {
    (tokens.max(1).ilog2() as u8).min(NO_CAP - 1)
}

/// A decaying histogram of output lengths.
#[derive(Debug, Clone)]
struct Histogram {
    counts: [u32; BUCKETS],
    /// Answers that ran into their cap.
    capped: u32,
    total: u32,
    /// Tokens of those that did not.
    sum: f64,
}

impl Histogram {
    const fn new() -> Self {
        Self { counts: [0; BUCKETS], capped: 0, total: 0, sum: 0.0 }
    }

    fn learn(&mut self, tokens: u64, capped: bool) {
        if capped {
            self.capped += 1;
        } else {
            self.counts[bucket(tokens)] += 1;
            self.sum += tokens as f64;
        }
        self.total += 1;
        if self.total >= HALVE_AT {
            let ended = self.total - self.capped;
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.capped /= 2;
            let left: u32 = self.counts.iter().sum();
            self.total = left + self.capped;
            self.sum *= f64::from(left) / f64::from(ended.max(1));
        }
    }

    /// The length within which `quantile` of the answers longer than `beyond` end, even within a bucket;
    /// `None` where none was longer. One that runs into its cap ends at `most`.
    fn quantile(&self, quantile: f64, beyond: u64, most: u64) -> Option<u64> {
        let first = bucket(beyond.saturating_add(1));
        let share = |i: usize, from: u64| {
            let (low, high) = (lower(i).max(from as f64), edge(i) as f64);
            ((high - low) / (high - lower(i)).max(1.0)).clamp(0.0, 1.0)
        };
        // Of the bucket it has come to, what is left.
        let left = |i: usize| f64::from(self.counts[i]) * if i == first { share(i, beyond) } else { 1.0 };
        let capped = if most < u64::MAX { f64::from(self.capped) } else { 0.0 };
        let total: f64 = (first..BUCKETS).map(left).sum::<f64>() + capped;
        if total < 0.5 {
            return None;
        }
        let wanted = total * quantile.clamp(0.0, 1.0);
        let mut seen = 0.0;
        for i in first..BUCKETS {
            let here = left(i);
            if here > 0.0 && seen + here >= wanted {
                let low = if i == first { lower(i).max(beyond as f64) } else { lower(i) };
                let part = ((wanted - seen) / here).clamp(0.0, 1.0);
                return Some((low + part * (edge(i) as f64 - low)).ceil() as u64);
            }
            seen += here;
        }
        (capped > 0.0).then_some(most)
    }

    /// The mean, where those that ran into their cap would run into `cap`.
    fn mean(&self, cap: u64) -> f64 {
        (self.sum + f64::from(self.capped) * cap as f64) / f64::from(self.total.max(1))
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

/// The upper edges of the buckets, tokens.
static EDGES: LazyLock<[u64; BUCKETS]> =
    LazyLock::new(|| std::array::from_fn(|bucket| (FIRST * RATIO.powi(bucket as i32)).ceil() as u64));

fn edge(bucket: usize) -> u64 {
    EDGES[bucket]
}

/// The lower edge of a bucket, tokens.
fn lower(bucket: usize) -> f64 {
    bucket.checked_sub(1).map_or(0.0, |below| edge(below) as f64)
}

/// Learned output lengths.
#[derive(Debug, Clone)]
pub struct Predictor {
    kinds: IndexMap<Key, Histogram>,
    default_output: u64,
    next: usize,
}

impl Predictor {
    /// `default_output`: what an answer without a cap is taken for until enough were seen.
    #[must_use]
    pub fn new(default_output: Tokens) -> Self {
        let mut empty = Self { kinds: IndexMap::new(), default_output: 1, next: 0 };
        empty.assume(default_output);
        empty
    }

    /// Another default from now on.
    pub fn assume(&mut self, default_output: Tokens) {
        self.default_output = default_output.get().max(1);
    }

    /// Learns from an answer that ended by itself.
    pub fn learn(&mut self, kind: &Kind, output: Tokens) {
        let output = output.get().max(1);
        for key in kind.keys() {
            let capped = output >= kind.most();
            if !self.kinds.contains_key(&key) && self.kinds.len() >= MOST_KINDS {
                self.forget();
            }
            self.kinds.entry(key).or_insert_with(Histogram::new).learn(output, capped);
        }
    }

    /// Makes room for one kind: any of the specific ones goes, in turn.
    fn forget(&mut self) {
        let len = self.kinds.len();
        for _ in 0..len {
            self.next = (self.next + 1) % len;
            if matches!(self.kinds.get_index(self.next), Some((Key::Prompt(..) | Key::Tenant(..), _))) {
                self.kinds.swap_remove_index(self.next);
                return;
            }
        }
    }

    /// Answers learned from (halved as they fade).
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.kinds.get(&Key::All).map_or(0, |all| all.total)
    }

    /// Total output of one sequence that `quantile` of the answers stay within: never over the
    /// cap; before enough answers were seen the cap itself, or the default where there is none.
    #[must_use]
    pub fn estimate(&self, kind: &Kind, quantile: f64) -> Tokens {
        self.total(kind, quantile, 0)
    }

    /// What is still to come of a sequence that has generated `generated` tokens: conditional on
    /// its being that long. Past all that was ever seen: a tenth of it and 16 more.
    #[must_use]
    pub fn remaining(&self, kind: &Kind, generated: Tokens, quantile: f64) -> Tokens {
        self.total(kind, quantile, generated.get()).saturating_sub(generated)
    }

    /// The mean output of one sequence, for waits: from few answers on, because waits only inform.
    #[must_use]
    pub fn mean(&self, kind: &Kind) -> Tokens {
        let otherwise = kind.cap.map_or(self.default_output, Tokens::get);
        let mean = self.speaker(kind, ENOUGH_FOR_MEAN).map(|h| h.mean(otherwise).round().max(1.0) as u64);
        Tokens(mean.unwrap_or(otherwise).min(kind.most()))
    }

    /// Whether enough answers were seen for lengths to be a matter of chance, and not of caution.
    #[must_use]
    pub fn knows(&self, kind: &Kind) -> bool {
        self.speaker(kind, ENOUGH).is_some()
    }

    fn total(&self, kind: &Kind, quantile: f64, generated: u64) -> Tokens {
        let (beyond, most) = (generated.saturating_add(generated / 10).saturating_add(16), kind.most());
        let least = |total: u64| if total <= generated { beyond } else { total };
        let learned = || {
            let longest = self.speaker(kind, ENOUGH)?.quantile(quantile, generated, most);
            Some(least(longest.unwrap_or(0)))
        };
        let bounded = || {
            let few = self.speaker(kind, 1)?;
            let longest = few.quantile(1.0, 0, most)?;
            Some(least(longest.saturating_add(longest.saturating_mul(CAUTION) / u64::from(few.total))))
        };
        let unlearned = || kind.cap.map_or(least(self.default_output), Tokens::get);
        Tokens(learned().or_else(bounded).unwrap_or_else(unlearned).min(most))
    }

    /// The most specific histogram with enough samples.
    fn speaker(&self, kind: &Kind, enough: u32) -> Option<&Histogram> {
        kind.keys().iter().filter_map(|key| self.kinds.get(key)).find(|h| h.total >= enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind(cap: Option<u64>) -> Kind {
        Kind { tenant: 1, prompt: 100, cap: cap.map(Tokens) }
    }

    fn taught(lengths: impl Iterator<Item = u64>, cap: Option<u64>) -> Predictor {
        let mut predictor = Predictor::new(Tokens(512));
        lengths.for_each(|n| predictor.learn(&kind(cap), Tokens(n)));
        predictor
    }

    #[test]
    fn before_it_has_learned_the_cap_or_the_default_stands() {
        let p = Predictor::new(Tokens(512));
        assert_eq!(p.estimate(&kind(Some(4096)), 0.9), Tokens(4096));
        assert_eq!(p.estimate(&kind(None), 0.9), Tokens(512));
        let p = taught(std::iter::repeat_n(10, 4), None);
        assert!(p.mean(&kind(Some(4096))) == Tokens(10), "few answers are enough for a mean");
    }

    #[test]
    fn after_a_few_answers_their_longest_bounds_a_cap_that_nobody_reaches() {
        let p = taught(std::iter::once(100), None);
        assert!((900..=1040).contains(&p.estimate(&kind(Some(4096)), 0.9).get()));
        let p = taught(std::iter::repeat_n(100, 8), None);
        assert!((200..240).contains(&p.estimate(&kind(Some(4096)), 0.9).get()));
        assert_eq!(p.estimate(&kind(Some(150)), 0.9), Tokens(150));
    }

    #[test]
    fn after_sixty_answers_the_quantile_stands_and_never_over_the_cap() {
        let p = taught((1..=100).map(|i| i * 10), None);
        let q = p.estimate(&kind(None), 0.9).get();
        assert!((860..=1040).contains(&q), "{q}");
        assert_eq!(p.estimate(&kind(Some(64)), 0.9), Tokens(64));
        let q = p.estimate(&kind(Some(100_000)), 0.5).get();
        assert!((470..=580).contains(&q), "{q}");
    }

    #[test]
    fn what_remains_is_conditional_on_what_came() {
        let p = taught((0..200).map(|i| if i % 10 == 0 { 2000 } else { 20 }), None);
        assert!(p.remaining(&kind(None), Tokens(0), 0.8).get() < 30);
        let late = p.remaining(&kind(None), Tokens(100), 0.5).get();
        assert!((1700..2300).contains(&late), "having outlived the short ones it is a long one: {late}");
        assert_eq!(p.remaining(&kind(None), Tokens(10_000), 0.9), Tokens(1016), "past all that was seen");
        assert_eq!(p.remaining(&kind(Some(10_000)), Tokens(10_000), 0.9), Tokens(0));
    }

    #[test]
    fn a_kind_that_runs_into_its_cap_is_known_exactly() {
        let p = taught(std::iter::repeat_n(400, 200), Some(400));
        for (generated, quantile) in [(0, 0.01), (0, 0.99), (390, 0.01), (399, 0.5)] {
            let left = p.remaining(&kind(Some(400)), Tokens(generated), quantile);
            assert_eq!(left, Tokens(400 - generated), "{generated} {quantile}");
        }
        let p = taught((0..200).map(|i| if i % 2 == 0 { 400 } else { 50 }), Some(400));
        assert!(p.estimate(&kind(Some(400)), 0.4).get() < 60);
        assert_eq!(p.estimate(&kind(Some(400)), 0.6), Tokens(400));
        assert_eq!(p.remaining(&kind(Some(400)), Tokens(100), 0.01), Tokens(300));
    }

    #[test]
    fn who_ran_into_a_small_cap_is_taken_to_run_into_a_larger_one() {
        let p = taught(std::iter::repeat_n(100, 5), Some(100));
        assert_eq!(p.mean(&kind(Some(400))), Tokens(400));
        let p = taught(std::iter::repeat_n(100, 100), Some(100));
        assert_eq!(p.estimate(&kind(Some(400)), 0.1), Tokens(400));
    }

    #[test]
    fn the_more_specific_kind_speaks_first() {
        let mut p = taught(std::iter::repeat_n(1000, 200), None);
        let other = Kind { tenant: 2, ..kind(None) };
        (0..60).for_each(|_| p.learn(&other, Tokens(30)));
        assert!(p.estimate(&other, 0.95).get() < 40);
        assert!(p.estimate(&kind(None), 0.95).get() >= 900);
        let long = Kind { prompt: 9000, ..kind(None) };
        (0..60).for_each(|_| p.learn(&long, Tokens(60)));
        assert!(p.estimate(&long, 0.95).get() < 80);
        assert!(p.estimate(&kind(None), 0.95).get() >= 900);
    }

    #[test]
    fn the_number_of_kinds_is_bounded_and_all_of_them_stay_known() {
        let mut p = Predictor::new(Tokens(512));
        for tenant in 0..20_000 {
            p.learn(&Kind { tenant, ..kind(Some(400)) }, Tokens(400));
        }
        assert!(p.kinds.len() <= MOST_KINDS);
        assert_eq!(p.estimate(&Kind { tenant: 77_777, ..kind(Some(400)) }, 0.1), Tokens(400));
    }

    #[test]
    fn the_past_fades() {
        let mut p = taught(std::iter::repeat_n(2000, 4000), None);
        (0..12_000).for_each(|_| p.learn(&kind(None), Tokens(50)));
        assert!(p.estimate(&kind(None), 0.8).get() < 70);
        assert!(p.samples() < 4000);
    }

    proptest! {
        #[test]
        fn an_estimate_is_at_least_one_never_over_the_cap_and_grows_with_the_quantile(
            lengths in proptest::collection::vec(0u64..1_000_000, 0..200),
            cap in proptest::option::of(1u64..200_000), generated in 0u64..300_000, q in 0.0f64..=1.0,
        ) {
            let p = taught(lengths.into_iter(), cap);
            let (kind, cap) = (kind(cap), cap.map(Tokens));
            let estimate = p.estimate(&kind, q);
            prop_assert!(estimate >= Tokens(1) && estimate <= cap.unwrap_or(Tokens::MAX));
            prop_assert!(p.estimate(&kind, q / 2.0) <= estimate);
            let remaining = p.remaining(&kind, Tokens(generated), q);
            if let Some(cap) = cap {
                prop_assert!(remaining <= cap.saturating_sub(Tokens(generated)));
            }
            prop_assert!(p.mean(&kind) >= Tokens(1) && p.mean(&kind) <= cap.unwrap_or(Tokens::MAX));
        }
    }
}
