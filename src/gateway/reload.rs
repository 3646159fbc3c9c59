//! Reads the configuration anew, and puts in force what may change while the gateway runs: the table `admit`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use serde::Serialize;
use tokio::sync::watch;
use toml::Value;

use super::profile;
use crate::admit::{Gate, Modes, Rule, Terms};
use crate::config::Config;

/// What changes while the gateway runs, by the beginning of its keys.
const LIVE: &str = "admit.";

/// Reads the configuration from where the first came from; its error says what is wrong, and where.
pub type Reread = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// What a reload did: keys, dotted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Those whose new values are in force.
    pub applied: Vec<String>,
    /// Those whose new values a restart would bring.
    pub needs_restart: Vec<String>,
}

/// The configuration in force, and the way to another.
pub struct Reload {
    read: Reread,
    running: Mutex<Config>,
    terms: watch::Sender<Arc<Terms>>,
    gate: Gate,
    modes: Modes,
}

impl Reload {
    pub(super) fn new(
        read: Reread,
        running: Config,
        terms: watch::Sender<Arc<Terms>>,
        (gate, modes): (Gate, Modes),
    ) -> Self {
        Self { read, running: Mutex::new(running), terms, gate, modes }
    }

    /// Reads the configuration and puts its table `admit` in force: all of it, or nothing where something is wrong.
    /// The mode of a rule is set where the configured one has changed: one that was set while running (the panic
    /// button) otherwise stays. Waits for the disk, and for another reload.
    ///
    /// # Errors
    /// File, key and value that are wrong; the log says so too.
    pub fn reload(&self) -> Result<Reloaded, String> {
        self.exchange(self.running.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same; `None` where another is under way, whose disk may hang.
    ///
    /// # Errors
    /// As [`Reload::reload`].
    pub fn try_reload(&self) -> Option<Result<Reloaded, String>> {
        match self.running.try_lock() {
            Ok(running) => Some(self.exchange(running)),
            Err(TryLockError::Poisoned(running)) => Some(self.exchange(running.into_inner())),
            Err(TryLockError::WouldBlock) => {
                tracing::warn!("no reload: another is under way, and may wait for its disk");
                None
            }
        }
    }

    fn exchange(&self, mut running: MutexGuard<'_, Config>) -> Result<Reloaded, String> {
        tracing::info!("reading the configuration anew");
        let done = self.read_and_put(&mut running);
        match &done {
            Ok(Reloaded { applied, needs_restart }) => {
                let (applied, needs_restart) = (applied.join(", "), needs_restart.join(", "));
                tracing::info!(applied, needs_restart, "configuration reloaded");
            }
            Err(error) => tracing::warn!(error, "the configuration stays as it was"),
        }
        done
    }

    fn read_and_put(&self, running: &mut Config) -> Result<Reloaded, String> {
        let new = (self.read)()?;
        let profile = new.admit.length.profile.as_deref().map(profile).transpose();
        let profile = profile.map_err(|error| error.to_string())?;
        let all = differences(running, &new)?;
        let (mut applied, needs_restart): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|key| key.starts_with(LIVE));
        let (before, after) = (&running.admit.mode, &new.admit.mode);
        for rule in Rule::ALL {
            if before.of(rule) != after.of(rule) {
                self.modes.set(rule, after.of(rule));
            }
        }
        let terms = self.terms.borrow().followed_by(new.admit.clone(), profile);
        // Its file may have changed under the same name.
        let key = "admit.length.profile";
        if terms.profile != self.terms.borrow().profile && !applied.iter().any(|known| known == key) {
            applied.push(key.to_owned());
        }
        self.terms.send_replace(Arc::new(terms));
        self.gate.reload(&new.admit);
        running.admit = new.admit;
        Ok(Reloaded { applied, needs_restart })
    }
}

/// The keys whose values differ, dotted and in order; of a list the key of the whole.
fn differences(before: &Config, after: &Config) -> Result<Vec<String>, String> {
    let value = |config: &Config| Value::try_from(config).map_err(|error| error.to_string());
    let mut found = Vec::new();
    differ("", Some(&value(before)?), Some(&value(after)?), &mut found);
    Ok(found)
}

fn differ(key: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<String>) {
    if before == after {
        return;
    }
    let table = |value: Option<&Value>| value.and_then(Value::as_table).cloned();
    match (table(before), table(after)) {
        (None, None) => found.push(key.to_owned()),
        (before, after) => {
            let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
            let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                differ(&key, before.get(name), after.get(name), found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_by_its_key_also_where_one_side_has_none() {
        let (before, mut after) = (Config::default(), Config::default());
        assert_eq!(differences(&before, &after), Ok(Vec::new()));
        after.admit.queue.requests = 7;
        after.admit.slo.ttft_seconds = Some(2.0);
        after.proxy.allow_paths = vec!["/x".to_owned()];
        let keys = ["admit.queue.requests", "admit.slo.ttft_seconds", "proxy.allow_paths"];
        assert_eq!(differences(&before, &after), Ok(keys.map(str::to_owned).to_vec()));
        assert_eq!(differences(&after, &before), Ok(keys.map(str::to_owned).to_vec()));
    }
}
