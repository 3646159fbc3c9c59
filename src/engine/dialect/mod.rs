//! Where engine words become ours: one file per engine.

pub mod openai;
pub mod vllm;

/// What an engine's error answer means for the engine's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The engine behind the API is dead.
    Dead,
    /// It refuses for now, and says so.
    Busy,
    /// Anything else.
    Other,
}
