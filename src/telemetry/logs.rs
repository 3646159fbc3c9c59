//! Log lines on stderr: JSON, or for people at a terminal.

use std::io::IsTerminal as _;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

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

/// Starts logging to stderr; a second call changes nothing.
///
/// # Errors
/// Where `level` is not a filter; the text says which part.
pub fn init_logs(settings: &Settings) -> Result<(), String> {
    let filter = EnvFilter::try_new(&settings.level)
        .map_err(|e| format!("telemetry.level: {:?} is not a log filter: {e}", settings.level))?;
    let terminal = std::io::stderr().is_terminal();
    let human = match settings.format {
        LogFormat::Auto => terminal,
        LogFormat::Json => false,
        LogFormat::Human => true,
    };
    let colour = terminal && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false);
    let _ = if human {
        builder.compact().try_init()
    } else {
        builder.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    };
    Ok(())
}
