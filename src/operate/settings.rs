//! What the admin port may be told.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// When `/readyz` answers 200.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyPolicy {
    /// When a new request would be served now: for one of several behind a balancer.
    #[default]
    Pool,
    /// Whenever kvgate answers: a lone pod's clients get its 503s and not a refused connection.
    Single,
}

/// The admin port's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Address of the admin port.
    pub listen: SocketAddr,
    /// When `/readyz` answers 200: `pool` or `single`.
    pub ready_policy: ReadyPolicy,
    /// File with the token that opens the state pages off loopback, and the changing calls everywhere.
    pub token_file: Option<PathBuf>,
    /// Host names, besides addresses and `localhost`, under which the port may be asked (DNS rebinding).
    pub hosts: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8081)),
            ready_policy: ReadyPolicy::Pool,
            token_file: None,
            hosts: Vec::new(),
        }
    }
}

impl Settings {
    /// What is wrong with the settings.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Some(file) = &self.token_file else { return Vec::new() };
        match std::fs::read_to_string(file) {
            Err(e) => vec![format!("operate.token_file = {}: {e}", file.display())],
            Ok(text) if text.trim().len() < 16 => {
                vec![format!(
                    "operate.token_file = {}: the token must have at least 16 characters",
                    file.display()
                )]
            }
            Ok(_) => Vec::new(),
        }
    }

    /// The token, where one is configured and readable.
    #[must_use]
    pub fn token(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.token_file.as_ref()?).ok()?;
        Some(text.trim().to_owned()).filter(|t| !t.is_empty())
    }
}
