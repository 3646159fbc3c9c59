//! The metrics page, with the names and labels of vLLM 0.32 (V1 engine).

use std::fmt::Write as _;

use super::core::Core;
use super::histogram::Histogram;
use super::record::Record;
use super::settings::Settings;

/// Content type of the page.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

struct Page {
    text: String,
    labels: String,
    started: f64,
}

/// The page as of now.
pub(super) fn page(core: &Core) -> String {
    let settings = &core.shared().settings;
    let record = core.record();
    let labels = format!("engine=\"0\",model_name=\"{}\"", escaped(&settings.model));
    let mut page = Page { text: String::with_capacity(16 * 1024), labels, started: core.started() };
    page.head(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
    );
    let _ = writeln!(page.text, "process_start_time_seconds {:?}", page.started);
    gauges(&mut page, &record);
    counters(&mut page, &record);
    histograms(&mut page, &record);
    page.cache_config(settings);
    page.text
}

fn gauges(page: &mut Page, record: &Record) {
    let (running, waiting) = (record.running as f64, record.waiting as f64);
    page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", running);
    page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting);
    page.head("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.");
    page.line("vllm:num_requests_waiting_by_reason", ",reason=\"capacity\"", waiting);
    page.line("vllm:num_requests_waiting_by_reason", ",reason=\"deferred\"", 0.0);
    page.head("vllm:engine_sleep_state", "gauge", "Engine sleep state.");
    for (state, value) in [("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)] {
        page.line("vllm:engine_sleep_state", &format!(",sleep_state=\"{state}\""), value);
    }
    page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", record.kv_usage);
}

fn counters(page: &mut Page, record: &Record) {
    page.counter("vllm:prefix_cache_queries", "Prefix cache queries, in number of queried tokens.", 0);
    page.counter("vllm:prefix_cache_hits", "Prefix cache hits, in number of cached tokens.", 0);
    page.counter(
        "vllm:num_preemptions",
        "Cumulative number of preemption from the engine.",
        record.preemptions,
    );
    page.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", record.prompt_tokens);
    page.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", 0);
    page.counter(
        "vllm:generation_tokens",
        "Number of generation tokens processed.",
        record.generation_tokens,
    );
    let name = "vllm:request_success_total";
    page.head(name, "counter", "Count of successfully processed requests.");
    let reasons = [("stop", record.stopped), ("length", record.at_length), ("abort", 0), ("error", 0)];
    for (reason, value) in reasons.into_iter().chain([("repetition", 0)]) {
        page.line(name, &format!(",finished_reason=\"{reason}\""), value as f64);
    }
    let name = "vllm:admission_rejections_total";
    page.head(name, "counter", "Number of admission attempts rejected by a queue limit, by reason.");
    let model = page.labels.trim_start_matches("engine=\"0\",").to_owned();
    for (reason, value) in [("max_num_queued_reqs", record.rejections), ("max_num_queued_tokens", 0)] {
        let _ = writeln!(page.text, "{name}{{{model},reason=\"{reason}\"}} {:?}", value as f64);
    }
}

fn histograms(page: &mut Page, record: &Record) {
    page.histogram(
        "vllm:request_prompt_tokens",
        "Number of prefill tokens processed.",
        &record.prompt_lengths,
    );
    page.histogram(
        "vllm:request_generation_tokens",
        "Number of generation tokens processed.",
        &record.output_lengths,
    );
    page.histogram(
        "vllm:iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        &record.step_tokens,
    );
    page.histogram(
        "vllm:time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        &record.first_token,
    );
    page.histogram(
        "vllm:inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        &record.between_tokens,
    );
    page.histogram(
        "vllm:e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        &record.whole_request,
    );
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, more: &str, value: f64) {
        let _ = writeln!(self.text, "{name}{{{}{more}}} {value:?}", self.labels);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.line(name, "", value);
    }

    /// A counter, and the time of its making beside it, as Python's client library has it.
    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let (total, created) = (format!("{name}_total"), format!("{name}_created"));
        self.head(&total, "counter", help);
        self.line(&total, "", value as f64);
        self.head(&created, "gauge", help);
        self.line(&created, "", self.started);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (bound, count) in histogram.cumulative() {
            self.line(&bucket, &format!(",le=\"{bound:?}\""), count as f64);
        }
        self.line(&bucket, ",le=\"+Inf\"", histogram.count() as f64);
        self.line(&format!("{name}_count"), "", histogram.count() as f64);
        self.line(&format!("{name}_sum"), "", histogram.sum());
        let created = format!("{name}_created");
        self.head(&created, "gauge", help);
        self.line(&created, "", self.started);
    }

    fn cache_config(&mut self, settings: &Settings) {
        let name = "vllm:cache_config_info";
        self.head(name, "gauge", "Information of the LLMEngine CacheConfig");
        let tokens = u64::from(settings.blocks()) * u64::from(settings.block_size);
        let concurrency = tokens as f64 / settings.max_model_len as f64;
        let _ = writeln!(
            self.text,
            "{name}{{_block_size_resolved=\"True\",block_size=\"{block}\",cache_dtype=\"auto\",\
             effective_attention_block_size=\"{block}\",enable_prefix_caching=\"False\",engine=\"0\",\
             gpu_memory_utilization=\"0.92\",kv_cache_max_concurrency=\"{concurrency:.2}\",\
             kv_cache_memory_bytes=\"None\",kv_cache_size_tokens=\"{tokens}\",num_cpu_blocks=\"None\",\
             num_gpu_blocks=\"{blocks}\",num_gpu_blocks_override=\"None\",sliding_window=\"None\"}} 1.0",
            block = settings.block_size,
            blocks = settings.blocks(),
        );
    }
}

/// A label value, escaped as the text format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
