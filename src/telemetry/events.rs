//! What happens, as the rooms say it. [`emit`] turns each event into its metrics and log line.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::names;

/// One request, ended: the access line.
#[derive(Debug, Clone)]
pub struct Access {
    /// kvgate's id.
    pub id: String,
    /// The client's id, where it gave one.
    pub client_id: Option<String>,
    /// API label.
    pub api: &'static str,
    /// Outcome label.
    pub outcome: &'static str,
    /// Reason label of a refusal.
    pub reason: Option<&'static str>,
    /// Status sent to the client; 0 where none was.
    pub status: u16,
    /// Hashed tenant.
    pub tenant: String,
    /// Prompt tokens, where counted.
    pub prompt_tokens: Option<u64>,
    /// Output tokens passed on.
    pub output_tokens: u64,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from arrival to the first token.
    pub ttft: Option<Duration>,
    /// Time from arrival to the end.
    pub total: Duration,
}

/// An alarm: a state, raised and cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alarm {
    /// The engine's metrics are older than they may be.
    StaleMetrics,
    /// Prompts are not counted exactly.
    NoTokenizer,
    /// kvgate's count and the engine's disagree.
    CountDrift,
    /// The ledger cannot be written.
    LedgerWrite,
    /// Fewer requests run since the engine died of too many.
    ConcurrencyCut,
}

impl Alarm {
    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::StaleMetrics => "stale_metrics",
            Self::NoTokenizer => "no_tokenizer",
            Self::CountDrift => "count_drift",
            Self::LedgerWrite => "ledger_write",
            Self::ConcurrencyCut => "concurrency_cut",
        }
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// A request ended.
    Ended(&'a Access),
    /// A rule in shadow would have refused; `engine_outcome` is what the engine then did.
    WouldRefuse {
        /// Reason label.
        reason: &'static str,
        /// Outcome label.
        engine_outcome: &'static str,
        /// kvgate's id.
        id: &'a str,
    },
    /// A request that a rule judged in shadow ended with the engine.
    Shadowed {
        /// Rule label.
        rule: &'static str,
        /// Whether the rule would have refused it.
        refused: bool,
        /// Whether the engine answered it whole.
        completed: bool,
        /// Whether the engine died under it.
        crashed: bool,
    },
    /// A prompt was counted.
    Counted {
        /// Prompt tokens.
        prompt_tokens: u64,
        /// Time it took.
        took: Duration,
    },
    /// What counts prompts from now on.
    CountsWith {
        /// Library label.
        library: &'static str,
        /// All library labels.
        all: &'static [&'static str],
    },
    /// A prompt was not counted, but is short enough by its bytes.
    Bounded,
    /// A count was made once more by the reference library.
    Checked {
        /// Whether it came to the same.
        agrees: bool,
        /// kvgate's count.
        ours: u64,
        /// The reference's.
        reference: u64,
    },
    /// kvgate's count was compared with the engine's.
    Compared {
        /// kvgate's.
        ours: u64,
        /// The engine's.
        engine: u64,
        /// API label.
        api: &'static str,
        /// kvgate's id.
        id: &'a str,
    },
    /// A request left the queue, or was admitted without waiting.
    Queued {
        /// How long it waited.
        waited: Duration,
    },
    /// A request went to the engine.
    Sent {
        /// Time spent in kvgate alone.
        added: Duration,
    },
    /// The first token was sent on.
    FirstToken {
        /// Since arrival.
        ttft: Duration,
    },
    /// A further token was sent on.
    NextToken {
        /// Since the token before.
        gap: Duration,
    },
    /// The admission books changed.
    Books {
        /// Requests in flight.
        inflight: usize,
        /// Tokens reserved.
        reserved: u64,
        /// Queue depth.
        queued: usize,
    },
    /// The pool size became known or changed.
    Pool {
        /// Tokens; 0 for unknown.
        tokens: u64,
    },
    /// A scrape of the engine.
    Scraped {
        /// KV-cache usage, where the engine says.
        kv_usage: Option<f64>,
        /// Running requests.
        running: Option<f64>,
        /// Waiting requests.
        waiting: Option<f64>,
        /// New preemptions since the scrape before.
        preemptions: u64,
    },
    /// Age of the last good scrape.
    ScrapeAge(Duration),
    /// The engine changed state.
    EngineState {
        /// State label.
        state: &'static str,
        /// All state labels.
        all: &'static [&'static str],
    },
    /// The engine started.
    EngineStarted,
    /// The engine became ready.
    EngineReady {
        /// From start to ready, where seen.
        load: Option<Duration>,
    },
    /// The engine died.
    EngineDied {
        /// Cause label.
        cause: &'static str,
        /// What confirmed it.
        confirmed_by: &'a str,
        /// Requests in flight.
        inflight: usize,
        /// The report's id, where one was written.
        report: Option<&'a str>,
    },
    /// The engine was away for so long.
    Downtime(Duration),
    /// A limit in force.
    Limit {
        /// Rule label.
        rule: &'static str,
        /// The limit.
        value: f64,
    },
    /// A rule's mode.
    Mode {
        /// Rule label.
        rule: &'static str,
        /// Mode label.
        mode: &'static str,
        /// All mode labels.
        all: &'static [&'static str],
    },
    /// The gateway's own loop came late.
    StoodStill {
        /// By how much.
        late: Duration,
    },
    /// The ledger could not write.
    LedgerWriteError {
        /// The system's words.
        error: &'a str,
        /// How many records were lost since this was last said.
        records: u64,
    },
    /// An alarm was raised or cleared.
    Alarm {
        /// Which.
        alarm: Alarm,
        /// Raised?
        active: bool,
        /// What to do, for the log.
        detail: &'a str,
    },
}

