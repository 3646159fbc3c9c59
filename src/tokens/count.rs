//! What counting answers.

use std::time::Duration;

use crate::request::Tokens;

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

/// Why a prompt could not be counted. None of these means that the prompt is too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CountError {
    /// The chat template refuses the conversation, as it will in the engine (400). The reason may
    /// hold request text: for the client or the terminal, never for a log.
    #[error("the chat template refuses the conversation: {reason}")]
    Template {
        /// The template's own words.
        reason: String,
    },
    /// The chat template did more work than it may.
    #[error("the chat template did not end within {fuel} steps")]
    TemplateEndless {
        /// The steps allowed.
        fuel: u64,
    },
    /// The tokenizer has no usable chat template.
    #[error("no chat template: {reason}")]
    NoTemplate {
        /// What is wrong.
        reason: String,
    },
    /// The conversation has a form that the engine refuses (400).
    #[error("the conversation cannot be read: {why}")]
    Conversation {
        /// What is wrong with it, without its text.
        why: &'static str,
    },
    /// The tokenizer failed.
    #[error("the tokenizer failed: {reason}")]
    Tokenizer {
        /// Its own words.
        reason: String,
    },
    /// Counting would take longer than it may.
    #[error("counting the prompt takes longer than it may (tokens.max_count_seconds)")]
    TooDear,
    /// The tenant's prompts took more of the counting time than they may.
    #[error("the prompts of this tenant took more of the counting time than they may (tokens.tenant_share)")]
    Share {
        /// Until they may take more.
        retry_after: Duration,
    },
    /// Too many prompts are waiting to be counted.
    #[error("{waiting} prompts are waiting to be counted and the limit is {limit}")]
    Busy {
        /// Waiting now.
        waiting: usize,
        /// The limit.
        limit: usize,
    },
    /// The counting task ended without an answer: a defect, or the runtime is shutting down.
    #[error("counting was stopped")]
    Stopped,
}
