//! The shape of a request: everything about it that may matter to the engine, and none of its text.

use serde::{Deserialize, Serialize};

use super::Tokens;

/// The API that was called; also a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/chat/completions`
    Chat,
    /// Everything that carries no prompt kvgate reads.
    Other,
}

impl Api {
    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Completions => "completions",
            Self::Chat => "chat",
            Self::Other => "other",
        }
    }
}

/// What a prompt is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptKind {
    /// Text or messages.
    #[default]
    Text,
    /// Token ids.
    Ids,
    /// Embeddings.
    Embeds,
}

/// Where a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting in kvgate's queue: the engine has not seen it.
    #[default]
    Queued,
    /// With the engine, no token yet.
    Prefill,
    /// Tokens are coming.
    Decode,
}

/// How a request ended; also a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The engine's answer was passed on whole (any status below 400).
    Completed,
    /// Refused before it reached the engine.
    Rejected,
    /// Left the queue unsent: its deadline passed, or the engine went away.
    Evicted,
    /// The client left.
    ClientGone,
    /// The engine answered with an error of its own.
    EngineError,
    /// The engine could not be reached.
    EngineUnavailable,
    /// The engine died under it.
    EngineCrashed,
    /// No progress within the configured time.
    Timeout,
}

impl Outcome {
    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Rejected => "rejected",
            Self::Evicted => "evicted",
            Self::ClientGone => "client_gone",
            Self::EngineError => "engine_error",
            Self::EngineUnavailable => "engine_unavailable",
            Self::EngineCrashed => "engine_crashed",
            Self::Timeout => "timeout",
        }
    }
}

/// The features of one request. Unknown or absent is `None`, zero or false.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shape {
    /// The API called.
    pub api: Option<Api>,
    /// The model asked for, at most 128 characters of it.
    pub model: Option<String>,
    /// Exact prompt tokens of all prompts together, once counted.
    pub prompt_tokens: Option<u64>,
    /// The asked output cap of one sequence, where the request names one.
    pub max_output_tokens: Option<u64>,
    /// Sequences asked for per prompt; 0 means not given.
    pub n: u32,
    /// `best_of`.
    pub best_of: Option<u32>,
    /// Number of prompts in the request; at least 1.
    pub prompts: u32,
    /// `prompt_logprobs` (0 counts as asked for).
    pub prompt_logprobs: Option<u32>,
    /// `top_logprobs`, or `logprobs` of a completion.
    pub top_logprobs: Option<u32>,
    /// `echo`.
    pub echo: bool,
    /// Image parts.
    pub images: u32,
    /// Pixels of all images, where known.
    pub image_pixels: Option<u64>,
    /// Seconds of audio, where known.
    pub audio_seconds: Option<f64>,
    /// LoRA adapter, where the model names one.
    pub adapter: Option<String>,
    /// Kind of structured output: `json_object`, `json_schema`, `regex`, `grammar`, `choice` …
    pub structured: Option<String>,
    /// Number of tools.
    pub tools: u32,
    /// `min_tokens`.
    pub min_tokens: u64,
    /// Entries of `logit_bias`.
    pub logit_bias: u32,
    /// What the prompt is made of.
    pub prompt_kind: PromptKind,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// Keyed hash of the start of the prompt, hex.
    pub prefix: Option<String>,
}

impl Shape {
    /// Sequences the engine holds at once for this request: prompts × max(n, `best_of`).
    #[must_use]
    pub fn sequences(&self) -> u64 {
        let each = u64::from(self.n.max(1)).max(u64::from(self.best_of.unwrap_or(1)));
        u64::from(self.prompts.max(1)).saturating_mul(each)
    }

    /// The exact prompt tokens, or zero before counting.
    #[must_use]
    pub fn prompt(&self) -> Tokens {
        Tokens(self.prompt_tokens.unwrap_or(0))
    }
}
