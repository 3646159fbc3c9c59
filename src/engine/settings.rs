//! How the engine is reached and watched.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Endpoint, Error};

/// Settings of the engine and of the loop that watches it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where the engine listens: `http://HOST[:PORT][/BASE]`, without `/v1`.
    pub url: String,
    /// File with the engine's own API key (one line); read again at each engine start. None: no key.
    pub key_file: Option<PathBuf>,
    /// Seconds between two reads of `/metrics` and `/health`, 0.05 to 60. Shorter notices sooner.
    pub scrape_interval_seconds: f64,
    /// Seconds after which a read is given up as unknown, 0.05 to 60.
    pub scrape_timeout_seconds: f64,
    /// Seconds after which a new TCP connection is given up, 0.05 to 60.
    pub connect_timeout_seconds: f64,
    /// Seconds with work and without a step before the engine counts as hung, at least 1; the larger
    /// of this and three times the longest step seen is used.
    pub hang_seconds: f64,
    /// Seconds the first load may take before `/engine/livez` says dead, at least 1; later loads get
    /// three times the learned load time, where that is known.
    pub first_load_allowance_seconds: f64,
    /// Seconds between two reads of `/v1/models` and `/version` of a running engine, at least 1.
    pub facts_interval_seconds: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:8000".to_owned(),
            key_file: None,
            scrape_interval_seconds: 1.0,
            scrape_timeout_seconds: 2.0,
            connect_timeout_seconds: 2.0,
            hang_seconds: 120.0,
            first_load_allowance_seconds: 3600.0,
            facts_interval_seconds: 60.0,
        }
    }
}

impl Settings {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Url`] or [`Error::Range`], naming the field.
    pub fn validate(&self) -> Result<(), Error> {
        self.endpoint()?;
        let short = (0.05, 60.0, "from 0.05 to 60 seconds");
        let long = (1.0, 1e7, "from 1 to 10000000 seconds");
        for (key, value, (low, high, range)) in [
            ("scrape_interval_seconds", self.scrape_interval_seconds, short),
            ("scrape_timeout_seconds", self.scrape_timeout_seconds, short),
            ("connect_timeout_seconds", self.connect_timeout_seconds, short),
            ("hang_seconds", self.hang_seconds, long),
            ("first_load_allowance_seconds", self.first_load_allowance_seconds, long),
            ("facts_interval_seconds", self.facts_interval_seconds, long),
        ] {
            if !(low..=high).contains(&value) {
                return Err(Error::Range { key, value, range });
            }
        }
        Ok(())
    }

    /// The URL, taken apart.
    ///
    /// # Errors
    /// [`Error::Url`] where it is not `http://HOST[:PORT][/BASE]`.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.url.parse()
    }

    pub(super) fn scrape_interval(&self) -> Duration {
        seconds(self.scrape_interval_seconds)
    }

    pub(super) fn scrape_timeout(&self) -> Duration {
        seconds(self.scrape_timeout_seconds)
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        seconds(self.connect_timeout_seconds)
    }

    pub(super) fn facts_interval(&self) -> Duration {
        seconds(self.facts_interval_seconds)
    }

    pub(super) fn hang(&self) -> Duration {
        seconds(self.hang_seconds)
    }

    pub(super) fn first_load_allowance(&self) -> Duration {
        seconds(self.first_load_allowance_seconds)
    }
}

/// Never panics: what no clock can hold becomes an hour-long maximum that `validate` refuses anyway.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::from_secs(3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        Settings::default().validate().unwrap();
    }

    #[test]
    fn a_number_out_of_range_is_named() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let settings = Settings { scrape_interval_seconds: bad, ..Settings::default() };
            let text = settings.validate().unwrap_err().to_string();
            assert!(text.contains("engine.scrape_interval_seconds"), "{text}");
        }
    }
}
