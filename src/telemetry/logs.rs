//! Log lines on stderr: JSON, or for people at a terminal.
//!
//! A thread of its own writes them: stderr may be a pipe that nobody reads, or a file on a disk that hangs, and
//! a `write(2)` to it would hold a thread of the runtime, with all requests that it serves. What the thread
//! cannot write in time is dropped and counted.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines that wait to be written at most: some megabytes.
const LINES: usize = 8192;

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Lines that were dropped because stderr did not take them in time.
pub(super) fn dropped() -> u64 {
    DROPPED.get().map_or(0, |lines| lines.dropped_lines() as u64)
}

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Human,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// `auto`, `json` or `human`.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, or a filter such as `info,kvgate::access=off`.
    pub level: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".to_owned() }
    }
}

impl Settings {
    /// What is wrong with the settings.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let error = EnvFilter::try_new(&self.level).err()?;
        Some(format!("telemetry.level = {:?}: not a log filter: {error}", self.level))
    }
}

/// Logging, for as long as it is kept; at its end what waits is written, as far as one second suffices.
#[must_use = "lines that wait are written when it is dropped"]
#[derive(Debug)]
pub struct Logs(#[expect(dead_code, reason = "its drop writes what waits")] WorkerGuard);

/// Starts logging to stderr; a second call changes nothing.
///
/// # Errors
/// Where `level` is not a filter; the text says which part.
pub fn init_logs(settings: &Settings) -> Result<Logs, String> {
    let filter = EnvFilter::try_new(&settings.level)
        .map_err(|e| format!("telemetry.level: {:?} is not a log filter: {e}", settings.level))?;
    let terminal = std::io::stderr().is_terminal();
    let human = match settings.format {
        LogFormat::Auto => terminal,
        LogFormat::Json => false,
        LogFormat::Human => true,
    };
    let colour = terminal && std::env::var_os("NO_COLOR").is_none();
    let lines =
        NonBlockingBuilder::default().buffered_lines_limit(LINES).lossy(true).thread_name("kvgate-logs");
    let (writer, guard) = lines.finish(std::io::stderr());
    let _ = DROPPED.set(writer.error_counter());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(colour)
        .with_target(false);
    let _ = if human {
        builder.compact().try_init()
    } else {
        builder.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    };
    Ok(Logs(guard))
}