/// Turns an event into its metrics and log line.
pub fn emit(event: Event<'_>) {
    match event {
        Event::Ended(access) => ended(access),
        Event::WouldRefuse { reason, engine_outcome, id } => {
            counter!(names::SHADOW_REJECTIONS, "reason" => reason, "engine_outcome" => engine_outcome)
                .increment(1);
            tracing::info!(target: "kvgate::admission", id, reason, engine_outcome, "would_refuse");
        }
        Event::Shadowed { rule, refused, completed, crashed } => {
            counter!(names::SHADOW_REQUESTS, "rule" => rule).increment(1);
            counter!(names::SHADOW_FALSE, "rule" => rule).increment(u64::from(refused && completed));
            counter!(names::SHADOW_MISSED, "rule" => rule).increment(u64::from(!refused && crashed));
        }
        Event::Counted { prompt_tokens, took } => {
            histogram!(names::PROMPT_TOKENS).record(prompt_tokens as f64);
            histogram!(names::COUNT_SECONDS).record(took.as_secs_f64());
        }
        Event::CountsWith { library, all } => {
            for each in all {
                gauge!(names::TOKENIZER_INFO, "library" => *each).set(on(*each == library));
            }
        }
        Event::Bounded => counter!(names::COUNT_BOUNDED).increment(1),
        Event::Checked { agrees, ours, reference } => {
            let result = if agrees { "agrees" } else { "differs" };
            counter!(names::COUNT_CHECKED, "result" => result).increment(1);
            if !agrees {
                tracing::error!(
                    ours,
                    reference,
                    "a fast count differs from the reference's, which counts from now on"
                );
            }
        }
        Event::Compared { ours, engine, api, id } => compared(ours, engine, api, id),
        Event::Queued { waited } => histogram!(names::QUEUE_SECONDS).record(waited.as_secs_f64()),
        Event::Sent { added } => histogram!(names::ADDED_SECONDS).record(added.as_secs_f64()),
        Event::FirstToken { ttft } => histogram!(names::TTFT_SECONDS).record(ttft.as_secs_f64()),
        Event::NextToken { gap } => histogram!(names::ITL_SECONDS).record(gap.as_secs_f64()),
        Event::Books { inflight, reserved, queued } => {
            gauge!(names::INFLIGHT_REQUESTS).set(inflight as f64);
            gauge!(names::INFLIGHT_TOKENS).set(reserved as f64);
            gauge!(names::QUEUE_DEPTH).set(queued as f64);
        }
        Event::Pool { tokens } => gauge!(names::POOL_TOKENS).set(tokens as f64),
        Event::ScrapeAge(age) => gauge!(names::ENGINE_SCRAPE_AGE).set(age.as_secs_f64()),
        Event::Limit { rule, value } => gauge!(names::LIMIT, "rule" => rule).set(value),
        Event::Mode { rule, mode, all } => {
            for each in all {
                gauge!(names::MODE, "rule" => rule, "mode" => *each).set(on(*each == mode));
            }
        }
        Event::StoodStill { late } => {
            let detail = "kvgate did not run for so long: no processor time, or a machine that was stopped";
            tracing::warn!(seconds = late.as_secs_f64(), detail, "stood_still");
        }
        Event::LedgerWriteError { error, records } => {
            counter!(names::LEDGER_WRITE_ERRORS).increment(records);
            tracing::warn!(error, records, "ledger_write_failed");
        }
        Event::Alarm { alarm, active, detail } => {
            gauge!(names::ALARM, "alarm" => alarm.label()).set(on(active));
            let alarm = alarm.label();
            if active {
                tracing::warn!(alarm, detail, "alarm_raised");
            } else {
                tracing::info!(alarm, detail, "alarm_cleared");
            }
        }
        other => engine(&other),
    }
}

