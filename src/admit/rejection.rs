//! Every way in which a request is turned away here, as one enum.

use std::time::Duration;

use crate::request::Tokens;

use super::capacity::HeldBy;

/// Where a length limit comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitSource {
    /// The running engine's own context length.
    Engine,
    /// The configuration.
    Configured,
    /// The profile file, for this request's class.
    Profiled,
    /// A death of the engine: longer prompts were in prefill then, and none as long had passed before.
    Learned,
}

impl LimitSource {
    /// The word in messages and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Configured => "configured",
            Self::Profiled => "profiled",
            Self::Learned => "learned",
        }
    }
}

/// Why the engine is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unavailable {
    /// It is starting or loading.
    Loading,
    /// It is gone, or refuses.
    Down,
}

impl Unavailable {
    /// The word in messages and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Down => "down",
        }
    }
}

/// What holds a request: the gate, its value, its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The gate.
    pub by: HeldBy,
    /// What the request needs.
    pub needed: u64,
    /// What is free of it.
    pub free: u64,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { by, needed, free } = self;
        match by {
            HeldBy::Kv => {
                write!(f, "the KV cache has {free} free blocks at the peak to come, {needed} are needed")
            }
            HeldBy::Seats => {
                write!(f, "the engine runs as many sequences as it can: {needed} more, {free} free")
            }
            HeldBy::PoolUnknown => {
                write!(f, "the KV cache's size is unknown: {needed} more sequences, {free} allowed")
            }
            HeldBy::Prefill => write!(f, "{needed} more prompt tokens to compute, room for {free} in time"),
            HeldBy::Latency => {
                write!(f, "its prefill would hold up {needed} streams beyond their target, {free} allowed")
            }
            HeldBy::Start => write!(
                f,
                "the engine is filled slowly after its start: {needed} more sequences, {free} allowed"
            ),
            HeldBy::Cut => {
                write!(
                    f,
                    "fewer run since the engine died of too many: {needed} more sequences, {free} allowed"
                )
            }
            HeldBy::Policy => f.write_str("the configured comparison policy holds it"),
        }
    }
}

fn because(held: Option<&Held>) -> String {
    held.map_or_else(String::new, |held| format!(" ({held})"))
}

