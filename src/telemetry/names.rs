//! Every metric: its name, kind, unit and help. `<prefix>_<noun>_<unit>`, counters end in `_total`.

use metrics::Unit;

/// What kind of series a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, sum and count.
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The full name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit, for the help text.
    pub unit: Unit,
    /// One sentence.
    pub help: &'static str,
}

macro_rules! metrics_table {
    ($($const:ident = $name:literal, $kind:ident, $unit:ident, $help:literal;)*) => {
        $(#[doc = $help] pub const $const: &str = $name;)*
        /// Every metric kvgate exports.
        pub const ALL: &[Metric] = &[$(Metric {
            name: $name, kind: Kind::$kind, unit: Unit::$unit, help: $help,
        },)*];
    };
}

metrics_table! {
    REQUESTS = "kvgate_requests_total", Counter, Count, "Requests that ended, by API and outcome.";
    REJECTIONS = "kvgate_rejections_total", Counter, Count, "Requests refused by kvgate, by reason.";
    SHADOW_REJECTIONS = "kvgate_shadow_rejections_total", Counter, Count, "Requests that a rule in shadow would have refused, by reason and by what the engine then did.";
    SHADOW_REQUESTS = "kvgate_shadow_requests_total", Counter, Count, "Requests that a rule in shadow judged and that reached the engine, by rule.";
    SHADOW_FALSE = "kvgate_shadow_false_refusals_total", Counter, Count, "Of these, those that the rule would have refused and the engine answered whole: false refusals at most.";
    SHADOW_MISSED = "kvgate_shadow_misses_total", Counter, Count, "Of these, those that the rule let pass and the engine died under: misses at most.";
    PROMPT_TOKENS = "kvgate_prompt_tokens", Histogram, Count, "Prompt tokens of a request, counted by kvgate.";
    OUTPUT_TOKENS = "kvgate_output_tokens", Histogram, Count, "Output tokens of a request.";
    COUNT_SECONDS = "kvgate_count_seconds", Histogram, Seconds, "Time to render the template and count the tokens of one request.";
    TOKENIZER_INFO = "kvgate_tokenizer_info", Gauge, Count, "1 for what counts prompts: a library by its name, the engine's own /tokenize, or none; 0 for the others.";
    COUNT_BOUNDED = "kvgate_count_bounded_total", Counter, Count, "Requests whose prompt could not be counted in time and was admitted because its bytes say that it is within every limit.";
    COUNT_CHECKED = "kvgate_count_checked_total", Counter, Count, "Counts that were made once more by the reference library, by result.";
    COUNT_COMPARED = "kvgate_count_compared_total", Counter, Count, "Answers whose usage.prompt_tokens was compared with kvgate's count.";
    COUNT_DRIFT = "kvgate_count_drift_tokens_total", Counter, Count, "Tokens by which kvgate's count differed from the engine's, by direction.";
    QUEUE_DEPTH = "kvgate_queue_depth", Gauge, Count, "Requests waiting in kvgate's queue.";
    QUEUE_SECONDS = "kvgate_queue_seconds", Histogram, Seconds, "Time a request waited in kvgate's queue.";
    INFLIGHT_REQUESTS = "kvgate_inflight_requests", Gauge, Count, "Requests admitted whose answer has not ended.";
    INFLIGHT_TOKENS = "kvgate_inflight_reserved_tokens", Gauge, Count, "KV-cache tokens reserved for requests in flight.";
    POOL_TOKENS = "kvgate_pool_tokens", Gauge, Count, "Size of the engine's KV-cache pool in tokens; 0 while unknown.";
    ADDED_SECONDS = "kvgate_added_seconds", Histogram, Seconds, "Time a request spent in kvgate alone, without queueing, until it went to the engine.";
    TTFT_SECONDS = "kvgate_ttft_seconds", Histogram, Seconds, "Time from receiving a request to sending on its first token.";
    ITL_SECONDS = "kvgate_itl_seconds", Histogram, Seconds, "Time between two tokens of one answer.";
    ENGINE_KV_USAGE = "kvgate_engine_kv_cache_usage_ratio", Gauge, Count, "KV-cache usage as the engine reports it, 0 to 1.";
    ENGINE_RUNNING = "kvgate_engine_running_requests", Gauge, Count, "Running requests as the engine reports them.";
    ENGINE_WAITING = "kvgate_engine_waiting_requests", Gauge, Count, "Waiting requests as the engine reports them.";
    ENGINE_PREEMPTIONS = "kvgate_engine_preemptions_total", Counter, Count, "Preemptions the engine reported while kvgate watched.";
    ENGINE_SCRAPE_AGE = "kvgate_engine_scrape_age_seconds", Gauge, Seconds, "Age of the last good scrape of the engine's metrics.";
    ENGINE_STATE = "kvgate_engine_state", Gauge, Count, "1 for the state the engine is in, 0 for the others.";
    ENGINE_STARTS = "kvgate_engine_starts_total", Counter, Count, "Engine starts kvgate has seen.";
    ENGINE_LOAD_SECONDS = "kvgate_engine_load_seconds", Gauge, Seconds, "How long the engine last took from start to ready.";
    ENGINE_CRASHES = "kvgate_engine_crashes_total", Counter, Count, "Engine deaths, by cause.";
    ENGINE_DOWNTIME = "kvgate_engine_downtime_seconds_total", Counter, Seconds, "Seconds during which the engine was not ready after having been so.";
    LIMIT = "kvgate_limit", Gauge, Count, "The limit in force, by rule; 0 for none.";
    MODE = "kvgate_mode", Gauge, Count, "1 for the mode a rule is in, 0 for the others.";
    LEDGER_WRITE_ERRORS = "kvgate_ledger_write_errors_total", Counter, Count, "Ledger records that could not be written to disk.";
    LOG_LINES_DROPPED = "kvgate_log_lines_dropped_total", Counter, Count, "Log lines that stderr did not take in time (a pipe that nobody reads, a disk that hangs).";
    ALARM = "kvgate_alarm_active", Gauge, Count, "1 while the alarm is raised.";
    BUILD_INFO = "kvgate_build_info", Gauge, Count, "Always 1; the version is in the label.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_the_form() {
        for m in ALL {
            assert!(m.name.starts_with("kvgate_"), "{}", m.name);
            assert!(m.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", m.name);
            assert_eq!(m.kind == Kind::Counter, m.name.ends_with("_total"), "{}", m.name);
            assert!(m.help.ends_with('.'), "{}", m.name);
        }
    }

    #[test]
    fn every_metric_has_its_row_in_the_readme() {
        let readme = include_str!("../../README.md");
        for m in ALL {
            let row = format!("| `{}` | {} |", m.name.trim_start_matches("kvgate_"), m.help);
            assert!(readme.contains(&row), "README.md lacks the row\n{row}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ALL.iter().map(|m| m.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
