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
    let _logs = telemetry::init_logs(&config.telemetry).map_err(Usage)?;
    let runtime = super::runtime()?;
    let ended = runtime.block_on(async {
        let stop = CancellationToken::new();
        let running = gateway::start(config, stop.clone()).await.map_err(|error| match error {
            error if error.is_configuration() => anyhow::Error::from(Usage(error.to_string())),
            error => error.into(),
        })?;
        let asked = tokio::select! {
            signal = terminated() => signal.map(|()| true)?,
            () = stop.cancelled() => false,
        };
        tracing::info!("draining; a second signal ends at once");
        stop.cancel();
        tokio::select! {
            () = running.ended() => {}
            signal = terminated() => {
                signal?;
                tracing::warn!("ended with requests in flight");
                return Ok(ExitCode::FAILURE);
            }
        }
        Ok(if asked { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    });
    // A prompt that is still being counted keeps nobody.
    runtime.shutdown_background();
    ended
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