/// Why a request was turned away before it reached the engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Rejection {
    /// The prompt is over a length limit.
    #[error(
        "the prompt has {}{prompt} tokens and the longest that runs has {} ({} limit)",
        if *at_least { "at least " } else { "" },
        limit,
        source_of_limit.label()
    )]
    PromptTooLong {
        /// Tokens of the longest prompt in the request.
        prompt: Tokens,
        /// Whether `prompt` is a lower bound.
        at_least: bool,
        /// The longest prompt that would have passed.
        limit: Tokens,
        /// The context length to name to the client: what its library knows as the model's.
        context: Tokens,
        /// Where the limit comes from.
        source_of_limit: LimitSource,
    },
    /// Prompt and asked output together are over the context length (`output = strict` only).
    #[error(
        "the prompt has {prompt} tokens and asks for {output} more; the context length is {context} tokens"
    )]
    OutputTooLong {
        /// Tokens of the longest prompt.
        prompt: Tokens,
        /// The asked output cap.
        output: Tokens,
        /// The engine's context length.
        context: Tokens,
    },
    /// The prompt is larger than the whole KV pool: the engine would let it wait for ever.
    #[error("the prompt has {}{prompt} tokens and the whole KV cache holds {limit}",
        if *at_least { "at least " } else { "" })]
    PromptExceedsPool {
        /// Tokens of the longest prompt.
        prompt: Tokens,
        /// Whether `prompt` is a lower bound.
        at_least: bool,
        /// The longest prompt that fits the pool with one token of output.
        limit: Tokens,
    },
    /// The tenant's requests per minute are used up.
    #[error("the limit of {limit} requests per minute is used up")]
    RateLimited {
        /// Requests per minute.
        limit: u32,
        /// Requests left now (0).
        remaining: u32,
        /// Until the next request passes.
        retry_after: Duration,
    },
    /// The queue holds no more.
    #[error("the queue is full: {queued} requests wait and the limit is {limit}{}", because(held.as_ref()))]
    QueueFull {
        /// Requests in the queue.
        queued: usize,
        /// Requests that may be in it (the queue's bytes may be the tighter limit).
        limit: usize,
        /// What holds the first of them.
        held: Option<Held>,
        /// Until it would get in.
        retry_after: Duration,
    },
    /// The request could not be served before its deadline: said at once, before it waits.
    #[error("the wait would be {:.1} s and the deadline is {:.1} s{}",
        predicted.as_secs_f64(), deadline.as_secs_f64(), because(held.as_ref()))]
    WaitTooLong {
        /// The predicted wait.
        predicted: Duration,
        /// The longest wait allowed.
        deadline: Duration,
        /// What holds the queue.
        held: Option<Held>,
        /// Until it would get in.
        retry_after: Duration,
    },
    /// The deadline passed in the queue.
    #[error("it waited {:.1} s, which is its deadline{}", waited.as_secs_f64(), because(held.as_ref()))]
    DeadlinePassed {
        /// Time in the queue.
        waited: Duration,
        /// What held the queue.
        held: Option<Held>,
        /// Until it would get in.
        retry_after: Duration,
    },
    /// The engine cannot take requests now.
    #[error("the engine is {}", why.label())]
    EngineUnavailable {
        /// What it does instead.
        why: Unavailable,
        /// The learned load time that is left, or a guess.
        retry_after: Duration,
    },
    /// The gateway itself is going down.
    #[error("the gateway is draining")]
    Draining {
        /// When another one will be there.
        retry_after: Duration,
    },
    /// The prompt would take too long to count.
    #[error(
        "the prompt takes longer to count than it may: hostile or very long text (tokens.max_count_seconds)"
    )]
    CountTooDear,
    /// The tenant's prompts took more of the counting time than they may.
    #[error("the prompts of this tenant took more of the counting time than they may (tokens.tenant_share)")]
    CountShare {
        /// Until they may take more.
        retry_after: Duration,
    },
    /// Too many prompts are being counted at once.
    #[error("too many prompts are being counted at once")]
    CountBusy {
        /// Until it is worth trying again.
        retry_after: Duration,
    },
}

impl Rejection {
    /// One word: the metric label, the log field and the `code` sent to the client.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::PromptTooLong { .. } | Self::OutputTooLong { .. } | Self::PromptExceedsPool { .. } => {
                "context_length_exceeded"
            }
            Self::CountTooDear => "request_too_large",
            Self::RateLimited { .. } | Self::CountShare { .. } => "rate_limited",
            Self::QueueFull { .. }
            | Self::WaitTooLong { .. }
            | Self::DeadlinePassed { .. }
            | Self::CountBusy { .. } => "engine_saturated",
            Self::EngineUnavailable { .. } | Self::Draining { .. } => "engine_unavailable",
        }
    }

    /// When the client may come back, where coming back helps.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. }
            | Self::QueueFull { retry_after, .. }
            | Self::WaitTooLong { retry_after, .. }
            | Self::DeadlinePassed { retry_after, .. }
            | Self::EngineUnavailable { retry_after, .. }
            | Self::Draining { retry_after }
            | Self::CountShare { retry_after }
            | Self::CountBusy { retry_after } => Some(*retry_after),
            Self::PromptTooLong { .. }
            | Self::OutputTooLong { .. }
            | Self::PromptExceedsPool { .. }
            | Self::CountTooDear => None,
        }
    }

    /// Whether the request had been in the queue (`evicted`), or was refused on arrival (`rejected`).
    #[must_use]
    pub const fn was_queued(&self) -> bool {
        matches!(self, Self::DeadlinePassed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_the_value_and_the_limit() {
        let r = Rejection::PromptTooLong {
            prompt: Tokens(2049),
            at_least: true,
            limit: Tokens(2047),
            context: Tokens(2048),
            source_of_limit: LimitSource::Engine,
        };
        assert_eq!(
            r.to_string(),
            "the prompt has at least 2049 tokens and the longest that runs has 2047 (engine limit)"
        );
        assert_eq!(r.reason(), "context_length_exceeded");
        assert_eq!(r.retry_after(), None);
    }
}
