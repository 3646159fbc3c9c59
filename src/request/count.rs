//! How many prompt tokens a request has, as far as that is known.

use super::Tokens;

/// How far a count can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// The engine will see exactly this many.
    Exact,
    /// The engine will see this many or more.
    AtLeast,
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

    /// The sum with a further prompt.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let certain = match (self.certain, other.certain) {
            (Certainty::Exact, Certainty::Exact) => Certainty::Exact,
            (Certainty::Unknown, Certainty::Unknown) => Certainty::Unknown,
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
        let certain = if only { Certainty::Exact } else { self.certain };
        Self { total, longest: most, certain }
    }
}
