//! Why counting does not answer.

use std::time::Duration;

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
