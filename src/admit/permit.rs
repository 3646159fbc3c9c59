//! The right to be in the engine. Lives in the answer's body and ends with it.

use std::time::Duration;

use crate::request::Tokens;

use super::admission::Ask;
use super::gate::Gate;
use super::predict::Kind;

/// A place in the engine, returned by `Drop`: last byte sent, client gone, task cancelled.
#[derive(Debug)]
pub struct Permit {
    gate: Gate,
    /// `None` where the gate was off: nothing to return.
    id: Option<u64>,
    kind: Kind,
    sequences: u64,
    reserved: Tokens,
    pub(super) waited: Duration,
    pub(super) shadow: bool,
}

impl Permit {
    pub(super) fn new(gate: Gate, id: Option<u64>, ask: &Ask, waited: Duration) -> Self {
        let reserved = gate.reserves(ask);
        Self { gate, id, kind: ask.kind(), sequences: ask.sequences.max(1), reserved, waited, shadow: false }
    }

    pub(super) const fn id(&self) -> Option<u64> {
        self.id
    }

    /// How long the request waited in the queue.
    #[must_use]
    pub const fn waited(&self) -> Duration {
        self.waited
    }

    /// Tokens that were reserved for it: prompt and expected output of all its sequences.
    #[must_use]
    pub const fn reserved(&self) -> Tokens {
        self.reserved
    }

    /// Whether the queue judged it in `shadow`.
    #[must_use]
    pub const fn in_shadow(&self) -> bool {
        self.shadow
    }

    /// In `shadow`: the reason for which it would have been refused or evicted by now. Ask at the
    /// end: one that would have waited may be evicted from the queue in which it never stood.
    #[must_use]
    pub fn would_refuse(&self) -> Option<&'static str> {
        self.gate.would_refuse(self.id?)
    }

    /// The answer broke as if the engine had died: the place that is given back is not offered to the next one.
    pub fn suspect(&self) {
        if let Some(id) = self.id {
            self.gate.suspect(id);
        }
    }

    /// The first token came.
    pub fn first_token(&self) {
        if let Some(id) = self.id {
            self.gate.first_token(id);
        }
    }

    /// So many tokens have come so far, over all its sequences, the last of them now. Never goes back.
    pub fn tokens(&self, total_so_far: Tokens) {
        if let Some(id) = self.id {
            self.gate.tokens(id, total_so_far);
        }
    }

    /// So many tokens have come so far, by the engine's own count: it teaches no pace.
    pub fn corrected(&self, total_so_far: Tokens) {
        if let Some(id) = self.id {
            self.gate.corrected(id, total_so_far);
        }
    }

    /// The answer ended by itself with so many tokens over all its sequences: teaches the lengths
    /// and the pace. Not for answers that were cut short by the client or an error.
    pub fn completed(&self, output: Tokens) {
        self.gate.completed(self.id, (self.kind, self.sequences), output);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.gate.leave(id);
        }
    }
}
