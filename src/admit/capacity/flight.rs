//! A request as the books see it: what it asks for, what it will likely be, how far it is.

use tokio::time::Instant;

use crate::admit::predict::Kind;
use crate::request::{Priority, Tokens};

use super::pace::Began;
use super::prefill::Prompt;
use super::timeline::Job;

/// A request that asks to be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Tenant, prompt tokens of one sequence, asked cap of one sequence.
    pub kind: Kind,
    /// Sequences, at least 1.
    pub sequences: u64,
    /// Whether its tokens will be seen as they come.
    pub stream: bool,
    /// Who goes first.
    pub priority: Priority,
    /// Output tokens of one sequence: a bound that most answers stay within.
    pub output: u64,
    /// Output tokens of one sequence by its own draw from the lengths of its kind: one such for each request
    /// shows how all of them together will end, where a bound for each would be far too much.
    pub plan: u64,
    /// Output tokens of one sequence that are expected, for waits.
    pub likely: u64,
    /// Its draw, in 2⁻³².
    pub draw: u32,
    /// Whether `plan` is a matter of chance; else it is a bound.
    pub doubt: bool,
    /// Prompt tokens that the engine will likely find in its prefix cache.
    pub cached: u64,
}

impl Candidate {
    /// The same, with so many prompt tokens that the engine will likely find in its prefix cache: they cost no
    /// prefill. The KV pool is not credited: what is shared there shows in the next scrape.
    #[must_use]
    pub const fn crediting(self, cached: u64) -> Self {
        Self { cached, ..self }
    }

    /// Its prompt, as the engine's prefill sees it.
    #[must_use]
    pub const fn prompt(&self) -> Prompt {
        Prompt { tokens: self.kind.prompt, cached: self.cached }
    }

    /// Tokens it reserves: prompt and output of all its sequences.
    #[must_use]
    pub fn reserved(&self) -> Tokens {
        Tokens(self.kind.prompt.saturating_add(self.output)).times(self.sequences)
    }

    /// Blocks that it holds at its planned end.
    #[must_use]
    pub const fn blocks(&self, block: u64) -> u64 {
        self.kind.prompt.saturating_add(self.plan).div_ceil(block).saturating_mul(self.sequences)
    }

    /// How much the sum of what all hold may be off because of it: the square of a sequence's blocks at
    /// its end, for each sequence; 0 where nothing is left to chance.
    #[must_use]
    pub fn doubt(&self, block: u64) -> f64 {
        let blocks = self.kind.prompt.saturating_add(self.plan).div_ceil(block) as f64;
        if self.doubt { blocks * blocks * self.sequences as f64 } else { 0.0 }
    }

    /// The job that it would be, from now on.
    pub(super) const fn job(&self, slack: u64, likely: bool) -> Job {
        let output = if likely { self.likely } else { self.plan };
        Job {
            start: 0,
            end: output.saturating_add(slack),
            tokens: self.kind.prompt,
            most: self.kind.prompt.saturating_add(output),
            sequences: self.sequences,
            measured: false,
        }
    }
}

/// A place in the distribution of lengths for each request, evenly spread over any number of them in a row
/// (multiples of the golden ratio), in 2⁻³².
#[must_use]
pub const fn draw(id: u64) -> u32 {
    (id as u32).wrapping_mul(0x9E37_79B9)
}

/// A request in the engine.
#[derive(Debug, Clone, Copy)]
pub struct Flight {
    /// What it asked for; what it will likely be follows what it has generated.
    pub asked: Candidate,
    /// Tokens that each sequence is known to have generated.
    pub generated: u64,
    /// When it was admitted.
    pub admitted: Instant,
    /// When its first token came.
    pub first: Option<Instant>,
    /// When its last token came.
    pub(super) last: Option<Instant>,
    /// Seconds in which anything was in flight, when it was admitted.
    pub(super) busy: f64,
    /// The engine's steps when it was admitted, once a scrape has shown them.
    pub(super) clock: Option<f64>,
    /// Tokens of each sequence that likely come.
    pub(super) left: u64,
}

impl Flight {
    /// One that goes to the engine now, after `busy` seconds in which anything was in flight.
    #[must_use]
    pub(super) const fn new(asked: Candidate, busy: f64, now: Instant) -> Self {
        Self {
            asked,
            generated: 0,
            admitted: now,
            first: None,
            last: None,
            busy,
            clock: None,
            left: asked.likely,
        }
    }

    pub(super) const fn began(&self) -> Began {
        Began { at: self.admitted, clock: self.clock }
    }

    /// Tokens that all its sequences hold by what is known.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.asked.kind.prompt.saturating_add(self.generated).saturating_mul(self.asked.sequences)
    }
}