/// The events of the engine's life.
fn engine(event: &Event<'_>) {
    match event {
        Event::Scraped { kv_usage, running, waiting, preemptions } => {
            for (name, value) in [
                (names::ENGINE_KV_USAGE, kv_usage),
                (names::ENGINE_RUNNING, running),
                (names::ENGINE_WAITING, waiting),
            ] {
                if let Some(value) = value {
                    gauge!(name).set(*value);
                }
            }
            counter!(names::ENGINE_PREEMPTIONS).increment(*preemptions);
        }
        Event::EngineState { state, all } => {
            for each in *all {
                gauge!(names::ENGINE_STATE, "state" => *each).set(on(each == state));
            }
            tracing::info!(state, "engine_state");
        }
        Event::EngineStarted => counter!(names::ENGINE_STARTS).increment(1),
        Event::EngineReady { load } => {
            if let Some(load) = load {
                gauge!(names::ENGINE_LOAD_SECONDS).set(load.as_secs_f64());
            }
            tracing::info!(load_seconds = load.map(|d| d.as_secs_f64()), "engine_ready");
        }
        Event::EngineDied { cause, confirmed_by, inflight, report } => {
            counter!(names::ENGINE_CRASHES, "cause" => *cause).increment(1);
            tracing::error!(cause, confirmed_by, inflight, report, "engine_died");
        }
        Event::Downtime(time) => {
            // Whole seconds in the counter would lose short outages: the exporter adds the rest.
            counter!(names::ENGINE_DOWNTIME).increment(time.as_secs_f64().round() as u64);
        }
        _ => {}
    }
}

fn ended(a: &Access) {
    counter!(names::REQUESTS, "api" => a.api, "outcome" => a.outcome).increment(1);
    if let Some(reason) = a.reason {
        counter!(names::REJECTIONS, "reason" => reason).increment(1);
    }
    if a.output_tokens > 0 {
        histogram!(names::OUTPUT_TOKENS).record(a.output_tokens as f64);
    }
    tracing::info!(
        target: "kvgate::access",
        id = a.id,
        client_id = a.client_id,
        api = a.api,
        outcome = a.outcome,
        reason = a.reason,
        status = a.status,
        tenant = a.tenant,
        prompt_tokens = a.prompt_tokens,
        output_tokens = a.output_tokens,
        queue_seconds = a.queued.as_secs_f64(),
        ttft_seconds = a.ttft.map(|d| d.as_secs_f64()),
        total_seconds = a.total.as_secs_f64(),
        "request"
    );
}

fn compared(ours: u64, engine: u64, api: &'static str, id: &str) {
    counter!(names::COUNT_COMPARED).increment(1);
    let (direction, by) = match ours.cmp(&engine) {
        std::cmp::Ordering::Equal => return,
        std::cmp::Ordering::Greater => ("over", ours - engine),
        std::cmp::Ordering::Less => ("under", engine - ours),
    };
    counter!(names::COUNT_DRIFT, "direction" => direction).increment(by);
    tracing::warn!(id, api, ours, engine, "count_drift");
}

const fn on(yes: bool) -> f64 {
    if yes { 1.0 } else { 0.0 }
}
