//! vLLM: its metrics (V0 and V1 engines, 0.4 to 0.32) and its error answers.
//!
//! Names: vLLM `vllm/v1/metrics/loggers.py` and `vllm/engine/metrics.py`. KV usage is called
//! `gpu_cache_usage_perc` up to 0.10 and `kv_cache_usage_perc` from 0.9.2; both are 0 to 1. With data
//! parallelism every series stands once per rank, told apart by the label `engine`.

use std::collections::BTreeMap;

use serde::Deserialize;
use tokio::time::Instant;

use super::Said;
use crate::engine::exposition::{self, Series};
use crate::engine::{Pool, Rank, Sample};
use crate::request::Tokens;

const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const KV_USAGE: &str = "vllm:kv_cache_usage_perc";
const KV_USAGE_OLD: &str = "vllm:gpu_cache_usage_perc";
const CACHE_CONFIG: &str = "vllm:cache_config_info";
const PREEMPTIONS: &str = "vllm:num_preemptions_total";
const PROMPT: &str = "vllm:prompt_tokens_total";
const GENERATION: &str = "vllm:generation_tokens_total";
const STEPS: &str = "vllm:iteration_tokens_total_count";
const PREFIX_QUERIES: &str = "vllm:prefix_cache_queries_total";
const PREFIX_QUERIES_OLD: &str = "vllm:gpu_prefix_cache_queries_total";
const PREFIX_HITS: &str = "vllm:prefix_cache_hits_total";
const PREFIX_HITS_OLD: &str = "vllm:gpu_prefix_cache_hits_total";
const SLEEP: &str = "vllm:engine_sleep_state";
const START: &str = "process_start_time_seconds";

fn wanted(name: &str) -> bool {
    matches!(
        name,
        RUNNING
            | WAITING
            | KV_USAGE
            | KV_USAGE_OLD
            | CACHE_CONFIG
            | PREEMPTIONS
            | PROMPT
            | GENERATION
            | STEPS
            | PREFIX_QUERIES
            | PREFIX_QUERIES_OLD
            | PREFIX_HITS
            | PREFIX_HITS_OLD
            | SLEEP
            | START
    )
}

/// Reads a page of vLLM's `/metrics`; None where it is not vLLM's (no request gauges).
#[must_use]
pub fn sample(page: &[u8], taken: Instant) -> Option<Sample> {
    let page = exposition::read(page, wanted);
    let of = |name: &'static str| page.series.iter().filter(move |s| s.name == name);
    let sum = |name: &'static str| total(of(name));
    let ranks = ranks(&page.series);
    if ranks.is_empty() {
        return None;
    }
    let kv_usage = ranks.iter().filter_map(|r| r.kv_usage).reduce(f64::max);
    let asleep =
        of(SLEEP).any(|s| s.value == 0.0 && s.label("sleep_state").is_some_and(|state| state == "awake"));
    Some(Sample {
        taken,
        running: ranks.iter().map(|r| r.running).sum(),
        waiting: ranks.iter().map(|r| r.waiting).sum(),
        kv_usage,
        preemptions_total: sum(PREEMPTIONS),
        generation_tokens_total: sum(GENERATION),
        prompt_tokens_total: sum(PROMPT),
        steps_total: sum(STEPS),
        prefix_queries_total: sum(PREFIX_QUERIES).or_else(|| sum(PREFIX_QUERIES_OLD)),
        prefix_hits_total: sum(PREFIX_HITS).or_else(|| sum(PREFIX_HITS_OLD)),
        start_time: of(START).map(|s| s.value).find(|v| v.is_finite() && *v > 0.0),
        pool: pool(of(CACHE_CONFIG)),
        sleeping: asleep,
        ranks,
    })
}

/// The start of the process that wrote a page, Unix seconds: Python's own metric, there even where the
/// engine's statistics are switched off.
#[must_use]
pub fn start_time(page: &[u8]) -> Option<f64> {
    let page = exposition::read(page, |name| name == START);
    page.series.iter().map(|s| s.value).find(|v| v.is_finite() && *v > 0.0)
}

/// The sum of a counter over all its series; None where there is none or it makes no sense.
fn total<'a>(series: impl Iterator<Item = &'a Series<'a>>) -> Option<f64> {
    let usable = series.map(|s| s.value).filter(|v| v.is_finite() && *v >= 0.0);
    usable.fold(None, |sum, v| Some(sum.unwrap_or(0.0) + v))
}

