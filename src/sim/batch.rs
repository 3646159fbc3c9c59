//! What the scheduler and those who run it tell each other.

/// Names a sequence; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Tokens computed so far, and what they were good for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// All.
    pub computed: u64,
    /// Of these, computed once more after a preemption.
    pub recomputed: u64,
    /// Of these, computed for sequences that were aborted.
    pub abandoned: u64,
    /// Prompt tokens that did not need to be computed: they were cached.
    pub cached: u64,
}

/// One sequence's part in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens computed for it in this step.
    pub tokens: u32,
    /// Tokens of it computed before.
    pub computed: u32,
    /// Whether it left the waiting queue for this step.
    pub new: bool,
    /// Whether it only decodes: one token, all before it computed.
    pub decodes: bool,
}

/// The step to be made next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Who takes part, running ones first.
    pub shares: Vec<Share>,
    /// Who was thrown out to make room.
    pub preempted: Vec<SeqId>,
}

impl Batch {
    /// Tokens computed in this step.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.shares.iter().map(|s| u64::from(s.tokens)).sum()
    }
}

/// One token that a step brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Produced {
    /// The sequence.
    pub seq: SeqId,
    /// How many output tokens it has now.
    pub generated: u32,
    /// Whether that was its last.
    pub last: bool,
}

/// What the engine's gauges show: the state after its last step.
///
/// A sequence that came during the step is in none of them: vLLM takes new requests in between two steps (0.32,
/// `vllm/v1/engine/core.py`, `run_busy_loop`).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gauges {
    /// Sequences that run.
    pub running: usize,
    /// Sequences that the step left waiting.
    pub waiting: usize,
    /// Share of the usable blocks in use, 0 to 1.
    pub kv_usage: f64,
}
