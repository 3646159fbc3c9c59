//! vLLM's last words after an out-of-memory error.
//!
//! Form: vLLM 0.32, `v1/executor/multiproc_executor.py`, `v1/engine/dump_input.py`, `core.py`, as
//! captured; only the fields that a reader can use are filled.

use std::fmt::Write as _;

use time::OffsetDateTime;
use time::macros::format_description;

/// One sequence's part in the fatal step.
#[derive(Debug, Clone)]
pub(super) struct DumpShare {
    /// The engine's own id of it.
    pub id: String,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens computed before.
    pub computed: u32,
    /// Output tokens so far.
    pub generated: u32,
    /// Tokens scheduled in this step.
    pub scheduled: u32,
    /// Whether this was its first step.
    pub new: bool,
    /// Its output limit.
    pub max_tokens: u32,
}

/// What the engine dumps.
#[derive(Debug, Clone)]
pub(super) struct Dump {
    /// The model served.
    pub model: String,
    /// Its context length.
    pub max_model_len: u64,
    /// The fatal step.
    pub shares: Vec<DumpShare>,
    /// Sequences running.
    pub running: usize,
    /// Sequences waiting.
    pub waiting: usize,
    /// KV-cache usage, 0 to 1.
    pub kv_usage: f64,
}

const MESSAGE: &str = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of \
                       which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in \
                       use. Of the allocated memory 76.91 GiB is allocated by PyTorch, and 512.00 MiB is reserved \
                       by PyTorch but unallocated. If reserved but unallocated memory is large try setting \
                       PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";

/// The log lines of a death by CUDA out-of-memory in the step of `dump`.
pub(super) fn out_of_memory(dump: &Dump) -> String {
    let form = format_description!("[month]-[day] [hour]:[minute]:[second]");
    let now = OffsetDateTime::now_utc().format(&form).unwrap_or_default();
    let pid = std::process::id();
    let line = |process: &str, place: &str, text: &str| {
        format!("({process} pid={pid}) ERROR {now} [{place}] {text}\n")
    };
    let worker = |text: &str| line("Worker", "multiproc_executor.py:1063", text);
    let core = |place: &str, text: &str| line("EngineCore", place, text);
    [
        worker("WorkerProc hit an exception."),
        worker("Traceback (most recent call last):"),
        worker(&format!("torch.OutOfMemoryError: {MESSAGE}")),
        core("dump_input.py:72", &config(dump)),
        core(
            "dump_input.py:79",
            &format!("Dumping scheduler output for model execution: {}", scheduler_output(dump)),
        ),
        core("dump_input.py:81", &stats(dump)),
        core("core.py:1512", "EngineCore encountered a fatal error."),
        core("core.py:1512", "Traceback (most recent call last):"),
        core(
            "core.py:1512",
            &format!(
                "RuntimeError: Worker failed with error '{MESSAGE}', please check the stack trace above for the \
                 root cause"
            ),
        ),
        line("APIServer", "async_llm.py:906", "AsyncLLM output_handler failed."),
        line(
            "APIServer",
            "async_llm.py:906",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) \
             for the root cause.",
        ),
    ]
    .concat()
}

fn config(dump: &Dump) -> String {
    format!(
        "Dumping input data for V1 LLM engine (v0.32.0) with config: model='{0}', speculative_config=None, \
         tokenizer='{0}', max_seq_len={1}, tensor_parallel_size=1, pipeline_parallel_size=1, \
         data_parallel_size=1, served_model_name={0}, enable_prefix_caching=False, \
         enable_chunked_prefill=True, ",
        dump.model, dump.max_model_len
    )
}

fn scheduler_output(dump: &Dump) -> String {
    let mut new = Vec::new();
    let mut cached = Vec::new();
    let mut scheduled = String::new();
    for share in &dump.shares {
        if !scheduled.is_empty() {
            scheduled.push_str(", ");
        }
        let _ = write!(scheduled, "{}: {}", share.id, share.scheduled);
        if share.new {
            new.push(format!(
                "NewRequestData(req_id={},prompt_token_ids_len={},prefill_token_ids_len=None,mm_features=[],\
                 sampling_params=SamplingParams(n=1, max_tokens={}, min_tokens=0, logprobs=None, \
                 prompt_logprobs=None),num_computed_tokens={},lora_request=None,prompt_embeds_shape=None)",
                share.id, share.prompt, share.max_tokens, share.computed
            ));
        } else {
            cached.push(share);
        }
    }
    let list = |f: &dyn Fn(&DumpShare) -> String| cached.iter().map(|s| f(s)).collect::<Vec<_>>().join(", ");
    let total: u64 = dump.shares.iter().map(|s| u64::from(s.scheduled)).sum();
    format!(
        "SchedulerOutput(scheduled_new_reqs=[{}], scheduled_cached_reqs=CachedRequestData(req_ids=[{}],\
         resumed_req_ids=set(),new_token_ids_lens=[],all_token_ids_lens={{}},num_computed_tokens=[{}],\
         num_output_tokens=[{}]), num_scheduled_tokens={{{scheduled}}}, total_num_scheduled_tokens={total}, \
         scheduled_spec_decode_tokens={{}}, scheduled_encoder_inputs={{}}, finished_req_ids=[], \
         preempted_req_ids=[])",
        new.join(", "),
        list(&|s| format!("'{}'", s.id)),
        list(&|s| s.computed.to_string()),
        list(&|s| s.generated.to_string()),
    )
}

fn stats(dump: &Dump) -> String {
    format!(
        "Dumping scheduler stats: SchedulerStats(num_running_reqs={}, num_waiting_reqs={}, \
         num_skipped_waiting_reqs=0, step_counter=0, current_wave=0, kv_cache_usage={:?}, \
         waiting_lora_adapters={{}}, running_lora_adapters={{}})",
        dump.running, dump.waiting, dump.kv_usage
    )
}
