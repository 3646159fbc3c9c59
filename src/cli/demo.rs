//! `kvgate demo`: the whole thing in front of an embedded simulated engine.

mod client;
mod scenes;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::serve::terminated;
use crate::config::Config;
use crate::{gateway, sim, telemetry};

/// The gateway in front of an embedded simulated engine, with light traffic
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kvgate demo --crash --seconds 30")]
pub struct Args {
    /// Let a request kill the engine, and show the crash report
    #[arg(long)]
    crash: bool,
    /// End after so many seconds of light traffic instead of at Ctrl-C
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Data port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Admin port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    admin: SocketAddr,
}

/// A line for the person who watches.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The simulated engine of the demo: small enough to be filled in a moment.
fn engine(tokenizer: &std::path::Path) -> sim::Settings {
    sim::Settings {
        model: "demo".to_owned(),
        root: Some(tokenizer.display().to_string()),
        pool_tokens: 4096,
        max_model_len: 2048,
        load_seconds: Some(4.0),
        ..sim::Settings::default()
    }
}

fn configuration(args: &Args, url: String, state: PathBuf) -> Config {
    let mut config = Config::default();
    config.engine.url = url;
    config.engine.scrape_interval_seconds = 0.25;
    config.proxy.listen = args.listen;
    config.operate.listen = args.admin;
    config.ledger.state_dir = Some(state);
    config.admit.queue.max_wait_seconds = 4.0;
    // The scenes tell the story.
    config.telemetry.level = "off".to_owned();
    config
}

/// Runs the demo until Ctrl-C, or for `--seconds`.
///
/// # Errors
/// A port in use, or no temporary folder.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = Folder::new()?;
    let tokenizer = folder.0.join("tokenizer");
    sim::write_tokenizer(&tokenizer).context("the demo's tokenizer cannot be written")?;
    let runtime = super::runtime()?;
    runtime.block_on(async {
        let sim = sim::start_with_log(engine(&tokenizer), std::io::sink()).await?;
        let config = configuration(args, sim.url(), folder.0.join("state"));
        let _logs = telemetry::init_logs(&config.telemetry).map_err(anyhow::Error::msg)?;
        let stop = CancellationToken::new();
        let running = gateway::start(config, stop.clone()).await?;
        let play = async {
            scenes::play(&running, &sim, args.crash).await?;
            scenes::light_traffic(running.data, args.seconds.map(Duration::from_secs_f64)).await;
            anyhow::Ok(())
        };
        let played = tokio::select! {
            played = play => played,
            signal = terminated() => signal.map_err(Into::into),
        };
        stop.cancel();
        sim.stop().await;
        running.ended().await;
        played.map(|()| ExitCode::SUCCESS)
    })
}

/// A temporary folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("kvgate-demo-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
