//! What the admin port may be told.

use std::fs;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

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

/// A larger file holds no token.
const MOST_BYTES: u64 = 4096;

fn read(file: &Path) -> io::Result<String> {
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    let mut text = String::new();
    fs::File::open(file)?.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

impl Settings {
    /// What is wrong with the settings.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Some(file) = &self.token_file else { return Vec::new() };
        match read(file) {
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

    /// The token, read anew each time as it may be exchanged; `None` where none is configured. Waits for the disk.
    ///
    /// # Errors
    /// The file cannot be read, or holds none.
    pub fn token(&self) -> io::Result<Option<String>> {
        let Some(file) = &self.token_file else { return Ok(None) };
        let token = read(file)?.trim().to_owned();
        if token.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "empty"));
        }
        Ok(Some(token))
    }
}
