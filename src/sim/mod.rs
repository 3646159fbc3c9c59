//! A simulated engine: a real HTTP server that looks like vLLM 0.32 to clients and to a gateway.
//!
//! Decides: which sequence runs, waits or is preempted in a KV-cache pool of blocks, and how long a
//! step takes. Reads: requests on its port, faults on demand. Called by: the demo, `kvgate sim`,
//! the tests. What it answers (bodies, events, errors, metric names) is what a running vLLM
//! answered; what it generates are words that mean nothing, one token each.
//!
//! One file per idea: `scheduler` is the pure engine model (`batch` its words, `prefix` its prefix cache, `speed` how long a
//! step takes, `presets` models with a name), which benches run in virtual time; `core` runs it in real
//! time, `outbox`
//! carries output to `stream` or `generate`, `ask` reads bodies, `refusal` and `answer` write them,
//! `routes` maps paths, `server` lives and dies on the port, `fault` names what can go wrong.

mod answer;
mod ask;
mod batch;
mod core;
mod counting;
mod crash_log;
mod exposition;
mod fault;
mod generate;
mod handle;
mod histogram;
mod outbox;
mod output;
mod prefix;
mod presets;
mod record;
mod refusal;
mod routes;
mod scheduler;
mod server;
mod settings;
mod shared;
mod speed;
mod stream;
mod tokenizer;
mod wire;

#[cfg(test)]
mod tests;

pub use batch::{Batch, Gauges, Produced, SeqId, Share, Work};
pub use fault::{Fault, Loading};
pub use handle::{Sim, SimError, start, start_with_log};
pub use prefix::Prefix;
pub use presets::PRESETS;
pub use scheduler::{Limits, Scheduler};
pub use settings::Settings;
pub use shared::Stats;
pub use tokenizer::{chat_template, tokenizer_config, tokenizer_json, write_tokenizer};
