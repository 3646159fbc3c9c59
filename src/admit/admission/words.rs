//! What is asked of the admission, and what it answers.

use std::sync::Arc;
use std::time::Duration;

use crate::admit::predict::Kind;
use crate::admit::rejection::Rejection;
use crate::request::{Priority, Tokens, Trail};

/// What a request asks of the gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// Prompt tokens of all prompts together (0 where nobody counted).
    pub prompt: Tokens,
    /// Prompt tokens of the longest prompt.
    pub longest: Tokens,
    /// The asked output cap of one sequence.
    pub max_output: Option<Tokens>,
    /// Sequences the engine will hold, at least 1.
    pub sequences: u64,
    /// Whether tokens will be seen as they come.
    pub stream: bool,
    /// Bytes of the body that wait with it.
    pub body_bytes: u64,
    /// How long it may wait in the queue.
    pub max_wait: Duration,
    /// Time from now to the first token after which the answer is worth nothing, where there is one.
    pub ttft: Option<Duration>,
    /// Whose it is: any number that is the same for all of one tenant's requests.
    pub tenant: u64,
    /// Whether somebody waits for it.
    pub priority: Priority,
    /// The beginnings of its prompt, where it has text.
    pub trail: Option<Arc<Trail>>,
}

impl Ask {
    /// What tells how long its answers will be. The prompt is that of one sequence: the longest is an upper
    /// bound of the mean over prompts.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let prompt = if self.sequences <= 1 { self.prompt.max(self.longest) } else { self.longest };
        Kind { tenant: self.tenant, prompt: prompt.get(), cap: self.max_output }
    }
}

/// The answer to an arrival.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrival {
    /// It may go.
    Admitted,
    /// It waits; an [`Action`] will name it.
    Queued,
    /// It is turned away.
    Refused(Rejection),
}

/// What is to be done with a request that was queued.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// It may go: it is in the books.
    Admit {
        /// The request.
        id: u64,
        /// How long it waited.
        waited: Duration,
    },
    /// It is turned away: it is in no book any more.
    Evict {
        /// The request.
        id: u64,
        /// Why.
        why: Rejection,
    },
}
