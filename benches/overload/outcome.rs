//! What a course of traffic leaves behind.

use std::collections::BTreeMap;

use kvgate::sim::SeqId;

use super::workload::Request;

/// How clients behave beside asking.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Manner {
    /// How often each comes back when it was not served.
    pub retries: u32,
    /// Share of them that go to the engine directly.
    pub bypass: f64,
    /// They say nothing of when they need the first token, and wait for it as long as it takes.
    pub silent: bool,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It has not.
    Open,
    /// All of its answer came.
    Done,
    /// The gateway turned it away.
    Refused,
    /// Its client left before the first token.
    Left,
    /// The engine died under it, or was not there.
    Failed,
}

/// One attempt of one client.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Whose: the place among the requests.
    pub client: usize,
    /// Which attempt of it.
    pub attempt: u32,
    /// When it was made.
    pub arrival: f64,
    /// Whether it went past the gateway.
    pub bypass: bool,
    /// Whether it had to queue.
    pub queued: bool,
    /// Whether the engine got it.
    pub sent: bool,
    /// Output tokens so far.
    pub tokens: u32,
    /// When the first came, and the last.
    pub first: f64,
    pub last: f64,
    /// How it ended.
    pub end: End,
    /// Its name in the engine.
    pub seq: Option<SeqId>,
}

impl Attempt {
    /// One that is yet to be made.
    pub fn new(client: usize, attempt: u32, arrival: f64, bypass: bool) -> Self {
        Self {
            client,
            attempt,
            arrival,
            bypass,
            queued: false,
            sent: false,
            tokens: 0,
            first: 0.0,
            last: 0.0,
            end: End::Open,
            seq: None,
        }
    }
}

/// What a course leaves behind.
#[derive(Default)]
pub struct Outcome {
    /// The requests as they were meant.
    pub requests: Vec<Request>,
    /// What became of them, retries after the first attempts.
    pub attempts: Vec<Attempt>,
    /// Gaps between tokens: one in fifty.
    pub gaps: Vec<f64>,
    /// How often the engine died.
    pub deaths: u32,
    /// Preemptions.
    pub preemptions: u64,
    /// Tokens computed, and of these for nothing.
    pub computed: u64,
    pub wasted: u64,
    /// When the last request came.
    pub horizon: f64,
    /// What the gateway's queue waited for, and why it turned away: how often.
    pub reasons: BTreeMap<&'static str, u64>,
}
