//! The ledger line: one request's shape and times, as it stands on disk and in every report.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::request::{Api, Outcome, Phase, PromptKind, Shape};

/// One request's shape, times and fate; serialised it is the contract's ledger line.
///
/// Times are Unix seconds, rounded to microseconds. All but `t_arrived` are offsets on the monotonic
/// clock from there, so a wall clock that is set meanwhile does not tear one request's times apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// kvgate's id.
    pub id: String,
    /// The client's `x-request-id`, where it gave one.
    #[serde(default)]
    pub client_id: Option<String>,
    /// When its head was read.
    pub t_arrived: f64,
    /// When it went to the engine.
    #[serde(default)]
    pub t_admitted: Option<f64>,
    /// When its first token was passed on.
    #[serde(default)]
    pub t_first_token: Option<f64>,
    /// When it ended.
    #[serde(default)]
    pub t_ended: Option<f64>,
    /// How it ended; `None` while it has not.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// Hash of the tenant, or `anonymous`.
    pub tenant: String,
    /// Its features.
    #[serde(flatten, with = "ShapeLine")]
    pub shape: Shape,
    /// Output tokens passed on so far.
    #[serde(default)]
    pub output_tokens: u64,
    /// KV-cache tokens reserved for it, once admitted.
    #[serde(default)]
    pub reserved_tokens: Option<u64>,
    /// Where it is, or was when it ended.
    #[serde(default)]
    pub phase: Phase,
}

/// A record with the instants that comparisons need: wall-clock times may jump.
#[derive(Debug, Clone)]
pub struct Flight {
    /// The record.
    pub record: Record,
    /// When it arrived.
    pub arrived: Instant,
    /// When it went to the engine, where it did.
    pub admitted: Option<Instant>,
    /// When it ended, where it has.
    pub ended: Option<Instant>,
}

/// The part of [`Shape`] that stands in a ledger line, name for name.
///
/// `prompts` is not in the contract's list: it is written only where a request holds more than one,
/// because then nothing else tells how many sequences the engine had to hold.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Shape", default = "Shape::default")]
struct ShapeLine {
    api: Option<Api>,
    model: Option<String>,
    prompt_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    n: u32,
    best_of: Option<u32>,
    #[serde(skip_serializing_if = "at_most_one")]
    prompts: u32,
    prompt_logprobs: Option<u32>,
    top_logprobs: Option<u32>,
    echo: bool,
    images: u32,
    image_pixels: Option<u64>,
    audio_seconds: Option<f64>,
    adapter: Option<String>,
    structured: Option<String>,
    tools: u32,
    min_tokens: u64,
    logit_bias: u32,
    prompt_kind: PromptKind,
    stream: bool,
    prefix: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn at_most_one(n: &u32) -> bool {
    *n <= 1
}

/// Unix seconds of `at`, to the microsecond; before 1970 it is 0.
pub(super) fn unix_seconds(at: SystemTime, plus: Duration) -> f64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().saturating_add(plus);
    (since.as_secs_f64() * 1e6).round() / 1e6
}
