//! `kvgate serve`: the gateway in front of a running engine.

use std::process::ExitCode;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Usage;
use super::options::Options;
use crate::gateway::{self, Reload};
use crate::telemetry;

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

/// Runs until SIGTERM or SIGINT, or until the admin port is told to drain, then drains. SIGHUP reads the configuration
/// anew.
///
/// # Errors
/// [`Usage`] for a wrong configuration; a port in use, or the like.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.options.load()?;
    let _logs = telemetry::init_logs(&config.telemetry).map_err(Usage)?;
    let runtime = super::runtime()?;
    let ended = runtime.block_on(async {
        let stop = CancellationToken::new();
        let hangups = signal(SignalKind::hangup())?;
        let options = args.options.clone();
        let read = Box::new(move || options.load().map_err(|error| error.to_string()));
        let running =
            gateway::start_rereading(config, read, stop.clone()).await.map_err(|error| match error {
                error if error.is_configuration() => anyhow::Error::from(Usage(error.to_string())),
                error => error.into(),
            })?;
        tokio::spawn(reload_on(hangups, Arc::clone(&running.reload)));
        let asked = tokio::select! {
            signal = terminated() => signal.map(|()| true)?,
            () = stop.cancelled() => running.drain.is_cancelled(),
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

/// Reads the configuration anew with each SIGHUP. What that did, or why nothing, is in the log.
async fn reload_on(mut hangups: Signal, reload: Arc<Reload>) {
    while hangups.recv().await.is_some() {
        let reload = Arc::clone(&reload);
        let _ = tokio::task::spawn_blocking(move || reload.reload()).await;
    }
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// Where no handler can be set.
pub async fn terminated() -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = term.recv() => Ok(()),
        result = tokio::signal::ctrl_c() => result,
    }
}
