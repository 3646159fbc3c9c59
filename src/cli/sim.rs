//! `kvgate sim`: the simulated engine alone.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use tokio::signal::unix::{SignalKind, signal};

use crate::sim::{self, Fault, Loading, Settings};

/// Runs a simulated vLLM: a real HTTP server whose answers, errors and metrics are vLLM's, and
/// which breaks on demand.
#[derive(Debug, Clone, Parser)]
#[command(
    after_help = "Example:\n  kvgate sim --listen 127.0.0.1:8000 --load-seconds 5 --oom-prompt-tokens 1500\n  \
                        curl 127.0.0.1:8000/sim/fault -H 'content-type: application/json' -d \
                        '{\"fault\":\"hang\"}'\n\n\
                        GET /sim/stats says how it stands. Faults: die, die_hard, restart, hang, stall, \
                        slow_metrics,\nmetrics_absent, close_idle, busy, oom_prompt_tokens, end_stream_early, \
                        cut_stream, recover."
)]
pub struct Args {
    /// Address to listen on; loopback only, port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// An engine to be like, instead of the demo's small one: its pool, its limits, its pace
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(sim::PRESETS))]
    preset: Option<String>,
    /// Make every step so many times as long
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    stretch: f64,
    /// Name of the served model [default: sim, or the preset's]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Directory to write the tokenizer's files to; it is also what /v1/models tells as the root
    #[arg(long, value_name = "DIR")]
    tokenizer_dir: Option<std::path::PathBuf>,
    /// Tokens in the KV-cache pool [default: 4096, or the preset's]
    #[arg(long, value_name = "N")]
    pool_tokens: Option<u64>,
    /// Context length in tokens [default: 2048, or the preset's]
    #[arg(long, value_name = "N")]
    max_model_len: Option<u64>,
    /// Sequences that run at once [default: 8, or the preset's]
    #[arg(long, value_name = "N")]
    max_num_seqs: Option<usize>,
    /// Time of one step in milliseconds, beside what its tokens take [default: 20, or the preset's]
    #[arg(long, value_name = "MS")]
    step_ms: Option<f64>,
    /// Seed of output lengths and ids
    #[arg(long, value_name = "N", default_value_t = Settings::default().seed)]
    seed: u64,
    /// Refuse as busy beyond so many sequences
    #[arg(long, value_name = "N")]
    max_num_queued_reqs: Option<u64>,
    /// Seconds after which an idle connection is closed
    #[arg(long, value_name = "S", default_value_t = Settings::default().keep_alive_seconds)]
    keep_alive_seconds: f64,
    /// Seconds of loading before it listens
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    start_load_seconds: f64,
    /// Seconds from a death until it listens again; without this it stays dead
    #[arg(long, value_name = "S")]
    load_seconds: Option<f64>,
    /// Answer 503 while loading, where vLLM would refuse connections
    #[arg(long)]
    loading_answers_503: bool,
    /// A prompt of so many tokens or more kills the engine
    #[arg(long, value_name = "N")]
    oom_prompt_tokens: Option<u64>,
    /// A fault in force from the start, as JSON: {"fault":"metrics_absent"}
    #[arg(long, value_name = "JSON", value_parser = fault)]
    fault: Vec<Fault>,
}

fn fault(text: &str) -> Result<Fault, serde_json::Error> {
    serde_json::from_str(text)
}

impl Args {
    fn settings(&self) -> Settings {
        let oom = self.oom_prompt_tokens.map(|tokens| Fault::OomPromptTokens { tokens });
        let like = self.preset.as_deref().and_then(Settings::preset).unwrap_or_default();
        let settings = Settings {
            port: self.listen.port(),
            model: self.model.clone().unwrap_or(like.model),
            root: self.tokenizer_dir.as_ref().map(|dir| dir.display().to_string()),
            pool_tokens: self.pool_tokens.unwrap_or(like.pool_tokens),
            max_model_len: self.max_model_len.unwrap_or(like.max_model_len),
            max_num_seqs: self.max_num_seqs.unwrap_or(like.max_num_seqs),
            step_ms: self.step_ms.unwrap_or(like.step_ms),
            seed: self.seed,
            max_num_queued_reqs: self.max_num_queued_reqs,
            keep_alive_seconds: self.keep_alive_seconds,
            start_load_seconds: self.start_load_seconds,
            load_seconds: self.load_seconds,
            loading: if self.loading_answers_503 { Loading::Answers503 } else { Loading::Refused },
            faults: self.fault.iter().cloned().chain(oom).collect(),
            ..like
        };
        settings.stretched(self.stretch)
    }
}

/// Runs the simulated engine until SIGINT or SIGTERM; exit code 2 for settings out of range.
///
/// # Errors
/// Where the port or the tokenizer directory cannot be had.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !args.listen.ip().is_loopback() || args.listen.is_ipv6() {
        bail!(
            "--listen must be on 127.0.0.1, and is {}: the simulated engine is for tests only",
            args.listen
        );
    }
    if let Some(dir) = &args.tokenizer_dir {
        sim::write_tokenizer(dir)
            .with_context(|| format!("cannot write the tokenizer to {}", dir.display()))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args.settings()))
}

async fn serve(settings: Settings) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let model = settings.model.clone();
    let pool = settings.pool_tokens;
    let sim = match sim::start(settings).await {
        Ok(sim) => sim,
        Err(error @ sim::SimError::Setting { .. }) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            return Ok(ExitCode::from(2));
        }
        Err(error) => return Err(error.into()),
    };
    let url = sim.url();
    let _ =
        writeln!(std::io::stderr(), "simulated engine: model {model}, {pool} tokens of KV cache, on {url}");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
        ended = sim.ended() => ended.context("the simulated engine lost its port")?,
    }
    Ok(ExitCode::SUCCESS)
}
