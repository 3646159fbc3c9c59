//! The options that `serve` and `check` share: each names the file or overrides one key of it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Usage;
use crate::config::{self, Config, Overrides};

/// One mode for all rules.
#[derive(Clone, Copy, ValueEnum)]
pub enum ModeOption {
    /// A plain proxy
    Off,
    /// Decide and log, forward all the same
    Shadow,
    /// Refuse and queue
    Enforce,
}

impl ModeOption {
    const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Shadow => "shadow",
            Self::Enforce => "enforce",
        }
    }
}

/// Where the configuration comes from.
#[derive(Args, Clone, Default)]
pub struct Options {
    #[doc = "The engine's URL; a path after it is a base path [default: `http://127.0.0.1:8000`]"]
    #[arg(
        long,
        value_name = "URL",
        help = "The engine's URL; a path after it is a base path [default: http://127.0.0.1:8000]"
    )]
    pub engine: Option<String>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One mode for all rules; without it each rule has its own
    #[arg(long, value_enum)]
    pub mode: Option<ModeOption>,
    /// Data port [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Admin port [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
    /// The engine's tokenizer: a folder, or a tokenizer.json [default: found from what the engine says]
    #[arg(long, value_name = "DIR_OR_FILE")]
    pub tokenizer: Option<PathBuf>,
    /// A chat template that replaces the tokenizer's own
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Measured limits: `max_prompt_tokens` for each shape class (TOML)
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// File with the engine's own API key; clients' keys are then not sent on
    #[arg(long, value_name = "FILE")]
    pub engine_key_file: Option<PathBuf>,
    /// Folder for the journal and crash reports; without it they are kept in memory only
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

impl Options {
    /// The configuration that file, environment and these options give together.
    ///
    /// # Errors
    /// [`Usage`], naming file, line and key.
    pub fn load(&self) -> Result<Config, Usage> {
        let mut over = Overrides::default();
        over.set("engine.url", self.engine.clone());
        over.set("proxy.listen", self.listen.map(|a| a.to_string()));
        over.set("operate.listen", self.admin.map(|a| a.to_string()));
        over.set_path("tokens.tokenizer", self.tokenizer.as_deref());
        over.set_path("tokens.chat_template", self.chat_template.as_deref());
        over.set_path("admit.length.profile", self.profile.as_deref());
        over.set_path("engine.key_file", self.engine_key_file.as_deref());
        over.set_path("ledger.state_dir", self.state_dir.as_deref());
        if let Some(mode) = self.mode {
            for key in [
                "admit.mode.body",
                "admit.mode.length",
                "admit.mode.shape",
                "admit.mode.rates",
                "admit.mode.capacity",
                "admit.mode.guard",
                "admit.mode.quarantine",
                "admit.mode.paths",
            ] {
                over.set(key, Some(mode.word()));
            }
        }
        config::load(self.config.as_deref(), std::env::vars(), &over).map_err(|e| Usage(e.to_string()))
    }
}