fn ranks(series: &[Series<'_>]) -> Vec<Rank> {
    let mut ranks: BTreeMap<String, Rank> = BTreeMap::new();
    for s in series {
        if !matches!(s.name, RUNNING | WAITING | KV_USAGE | KV_USAGE_OLD) || !s.value.is_finite() {
            continue;
        }
        let name = s.label("engine").unwrap_or_default().into_owned();
        let rank =
            ranks.entry(name.clone()).or_insert(Rank { name, running: 0.0, waiting: 0.0, kv_usage: None });
        match s.name {
            RUNNING => rank.running += s.value.max(0.0),
            WAITING => rank.waiting += s.value.max(0.0),
            // 0.9.2 to 0.10 say both, with the same meaning.
            _ => rank.kv_usage = Some(rank.kv_usage.unwrap_or(0.0).max(s.value.clamp(0.0, 1.0))),
        }
    }
    ranks.into_values().collect()
}

/// The pool of one rank, from the labels of `cache_config_info`.
///
/// With data parallelism `num_gpu_blocks` is the sum over the ranks that one front end serves
/// (vLLM 0.32, `vllm/v1/engine/core_client.py`: "Sum values from all engines in DP case"), while the
/// override and `kv_cache_size_tokens` are those of one rank.
fn pool<'a>(infos: impl Iterator<Item = &'a Series<'a>>) -> Option<Pool> {
    let infos: Vec<_> = infos.collect();
    let first = infos.first()?;
    let number = |key: &str| first.label(key)?.parse::<u64>().ok().filter(|n| *n > 0);
    let block_size = number("block_size")?;
    let said_blocks = number("num_gpu_blocks")?;
    let said_tokens = number("kv_cache_size_tokens");
    let mut names: Vec<_> = infos.iter().filter_map(|s| s.label("engine")).collect();
    names.sort_unstable();
    names.dedup();
    let ranks = names.len().max(1) as u64;
    let is_one_ranks = number("num_gpu_blocks_override") == Some(said_blocks)
        || said_tokens.is_some_and(|t| said_blocks.checked_mul(block_size) == Some(t))
        || said_blocks % ranks != 0;
    let blocks = if is_one_ranks { said_blocks } else { said_blocks / ranks };
    // One block is the null block (vLLM `vllm/v1/core/block_pool.py`). Where layers of different
    // kinds share the pool a token takes more than one block: then only the engine's own number counts.
    let tokens = match said_tokens {
        Some(said) => said - said / blocks,
        None => block_size.saturating_mul(blocks - 1),
    };
    let prefix_caching = first.label("enable_prefix_caching").and_then(|v| match v.as_ref() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    });
    let kv_cache_size_tokens = said_tokens.map(Tokens);
    Some(Pool { block_size, blocks, tokens: Tokens(tokens), ranks, kv_cache_size_tokens, prefix_caching })
}

/// What begins the message of a dead engine.
///
/// vLLM `vllm/v1/engine/exceptions.py` (V1); `vllm/engine/async_llm_engine.py`,
/// `vllm/engine/multiprocessing/client.py` (V0).
const DEAD: &[&str] = &[
    "EngineCore encountered an issue",
    "EngineDeadError",
    "AsyncEngineDeadError",
    "MQEngineDeadError",
    "Background loop has errored already",
    "Engine loop has died",
    "Engine loop is not running",
    "MQLLMEngine is dead",
];

/// vLLM `--max-num-queued-reqs` and `--max-num-queued-tokens` (0.32).
const BUSY: &str = "The engine is currently busy";

#[derive(Deserialize)]
struct ErrorBody<'a> {
    #[serde(borrow)]
    error: Option<ErrorField<'a>>,
    #[serde(borrow)]
    object: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow)]
    message: Option<std::borrow::Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ErrorField<'a> {
    Object {
        #[serde(borrow)]
        message: std::borrow::Cow<'a, str>,
    },
    Text(#[serde(borrow)] std::borrow::Cow<'a, str>),
}

/// What an error answer, or (status 0) one event of a stream, says about the engine's life.
///
/// Only the message of an error object counts: the same words inside generated text, or quoted from
/// a prompt, mean nothing. An event may be given with or without its `data:` prefix.
#[must_use]
pub fn said(status: u16, body: &[u8]) -> Said {
    if status != 0 && status < 500 {
        return Said::Other;
    }
    // Cheap first: nearly every event of a stream is no error.
    let has = |needle: &str| memchr::memmem::find(body, needle.as_bytes()).is_some();
    if !DEAD.iter().any(|d| has(d)) && !has(BUSY) {
        return Said::Other;
    }
    body.split(|b| *b == b'\n')
        .map(|line| line_said(status, line))
        .find(|s| *s != Said::Other)
        .unwrap_or_else(|| if status == 0 { Said::Other } else { line_said(status, body) })
}

fn line_said(status: u16, line: &[u8]) -> Said {
    let line = line.trim_ascii();
    let json = line.strip_prefix(b"data:").unwrap_or(line).trim_ascii();
    match serde_json::from_slice::<ErrorBody<'_>>(json) {
        Ok(ErrorBody { error: Some(ErrorField::Object { message } | ErrorField::Text(message)), .. }) => {
            message_said(&message)
        }
        Ok(ErrorBody { object, message: Some(message), .. })
            if status != 0 || object.as_deref() == Some("error") =>
        {
            message_said(&message)
        }
        Ok(_) => Said::Other,
        // A plain-text 500 has no generated text in it.
        Err(_) if status >= 500 => std::str::from_utf8(line).map_or(Said::Other, message_said),
        Err(_) => Said::Other,
    }
}

fn message_said(message: &str) -> Said {
    let message = message.trim_start();
    if DEAD.iter().any(|d| message.starts_with(d)) {
        Said::Dead
    } else if message.starts_with(BUSY) {
        Said::Busy
    } else {
        Said::Other
    }
}

#[cfg(test)]
#[path = "vllm/tests.rs"]
mod tests;
