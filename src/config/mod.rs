//! One tree of the rooms' settings: from a file, the environment, and flags, in this order.
//!
//! Decides nothing; composes and cross-checks. Other rooms never import it.

#[cfg(test)]
mod example;
mod load;

use serde::{Deserialize, Serialize};

pub use load::{ConfigError, Overrides, load};

/// The whole configuration. Each table is the settings of the room of that name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The engine, and how it is watched.
    pub engine: crate::engine::Settings,
    /// The data port.
    pub proxy: crate::proxy::Settings,
    /// The admin port.
    pub operate: crate::operate::Settings,
    /// Counting.
    pub tokens: crate::tokens::Settings,
    /// Limits, queue, modes.
    pub admit: crate::admit::Settings,
    /// What is kept of requests.
    pub ledger: crate::ledger::Settings,
    /// Logs.
    pub telemetry: crate::telemetry::Settings,
}

impl Config {
    /// What is wrong with the values, each with key, value and range; empty where nothing is.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !self.engine.url.is_empty()
            && let Err(error) = self.engine.validate()
        {
            found.push(error.to_string());
        }
        found.extend(self.proxy.problems());
        found.extend(self.operate.problems());
        found.extend(self.admit.problems());
        if self.ledger.journal_bytes < 65_536 {
            let value = self.ledger.journal_bytes;
            found.push(format!("ledger.journal_bytes = {value}: must be at least 65536"));
        }
        found.extend(self.telemetry.problem());
        if self.proxy.listen == self.operate.listen && self.proxy.listen.port() != 0 {
            found.push(format!(
                "operate.listen = {}: the admin port must differ from proxy.listen",
                self.operate.listen
            ));
        }
        found
    }
}
