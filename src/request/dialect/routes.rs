//! The route table: which paths carry prompts, which change the engine.
//!
//! A path is compared after normalising: percent-decoding (until nothing is left to decode, three
//! rounds at most), `\` as `/`, `//` and `.` collapsed, `..` resolved, `;params` dropped, blanks and
//! control characters at the ends of a segment dropped, ASCII lower case, no trailing `/`. Engines
//! normalise less than that (Starlette matches `/v1/completions%0A`, axum and reverse proxies
//! collapse `//`), so a spelling that some engine or proxy in between understands is found, and one
//! that none understands is read in vain and answered 404 by the engine.
//!
//! To read another API, give its row a [`Way::Prompt`]; everything else follows from the table.

use std::borrow::Cow;

use http::Method;

use super::Route;
use crate::request::Api;

/// What a row of the table says.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// POST carries a prompt of this API.
    Prompt(Api),
    /// POST carries a prompt that nobody reads yet: forwarded, uncounted.
    Door,
    /// Closed on every method: several engines change state on GET as well.
    Closed,
    /// Closed on every method but GET, HEAD and OPTIONS, which only show.
    ClosedToWrites,
}

use Way::{Closed, ClosedToWrites, Door, Prompt};

/// Segments; `*` is any one segment, `**` at the end is any number of them, one at least; a `*` at
/// the end of a longer segment is any rest of it. All lower case.
/// Sources: vLLM 0.32.0 `entrypoints/`, SGLang, TGI, llama.cpp, TensorRT-LLM and Triton route tables.
#[rustfmt::skip]
const TABLE: &[(&str, Way)] = &[
    // Prompts that are read.
    ("v1/completions", Prompt(Api::Completions)),
    ("v1/chat/completions", Prompt(Api::Chat)),
    // Prompts that are not read yet (vLLM 0.32).
    ("v1/responses", Door), ("v1/messages", Door), ("v1/messages/count_tokens", Door),
    ("invocations", Door), ("v1/chat/completions/batch", Door), ("inference/v1/generate", Door),
    ("generative_scoring", Door), ("v1/systemone", Door), ("v1/embeddings", Door), ("v2/embed", Door),
    ("pooling", Door), ("classify", Door), ("score", Door), ("v1/score", Door), ("rerank", Door),
    ("v1/rerank", Door), ("v2/rerank", Door), ("v2/chat", Door), ("v1/audio/transcriptions", Door),
    ("v1/audio/translations", Door), ("tokenize", Door), ("generate", Door), ("generate_stream", Door),
    ("completion", Door), ("completions", Door), ("infill", Door),
    // vLLM: LoRA, sleep, cache, profiler, weights, elastic EP, fault tolerance.
    ("v1/load_lora_adapter", Closed), ("v1/unload_lora_adapter", Closed), ("adapters", ClosedToWrites),
    ("adapters/**", ClosedToWrites), ("sleep", Closed), ("wake_up", Closed), ("release_kv_cache_memory", Closed),
    ("pause", Closed), ("resume", Closed), ("abort_requests", Closed),
    ("inference/v1/abort_requests", Closed), ("reset_prefix_cache", Closed), ("reset_mm_cache", Closed),
    ("reset_encoder_cache", Closed), ("collective_rpc", Closed), ("start_profile", Closed),
    ("stop_profile", Closed), ("update_weights*", Closed), ("update_weight_version", Closed),
    ("init_weight*", Closed), ("shutdown_weight*", Closed), ("start_weight_update", Closed),
    ("start_draft_weight_update", Closed), ("finish_weight_update", Closed), ("weight_checker", Closed),
    ("scale_elastic_ep", Closed), ("shutdown", Closed), ("fault_tolerance/apply", Closed),
    ("fault_tolerance/status", ClosedToWrites),
    // SGLang.
    ("flush_cache", Closed), ("begin_weight_update", Closed), ("end_weight_update", Closed),
    ("destroy_*", Closed), ("send_weights*", Closed), ("get_weights_by_name", Closed),
    ("weights_checker", Closed), ("release_memory*", Closed), ("resume_memory*", Closed),
    ("slow_down", Closed), ("pd_role_switch", Closed), ("load_lora_adapter*", Closed),
    ("unload_lora_adapter", Closed), ("open_session", Closed), ("close_session", Closed),
    ("configure_logging", Closed), ("abort_request", Closed), ("pause_generation", Closed),
    ("continue_generation", Closed), ("set_internal_state", Closed), ("dumper/**", Closed),
    ("hicache/**", Closed), ("add_external_corpus", Closed), ("remove_external_corpus", Closed),
    ("freeze_gc", Closed), ("set_trace_level", Closed), ("start_expert_distribution_record", Closed),
    ("stop_expert_distribution_record", Closed), ("dump_expert_distribution_record", Closed),
    // llama.cpp: slot save, restore, erase; properties; adapters; router mode.
    ("slots/**", Closed), ("slots", ClosedToWrites), ("props", ClosedToWrites),
    ("lora-adapters", ClosedToWrites), ("models/load", Closed), ("models/unload", Closed),
    ("models", ClosedToWrites), ("cors-proxy", Closed), ("tools", Closed),
    ("v1/chat/completions/control", Closed),
    // TensorRT-LLM.
    ("_internal/**", Closed),
    // Triton.
    ("v2/repository/models/*/load", Closed), ("v2/repository/models/*/unload", Closed),
    ("v1/models/*/load", Closed), ("v1/models/*/unload", Closed),
    ("v2/systemsharedmemory/**", Closed), ("v2/cudasharedmemory/**", Closed),
    ("v2/trace/setting", ClosedToWrites), ("v2/models/*/trace/setting", ClosedToWrites),
    ("v2/logging", ClosedToWrites),
];

