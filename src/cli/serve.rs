//! `kvgate serve`: the gateway in front of a running engine.

use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use super::Usage;
use super::options::Options;
use crate::{gateway, telemetry};

/// The gateway in front of a running engine
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kvgate serve --engine http://127.0.0.1:8000 --state-dir /var/lib/kvgate\n\n\
    Point clients at http://127.0.0.1:8080; http://127.0.0.1:8081/readyz says how it fares."
)]
pub struct Args {
    #[command(flatten)]
    options: Options,
}

/// Runs until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// [`Usage`] for a wrong configuration; a port in use, or the like.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.options.load()?;
    if config.engine.url.is_empty() {
        return Err(
            Usage("which engine? Give --engine URL, or engine.url in --config FILE".to_owned()).into()
        );
    }
    telemetry::init_logs(&config.telemetry).map_err(Usage)?;
    let runtime = super::runtime()?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let running = gateway::start(config, stop.clone()).await?;
        terminated().await?;
        tracing::info!("draining");
        stop.cancel();
        running.ended().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// Where no handler can be set.
pub async fn terminated() -> std::io::Result<()> {
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = term.recv() => Ok(()),
        result = tokio::signal::ctrl_c() => result,
    }
}
