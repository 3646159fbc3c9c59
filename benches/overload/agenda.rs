//! What is due, in order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// What can happen.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// A client asks.
    Arrive(usize),
    /// The gateway's word has reached the engine.
    Send(usize),
    /// A client's patience is over.
    Patience(usize),
    /// The engine's step is done.
    StepDone,
    /// The gateway looks at the engine.
    Scrape,
    /// The gateway looks at its queue.
    Tick,
    /// The engine has loaded.
    Loaded,
}

struct Due(f64, u64, Event);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

/// All that is due.
#[derive(Default)]
pub struct Agenda {
    events: BinaryHeap<Reverse<Due>>,
    number: u64,
}

impl Agenda {
    /// Something is due at `when`; of two at the same time the one that was noted first comes first.
    pub fn note(&mut self, when: f64, event: Event) {
        self.number += 1;
        self.events.push(Reverse(Due(when, self.number, event)));
    }

    /// What is due next, and when.
    pub fn next(&mut self) -> Option<(f64, Event)> {
        self.events.pop().map(|Reverse(Due(when, _, event))| (when, event))
    }
}
