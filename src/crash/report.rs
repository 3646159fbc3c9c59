//! The crash report as it stands on disk.

use serde::{Deserialize, Serialize};

use crate::ledger::Record;

/// What killed an engine: the contract's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "a flat table of the contract's words; design.md explains each")]
pub enum Cause {
    CleanStop,
    Evicted,
    StartupFailure,
    StartupMemory,
    StaleIncarnation,
    ForeignProcess,
    HostOomKill,
    ShmExhausted,
    GpuFault,
    PeerLost,
    Fragmentation,
    LateAllocation,
    OutlierRequest,
    HeadroomTooSmall,
    Oversubscription,
    GpuMemoryClimb,
    HostMemoryClimb,
    KvPoolExhausted,
    KvLeak,
    UnschedulableRequest,
    PoisonRequest,
    NativeCrash,
    WatchdogKill,
    ProbeKill,
    Hang,
    RequestOom,
    /// Nothing to go on. Also what a word of a later version reads as.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Cause {
    /// The word, also a metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::CleanStop => "clean_stop",
            Self::Evicted => "evicted",
            Self::StartupFailure => "startup_failure",
            Self::StartupMemory => "startup_memory",
            Self::StaleIncarnation => "stale_incarnation",
            Self::ForeignProcess => "foreign_process",
            Self::HostOomKill => "host_oom_kill",
            Self::ShmExhausted => "shm_exhausted",
            Self::GpuFault => "gpu_fault",
            Self::PeerLost => "peer_lost",
            Self::Fragmentation => "fragmentation",
            Self::LateAllocation => "late_allocation",
            Self::OutlierRequest => "outlier_request",
            Self::HeadroomTooSmall => "headroom_too_small",
            Self::Oversubscription => "oversubscription",
            Self::GpuMemoryClimb => "gpu_memory_climb",
            Self::HostMemoryClimb => "host_memory_climb",
            Self::KvPoolExhausted => "kv_pool_exhausted",
            Self::KvLeak => "kv_leak",
            Self::UnschedulableRequest => "unschedulable_request",
            Self::PoisonRequest => "poison_request",
            Self::NativeCrash => "native_crash",
            Self::WatchdogKill => "watchdog_kill",
            Self::ProbeKill => "probe_kill",
            Self::Hang => "hang",
            Self::RequestOom => "request_oom",
            Self::Unknown => "unknown",
        }
    }
}

/// Something that was seen, and what it says. Never request text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Where: a file of the evidence directory, or an observation's name.
    pub file: String,
    /// The line there; 0 where it has none.
    #[serde(default)]
    pub line: u64,
    /// The matched signature and its numbers.
    pub quote: String,
    /// What it says.
    pub says: String,
}

/// The engine that died, in its own words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Engine {
    /// Its kind, `vllm` for one.
    pub kind: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// The models it served.
    pub models: Vec<String>,
    /// Its context length in tokens.
    pub context_length: Option<u64>,
    /// Its KV-cache pool in tokens.
    pub pool_tokens: Option<u64>,
    /// Which start of the engine this was, counted by kvgate from 1.
    pub incarnation: u64,
    /// When its process started, Unix seconds.
    pub start_time: Option<f64>,
    /// The last that its metrics said.
    pub last_sample: Option<LastSample>,
}

/// The last scrape before the death.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastSample {
    /// How old it was at the death, in seconds.
    pub age_seconds: f64,
    /// KV-cache usage, 0 to 1.
    pub kv_cache_usage: Option<f64>,
    /// Requests running.
    pub running: Option<f64>,
    /// Requests waiting.
    pub waiting: Option<f64>,
    /// Preemptions since its start.
    pub preemptions: Option<f64>,
}

/// A request under suspicion. The score orders; it measures nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suspect {
    /// kvgate's id.
    pub id: String,
    /// Higher is more suspect.
    pub score: f64,
    /// Why, in words.
    pub reasons: Vec<String>,
}

/// What is known of one death of the engine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// `crash-<unix seconds>-<n>`; set anew where it is taken.
    pub id: String,
    /// When the death was confirmed, Unix seconds.
    pub t: f64,
    /// When it was first suspected, Unix seconds.
    pub t_suspected: f64,
    /// The root cause; `unknown` without evidence.
    pub cause: Cause,
    /// What led to it, first to last.
    pub chain: Vec<Cause>,
    /// How sure the cause is, 0 to 1.
    pub confidence: f64,
    /// What the cause rests on.
    pub evidence: Vec<Evidence>,
    /// What confirmed that it was a death at all.
    pub confirmed_by: Vec<String>,
    /// The engine.
    pub engine: Engine,
    /// Every request that was with the engine when its death was first suspected, and no other.
    pub in_flight: Vec<Record>,
    /// Requests sent after that, while it was not yet certain.
    pub sent_while_suspected: Vec<Record>,
    /// How many requests were in kvgate's queue: the engine never saw them.
    pub queued_total: usize,
    /// The first 256 of those.
    pub queued: Vec<Record>,
    /// The requests by suspicion, at most ten.
    pub suspects: Vec<Suspect>,
    /// What the suspects are worth.
    pub suspects_are: String,
    /// What to do, or to collect, next.
    pub advice: Vec<String>,
}
