//! What the rules in shadow would have done, joined with what the engine then did.
//!
//! A refusal was surely right where the engine died under the request, and perhaps wrong where it answered: it may
//! have answered this one at the cost of others. So the completed are an upper bound of the false refusals. A
//! request that a rule let pass and under which the engine died is a miss, or stood beside the one that was: an
//! upper bound too.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::mode::Rule;
use crate::request::Outcome;

/// z of a one-sided confidence of 95 %.
const Z: f64 = 1.645;

/// One rule's tally since the start; only requests that reached the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Requests that it judged in shadow.
    pub requests: u64,
    /// Of these, those that it would have refused …
    pub refused: u64,
    /// … and the engine answered whole: false refusals at most.
    pub refused_completed: u64,
    /// … and the engine died under.
    pub refused_crashed: u64,
    /// … and the engine answered with an error, or not in time.
    pub refused_failed: u64,
    /// Those that it let pass and the engine died under: misses at most.
    pub passed_crashed: u64,
}

impl Tally {
    /// Notes one request.
    pub const fn note(&mut self, refused: bool, outcome: Outcome) {
        let crashed = matches!(outcome, Outcome::EngineCrashed);
        self.requests += 1;
        if refused {
            self.refused += 1;
            self.refused_completed += matches!(outcome, Outcome::Completed) as u64;
            self.refused_crashed += crashed as u64;
            self.refused_failed += matches!(outcome, Outcome::EngineError | Outcome::Timeout) as u64;
        } else {
            self.passed_crashed += crashed as u64;
        }
    }

    /// The share of all its requests that it would have refused falsely is below this with 95 % confidence, where
    /// there were any.
    #[must_use]
    pub fn most_false(&self) -> Option<f64> {
        (self.requests > 0).then(|| upper(self.refused_completed, self.requests))
    }
}

/// The upper end of Wilson's score interval, one-sided, for `hits` of `n`: 0–1. (E. B. Wilson, "Probable inference,
/// the law of succession, and statistical inference", 1927.)
#[must_use]
pub fn upper(hits: u64, n: u64) -> f64 {
    if n == 0 {
        return 1.0;
    }
    let (n, p) = (n as f64, hits.min(n) as f64 / n as f64);
    let z2 = Z * Z;
    let middle = p + z2 / (2.0 * n);
    let spread = Z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    ((middle + spread) / (1.0 + z2 / n)).min(1.0)
}

/// The tallies of all rules; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Shadow(Arc<Mutex<[Tally; 8]>>);

impl Shadow {
    /// Notes what became of a request that a rule judged in shadow; one that did not reach the engine says nothing.
    pub fn note(&self, rule: Rule, refused: bool, outcome: Outcome) {
        if !reached(outcome) {
            return;
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[rule as usize].note(refused, outcome);
    }

    /// The tallies of the rules that judged any request in shadow.
    #[must_use]
    pub fn tallies(&self) -> Vec<(Rule, Tally)> {
        let tallies = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Rule::ALL.into_iter().zip(tallies).filter(|(_, tally)| tally.requests > 0).collect()
    }
}

/// Whether a request that ended so had reached the engine.
#[must_use]
pub const fn reached(outcome: Outcome) -> bool {
    !matches!(outcome, Outcome::Rejected | Outcome::Evicted | Outcome::EngineUnavailable)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_bound_is_over_the_share_falls_with_more_evidence_and_rises_with_more_hits(
            hits in 0u64..1000, more in 1u64..1000, times in 2u64..50,
        ) {
            let n = hits + more;
            let bound = upper(hits, n);
            prop_assert!(bound > hits as f64 / n as f64 && bound <= 1.0);
            prop_assert!(upper(hits * times, n * times) < bound);
            prop_assert!(upper(hits + 1, n) >= bound);
        }
    }

    #[test]
    fn no_hit_of_three_hundred_is_below_one_percent() {
        assert!((0.008..0.0095).contains(&upper(0, 300)), "{}", upper(0, 300));
        assert_eq!(upper(0, 0), 1.0);
    }

    #[test]
    fn each_outcome_has_its_place() {
        let shadow = Shadow::default();
        for (refused, outcome) in [
            (true, Outcome::Completed),
            (true, Outcome::EngineCrashed),
            (true, Outcome::EngineError),
            (true, Outcome::ClientGone),
            (false, Outcome::EngineCrashed),
            (false, Outcome::Completed),
            (true, Outcome::Rejected),
            (false, Outcome::Evicted),
        ] {
            shadow.note(Rule::Length, refused, outcome);
        }
        let expected = Tally {
            requests: 6,
            refused: 4,
            refused_completed: 1,
            refused_crashed: 1,
            refused_failed: 1,
            passed_crashed: 1,
        };
        assert_eq!(shadow.tallies(), [(Rule::Length, expected)]);
    }
}
