//! Engines with a name: a model of 8 billion parameters (Llama 3.1, bf16) on two GPUs.
//!
//! Fitted to two public single-stream numbers (6.5 ms a token on an H100, some 75 tokens/s on an
//! A100-40G); the rest is roofline arithmetic (128 KiB of KV cache a token), not measured. Batch limits
//! are vLLM's defaults for such devices (0.32, `vllm/engine/arg_utils.py`).

use super::settings::Settings;

/// The names that [`Settings::preset`] knows.
pub const PRESETS: [&str; 2] = ["h100-8b", "a100-40g-8b"];

impl Settings {
    /// The engine of that name, served under it.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        let common = Self { model: name.to_owned(), prefill_us_per_token: 0.0, ..Self::default() };
        match name {
            "h100-8b" => Some(Self {
                max_model_len: 131_072,
                pool_tokens: 400_000,
                max_num_seqs: 1024,
                max_num_batched_tokens: 8192,
                step_ms: 0.6,
                weights_ms: 5.8,
                token_us: 32.0,
                context_us_per_token: 0.052,
                pair_ns: 1.0,
                sequence_us: 12.0,
                ..common
            }),
            "a100-40g-8b" => Some(Self {
                max_model_len: 32_768,
                pool_tokens: 120_000,
                max_num_seqs: 256,
                max_num_batched_tokens: 2048,
                step_ms: 0.8,
                weights_ms: 12.4,
                token_us: 78.0,
                context_us_per_token: 0.112,
                pair_ns: 2.2,
                sequence_us: 14.0,
                ..common
            }),
            _ => None,
        }
    }
}
