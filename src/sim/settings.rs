//! What the simulated engine is: its model, its pool, its speed.

use serde::{Deserialize, Serialize};

use super::fault::{Fault, Loading};
use super::scheduler::Limits;

/// Settings of the simulated engine; the defaults suit the demo (about 20 ms a decode step).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Port on 127.0.0.1, 0 to 65535; 0 takes a free one.
    pub port: u16,
    /// Name under which the model is served.
    pub model: String,
    /// `root` of `/v1/models`: where the tokenizer lies. `None` says the model's name.
    pub root: Option<String>,
    /// Context length in tokens, at least 2: prompt and output together.
    pub max_model_len: u64,
    /// Tokens in one KV-cache block, at least 1.
    pub block_size: u32,
    /// Tokens in the KV-cache pool. One block of it is never used, as in vLLM.
    pub pool_tokens: u64,
    /// Sequences that run at once, at least 1.
    pub max_num_seqs: usize,
    /// Tokens computed in one step, at least 1: longer prompts take several steps (chunked prefill).
    pub max_num_batched_tokens: u32,
    /// Time of a step in milliseconds, whatever is in it.
    pub step_ms: f64,
    /// Time to read the model's weights in a step, in milliseconds: what `token_us` adds up to is hidden
    /// behind it.
    pub weights_ms: f64,
    /// Time for each token computed in a step, prompt or output, in microseconds, where all of them together
    /// take longer than the weights.
    pub token_us: f64,
    /// Time added for each prompt token computed in a step, in microseconds.
    pub prefill_us_per_token: f64,
    /// Time added for each token that a decoding sequence holds, in microseconds (reading the cache).
    pub context_us_per_token: f64,
    /// Time added for each pair of a prompt token computed in a step and one before it, in nanoseconds
    /// (attention).
    pub pair_ns: f64,
    /// Time added for each sequence in a step, in microseconds (sampling, and the work of the host).
    pub sequence_us: f64,
    /// A full step that computes a prompt beyond so many tokens kills the engine. `None`: no prompt does.
    pub deadly_context_tokens: Option<u32>,
    /// Prompts in prefill at once that have more tokens together kill the engine. `None`: they do not.
    pub deadly_prefill_tokens: Option<u32>,
    /// Median output of a chat that sets no limit, in tokens; lengths are log-normal about it.
    pub output_median_tokens: u64,
    /// Spread of these lengths: the standard deviation of their logarithm, 0 to 3.
    pub output_sigma: f64,
    /// Seed of the lengths and ids; the same seed and arrivals give the same lengths.
    pub seed: u64,
    /// Seconds after which an idle kept-alive connection is closed (vLLM: 5).
    pub keep_alive_seconds: f64,
    /// Largest number of sequences waiting and running; beyond it 503, as vLLM's
    /// `--max-num-queued-reqs`. `None`: no limit.
    pub max_num_queued_reqs: Option<u64>,
    /// Seconds of loading before it listens for the first time.
    pub start_load_seconds: f64,
    /// Seconds of loading after a death, before it listens again. `None`: it stays dead.
    pub load_seconds: Option<f64>,
    /// What a connection meets while it loads.
    pub loading: Loading,
    /// Faults in force from the start.
    pub faults: Vec<Fault>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            port: 0,
            model: "sim".to_owned(),
            root: None,
            max_model_len: 2048,
            block_size: 16,
            pool_tokens: 4096,
            max_num_seqs: 8,
            max_num_batched_tokens: 2048,
            step_ms: 20.0,
            weights_ms: 0.0,
            token_us: 0.0,
            prefill_us_per_token: 50.0,
            context_us_per_token: 0.5,
            pair_ns: 0.0,
            sequence_us: 0.0,
            deadly_context_tokens: None,
            deadly_prefill_tokens: None,
            output_median_tokens: 120,
            output_sigma: 0.6,
            seed: 1,
            keep_alive_seconds: 5.0,
            max_num_queued_reqs: None,
            start_load_seconds: 0.0,
            load_seconds: None,
            loading: Loading::Refused,
            faults: Vec::new(),
        }
    }
}

impl Settings {
    /// Blocks of the pool, the unused one among them (`num_gpu_blocks`).
    #[must_use]
    pub fn blocks(&self) -> u32 {
        u32::try_from(self.pool_tokens / u64::from(self.block_size.max(1))).unwrap_or(u32::MAX)
    }

    /// What the scheduler is bound by.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            block_size: self.block_size.max(1),
            usable_blocks: self.blocks().saturating_sub(1),
            max_num_seqs: self.max_num_seqs,
            max_batched_tokens: self.max_num_batched_tokens,
            deadly_context: self.deadly_context_tokens,
            deadly_prefill: self.deadly_prefill_tokens,
        }
    }

    /// The first value that is out of its range, as (key, range, value).
    pub(super) fn wrong(&self) -> Option<(&'static str, &'static str, String)> {
        let seconds = |v: f64| (0.0..=86_400.0).contains(&v);
        let checks = [
            (self.max_model_len >= 2, "max_model_len", "at least 2", self.max_model_len.to_string()),
            (self.block_size >= 1, "block_size", "at least 1", self.block_size.to_string()),
            (self.blocks() >= 2, "pool_tokens", "at least two blocks", self.pool_tokens.to_string()),
            (self.max_num_seqs >= 1, "max_num_seqs", "at least 1", self.max_num_seqs.to_string()),
            (
                self.max_num_batched_tokens >= 1,
                "max_num_batched_tokens",
                "at least 1",
                self.max_num_batched_tokens.to_string(),
            ),
            (seconds(self.step_ms / 1e3), "step_ms", "0 to a day", self.step_ms.to_string()),
            (seconds(self.weights_ms / 1e3), "weights_ms", "0 to a day", self.weights_ms.to_string()),
            (
                (0.0..=3.0).contains(&self.output_sigma),
                "output_sigma",
                "0 to 3",
                self.output_sigma.to_string(),
            ),
            (
                seconds(self.keep_alive_seconds) && self.keep_alive_seconds > 0.0,
                "keep_alive_seconds",
                "more than 0, at most a day",
                self.keep_alive_seconds.to_string(),
            ),
            (
                seconds(self.start_load_seconds),
                "start_load_seconds",
                "0 to a day",
                self.start_load_seconds.to_string(),
            ),
            (
                self.load_seconds.is_none_or(seconds),
                "load_seconds",
                "0 to a day",
                format!("{:?}", self.load_seconds),
            ),
        ];
        checks.into_iter().find(|(fine, ..)| !fine).map(|(_, key, range, value)| (key, range, value))
    }
}