/// Decides what kvgate does with a method and path (the query may follow it and is not looked at).
#[must_use]
pub fn route(method: &Method, path: &str) -> Route {
    // The two paths that nearly all requests take need no table.
    match path {
        "/v1/chat/completions" if *method == Method::POST => return Route::Prompt(Api::Chat),
        "/v1/completions" if *method == Method::POST => return Route::Prompt(Api::Completions),
        _ => {}
    }
    let path = normal(path);
    let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    for (pattern, way) in TABLE {
        if !matches(pattern, &segments) {
            continue;
        }
        match way {
            Prompt(api) if *method == Method::POST => return Route::Prompt(*api),
            Closed => return Route::Closed,
            ClosedToWrites if !reads => return Route::Closed,
            Prompt(_) | Door | ClosedToWrites => return Route::Forward,
        }
    }
    Route::Forward
}

/// Pages that monitors, probes and client libraries read.
const PAGES: &[&str] = &[
    "health",
    "ping",
    "version",
    "load",
    "metrics",
    "v1/models",
    "v1/models/*",
    "info",
    "is_paused",
    "is_sleeping",
    "tokenize",
    "detokenize",
];

/// Whether a path is a prompt that is read, a page that shows, or closed. A door whose prompts nobody
/// reads is not known.
#[must_use]
pub fn is_known(path: &str) -> bool {
    let path = normal(path);
    let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
    let tables = TABLE.iter().filter(|(_, way)| !matches!(way, Door)).map(|(pattern, _)| pattern);
    tables.chain(PAGES).any(|pattern| matches(pattern, &segments))
}

/// Whether the segments of a path fit a pattern of the table.
fn matches(pattern: &str, path: &[&str]) -> bool {
    let mut path = path.iter();
    for want in pattern.split('/') {
        let Some(have) = path.next() else { return false };
        match want.strip_suffix('*') {
            Some("*") => return true,
            Some(start) if have.starts_with(start) => {}
            None if *have == want => {}
            _ => return false,
        }
    }
    path.next().is_none()
}

/// The path as compared: see the module.
fn normal(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut bytes = Cow::Borrowed(path.as_bytes());
    for _ in 0..3 {
        let Some(decoded) = percent_decoded(&bytes) else { break };
        bytes = Cow::Owned(decoded);
    }
    let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase().replace('\\', "/");
    let mut out: Vec<&str> = Vec::new();
    for segment in text.split('/') {
        let bare = segment.split(';').next().unwrap_or_default();
        let bare = bare.trim_matches(|c: char| c.is_whitespace() || c.is_control());
        match bare {
            "" | "." => {}
            ".." => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out.join("/")
}

/// One round of percent-decoding, or `None` where nothing is encoded.
fn percent_decoded(bytes: &[u8]) -> Option<Vec<u8>> {
    let digit = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let (mut at, mut found) = (0, false);
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                found = true;
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn post(path: &str) -> Route {
        route(&Method::POST, path)
    }

    #[test]
    fn a_prompt_path_is_found_in_any_spelling() {
        for path in [
            "/v1/completions",
            "//v1/completions",
            "/v1/completions/",
            "/v1//completions",
            "/v1/%63ompletions",
            "/v1/%2563ompletions",
            "/V1/Completions",
            "/v1/completions;x=1",
            "/v1/completions%0A",
            "/v1/./completions",
            "/x/../v1/completions",
            "/v1/completions?stream=1",
            "\\v1\\completions",
        ] {
            assert_eq!(post(path), Route::Prompt(Api::Completions), "{path:?}");
        }
        assert_eq!(post("/v1/%63hat/completions"), Route::Prompt(Api::Chat));
        assert_eq!(route(&Method::GET, "/v1/completions"), Route::Forward);
    }

    #[test]
    fn other_doors_are_forwarded_and_not_taken_for_prompts() {
        for path in ["/v1/chat/completions/batch", "/v1/responses", "/invocations", "/x/v1/completions", "/"]
        {
            assert_eq!(post(path), Route::Forward, "{path}");
        }
    }

    #[test]
    fn paths_that_change_the_engine_are_closed_on_any_method_and_in_any_spelling() {
        for path in [
            "/v1/load_lora_adapter",
            "//sleep",
            "/%73leep",
            "/sleep/",
            "/Sleep;a",
            "/collective_rpc",
            "/update_weights_from_disk",
            "/init_weight_transfer_engine",
            "/slots/0?action=erase",
            "/v2/repository/models/m/load",
            "/flush_cache",
            "/scale_elastic_ep",
            "/v1/../reset_prefix_cache",
        ] {
            for method in [Method::POST, Method::GET, Method::PUT, Method::OPTIONS] {
                assert_eq!(route(&method, path), Route::Closed, "{method} {path}");
            }
        }
    }

    #[test]
    fn what_only_shows_stays_open() {
        for path in
            ["/is_paused", "/is_sleeping", "/health", "/slots", "/props", "/v1/models", "/server_info"]
        {
            assert_eq!(route(&Method::GET, path), Route::Forward, "{path}");
        }
        assert_eq!(post("/props"), Route::Closed);
        assert_eq!(post("/lora-adapters"), Route::Closed);
    }

    proptest! {
        #[test]
        fn any_path_is_routed_without_panic(path in "\\PC{0,40}") {
            let _ = post(&path);
        }
    }
}
