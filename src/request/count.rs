//! How many prompt tokens a request has, as far as that is known.

use super::Tokens;

/// How far a count can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// The engine will see exactly this many.
    Exact,
    /// The engine will see this many or more.
    AtLeast,
    /// The engine will see this many or fewer: a bound, where counting could not be had.
    AtMost {
        /// How many they usually are, of all prompts together; no more than the bound.
        likely: Tokens,
    },
    /// Nothing is known; the numbers are zero.
    Unknown,
}

/// Prompt tokens of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Of all its prompts together: what `usage.prompt_tokens` will say.
    pub total: Tokens,
    /// Of its longest single prompt: what a length limit is about.
    pub longest: Tokens,
    /// How far both can be trusted.
    pub certain: Certainty,
}

impl Count {
    /// Nothing is known.
    pub const UNKNOWN: Self =
        Self { total: Tokens::ZERO, longest: Tokens::ZERO, certain: Certainty::Unknown };

    /// An exact count of one prompt.
    #[must_use]
    pub const fn exact(tokens: Tokens) -> Self {
        Self { total: tokens, longest: tokens, certain: Certainty::Exact }
    }

    /// Not more than this in one prompt, and usually `likely`.
    #[must_use]
    pub fn at_most(tokens: Tokens, likely: Tokens) -> Self {
        Self { total: tokens, longest: tokens, certain: Certainty::AtMost { likely: likely.min(tokens) } }
    }

    /// How many tokens to reckon with: the count, or where that is a bound what is usual.
    #[must_use]
    pub const fn expected(&self) -> Tokens {
        match self.certain {
            Certainty::AtMost { likely } => likely,
            Certainty::Exact | Certainty::AtLeast | Certainty::Unknown => self.total,
        }
    }

    /// The sum with a further prompt. Of a lower and an upper bound nothing is known.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let most = |count: &Self| matches!(count.certain, Certainty::AtMost { .. });
        let certain = match (self.certain, other.certain) {
            (Certainty::Exact, Certainty::Exact) => Certainty::Exact,
            (Certainty::Unknown, Certainty::Unknown) => Certainty::Unknown,
            (Certainty::AtMost { .. } | Certainty::Exact, Certainty::AtMost { .. } | Certainty::Exact) => {
                Certainty::AtMost { likely: self.expected() + other.expected() }
            }
            _ if most(&self) || most(&other) => return Self::UNKNOWN,
            _ => Certainty::AtLeast,
        };
        Self { total: self.total + other.total, longest: self.longest.max(other.longest), certain }
    }

    /// The count of a request whose single prompts the engine cuts to `most` tokens
    /// (`truncate_prompt_tokens: -1` keeps `max_model_len` − 1 of each: vLLM 0.32 `params.py`).
    /// For one prompt only; the sum of several is an upper bound then.
    #[must_use]
    pub fn cut_to(self, most: Tokens) -> Self {
        if self.longest < most || self.certain == Certainty::Unknown {
            return self;
        }
        let only = self.total == self.longest;
        let total = if only { most } else { self.total };
        let certain = match self.certain {
            Certainty::AtMost { likely } => Certainty::AtMost { likely: likely.min(total) },
            _ if only => Certainty::Exact,
            certain => certain,
        };
        Self { total, longest: most, certain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(tokens: u64, likely: u64) -> Count {
        Count::at_most(Tokens(tokens), Tokens(likely))
    }

    #[test]
    fn bounds_add_up_with_counts_and_with_a_lower_bound_say_nothing() {
        let sum = most(100, 25).and(Count::exact(Tokens(7)));
        assert_eq!((sum.total, sum.longest, sum.expected()), (Tokens(107), Tokens(100), Tokens(32)));
        let least = Count { certain: Certainty::AtLeast, ..Count::exact(Tokens(9)) };
        assert_eq!(most(100, 25).and(least), Count::UNKNOWN);
        assert_eq!(least.and(Count::exact(Tokens(1))).expected(), Tokens(10));
        assert_eq!(most(10, 99).expected(), Tokens(10), "never more than the bound");
    }

    #[test]
    fn a_bound_that_is_cut_stays_a_bound() {
        assert_eq!(most(100, 25).cut_to(Tokens(20)), most(20, 20));
        assert_eq!(most(100, 25).cut_to(Tokens(200)), most(100, 25));
        assert_eq!(Count::exact(Tokens(100)).cut_to(Tokens(20)), Count::exact(Tokens(20)));
    }
}
