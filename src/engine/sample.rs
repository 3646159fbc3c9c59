//! What one read of the engine said, in kvgate's words and units.

use tokio::time::Instant;

use crate::request::Tokens;

/// What kind of engine it is, as far as kvgate can tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// Nothing has answered yet.
    #[default]
    Unknown,
    /// vLLM, known by its metrics.
    Vllm,
    /// It answers, but says nothing about its load that kvgate understands.
    OpenAiCompatible,
}

impl Kind {
    /// The word for logs and the state page.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Vllm => "vllm",
            Self::OpenAiCompatible => "openai_compatible",
        }
    }
}

/// The size of the KV cache: each rank has a whole pool of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Tokens in a block.
    pub block_size: u64,
    /// Blocks of one rank, the null block among them.
    pub blocks: u64,
    /// Tokens that one rank can hold, without the null block.
    pub tokens: Tokens,
    /// Ranks with a pool each; at least 1.
    pub ranks: u64,
    /// What the engine itself calls the size of one rank's pool, the null block included.
    pub kv_cache_size_tokens: Option<Tokens>,
    /// Whether prompts share blocks.
    pub prefix_caching: Option<bool>,
}

impl Pool {
    /// Tokens that all ranks together can hold.
    #[must_use]
    pub const fn total(&self) -> Tokens {
        self.tokens.times(self.ranks)
    }

    /// The most that one request could ever hold by any of the engine's own numbers: the only
    /// size by which a prompt may be refused for good.
    #[must_use]
    pub fn ceiling(&self) -> Tokens {
        let by_blocks = Tokens(self.block_size.saturating_mul(self.blocks.saturating_sub(1)));
        self.tokens.max(by_blocks)
    }
}

/// The load of one data-parallel rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Rank {
    /// The engine's own name of it, such as `0`; empty where it names none.
    pub name: String,
    /// Requests in the running batch.
    pub running: f64,
    /// Requests waiting inside the engine.
    pub waiting: f64,
    /// KV-cache usage, 0 to 1, where said.
    pub kv_usage: Option<f64>,
}

/// One good read of the engine's metrics. Counters are sums over ranks since the engine started.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// When the answer was complete.
    pub taken: Instant,
    /// Each rank.
    pub ranks: Vec<Rank>,
    /// Running requests of all ranks.
    pub running: f64,
    /// Waiting requests of all ranks.
    pub waiting: f64,
    /// KV-cache usage of the fullest rank, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Preemptions.
    pub preemptions_total: Option<f64>,
    /// Output tokens.
    pub generation_tokens_total: Option<f64>,
    /// Prompt tokens.
    pub prompt_tokens_total: Option<f64>,
    /// Engine steps.
    pub steps_total: Option<f64>,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries_total: Option<f64>,
    /// Prompt tokens found there.
    pub prefix_hits_total: Option<f64>,
    /// When the engine's API process started, Unix seconds.
    pub start_time: Option<f64>,
    /// The pool, where said.
    pub pool: Option<Pool>,
    /// The engine was put to sleep.
    pub sleeping: bool,
}

impl Sample {
    /// Whether the engine has anything to do by its own account.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.running > 0.0 || self.waiting > 0.0
    }
}

/// One model the engine serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// The name clients use.
    pub id: String,
    /// Path or name of what was loaded: where the tokenizer is looked for.
    pub root: Option<String>,
    /// The base model, for an adapter.
    pub parent: Option<String>,
    /// Context length: prompt and output together.
    pub max_model_len: Option<Tokens>,
}

/// What the engine is; read at each start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its kind.
    pub kind: Kind,
    /// Its version, where said.
    pub version: Option<String>,
    /// What it serves, base models and adapters.
    pub models: Vec<ServedModel>,
}

impl Facts {
    /// The model a request names; with no name, or one model only and an unknown name, the first
    /// base model.
    #[must_use]
    pub fn model(&self, name: Option<&str>) -> Option<&ServedModel> {
        let named = name.and_then(|name| self.models.iter().find(|m| m.id == name));
        named.or_else(|| self.models.iter().find(|m| m.parent.is_none())).or_else(|| self.models.first())
    }

    /// The largest context length that any model says.
    #[must_use]
    pub fn context_length(&self) -> Option<Tokens> {
        self.models.iter().filter_map(|m| m.max_model_len).max()
    }
}
