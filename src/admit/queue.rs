//! The queue: first in, first out, bounded in requests and in bytes of the bodies that wait.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::capacity::Candidate;

/// A request in the queue.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// Its ticket.
    pub id: u64,
    /// What it asks for.
    pub asked: Candidate,
    /// Bytes of its body, held in memory meanwhile.
    pub bytes: u64,
    /// Since when it waits.
    pub since: Instant,
    /// When it gives up.
    pub deadline: Instant,
    /// The wait that was predicted for it, before correction, seconds.
    pub predicted: Option<f64>,
}

/// The queue.
#[derive(Debug, Clone)]
pub struct Queue {
    waiting: VecDeque<Waiter>,
    bytes: u64,
    most: usize,
    most_bytes: u64,
}

impl Queue {
    /// An empty queue for at most `most` requests and `most_bytes` bytes.
    #[must_use]
    pub const fn new(most: usize, most_bytes: u64) -> Self {
        Self { waiting: VecDeque::new(), bytes: 0, most, most_bytes }
    }

    /// Requests in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes in it.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a request of so many bytes has a place. The first one always has.
    #[must_use]
    pub fn has_place(&self, bytes: u64) -> bool {
        self.waiting.len() < self.most
            && (self.waiting.is_empty() || self.bytes.saturating_add(bytes) <= self.most_bytes)
    }

    /// Puts a request at the end; the caller has asked [`Queue::has_place`].
    pub fn push(&mut self, waiter: Waiter) {
        self.bytes = self.bytes.saturating_add(waiter.bytes);
        self.waiting.push_back(waiter);
    }

    /// The first in line.
    #[must_use]
    pub fn front(&self) -> Option<&Waiter> {
        self.waiting.front()
    }

    /// Takes the first in line out.
    pub fn pop(&mut self) -> Option<Waiter> {
        let waiter = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(waiter.bytes);
        Some(waiter)
    }

    /// Takes one out, wherever it stands.
    pub fn remove(&mut self, id: u64) -> Option<Waiter> {
        let place = self.waiting.iter().position(|waiter| waiter.id == id)?;
        let waiter = self.waiting.remove(place)?;
        self.bytes = self.bytes.saturating_sub(waiter.bytes);
        Some(waiter)
    }

    /// All in it, first to last, to note what is learned of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.waiting.iter_mut()
    }

    /// All in it, first to last.
    pub fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.waiting.iter()
    }
}
