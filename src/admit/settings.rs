//! What this room goes by.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::request::Priority;

use super::capacity::CapacitySettings;
use super::mode::ModeSettings;
use super::rate::RateSettings;
use super::shares::Shares;

/// The settings of admission.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// What each rule does with its verdict.
    pub mode: ModeSettings,
    /// Prompt length.
    pub length: LengthSettings,
    /// Requests per minute of a tenant.
    pub rates: RateSettings,
    /// What fits into the engine.
    pub capacity: CapacitySettings,
    /// Who may wait.
    pub queue: QueueSettings,
    /// What an answer must keep to be worth anything.
    pub slo: SloSettings,
    /// How tenants share the engine.
    pub fairness: FairnessSettings,
}

/// What an answer must keep to be worth anything. Without a target its gates are open: a slow engine
/// is not an overloaded one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SloSettings {
    /// Seconds from a request's arrival to its first token, over 0; absent: no target.
    pub ttft_seconds: Option<f64>,
    /// Mean seconds between two tokens of an answer, over 0; absent: no target.
    pub itl_seconds: Option<f64>,
}

impl SloSettings {
    /// The target of the first token.
    #[must_use]
    pub fn ttft(&self) -> Option<Duration> {
        self.ttft_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

/// How tenants share the engine where not all of them fit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FairnessSettings {
    /// Tenants that differ from the others.
    pub tenants: Vec<TenantSettings>,
}

impl FairnessSettings {
    /// The accounts, with their weights.
    #[must_use]
    pub fn shares(&self) -> Shares {
        Shares::new(self.weights())
    }

    /// The weights that are configured.
    #[must_use]
    pub fn weights(&self) -> HashMap<u64, f64> {
        self.tenants.iter().filter_map(|t| Some((t.number()?, t.weight))).collect()
    }

    /// The priorities that are configured.
    #[must_use]
    pub fn priorities(&self) -> HashMap<u64, Priority> {
        self.tenants.iter().filter_map(|t| Some((t.number()?, t.priority?))).collect()
    }
}

impl TenantSettings {
    /// The id as [`crate::request::Tenant::number`] says it; `None` where it is no such id.
    fn number(&self) -> Option<u64> {
        if self.id == "anonymous" { Some(0) } else { u64::from_str_radix(&self.id, 16).ok() }
    }
}

/// One tenant that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    /// The hash of its API key, as the state page and the ledger show it.
    pub id: String,
    /// Its share against that of a tenant with 1, over 0.
    #[serde(default = "one")]
    pub weight: f64,
    /// What its requests are, whatever they say.
    #[serde(default)]
    pub priority: Option<Priority>,
}

const fn one() -> f64 {
    1.0
}

/// What becomes of prompt and asked output together over the context length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputRule {
    /// It passes, and the engine cuts the output (as vLLM does).
    #[default]
    Cut,
    /// It is refused.
    Strict,
}

/// The length rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LengthSettings {
    /// Tokens of the longest prompt that passes, at least 1, beside the engine's own limit; absent
    /// means that only the engine's and the profile's hold.
    pub max_prompt_tokens: Option<NonZeroU64>,
    /// What becomes of prompt + asked output over the context length: `cut` or `strict`.
    pub output: OutputRule,
    /// HTTP status of `context_length_exceeded`: 413, or 400 for strict OpenAI compatibility.
    pub status: u16,
    /// Profile file: `max_prompt_tokens` for each shape class.
    pub profile: Option<PathBuf>,
}

impl Default for LengthSettings {
    fn default() -> Self {
        Self { max_prompt_tokens: None, output: OutputRule::Cut, status: 413, profile: None }
    }
}

/// The queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSettings {
    /// Requests in the queue at most; 0 makes every one that does not fit a 429.
    pub requests: usize,
    /// Bytes of their bodies at most (one request may always wait).
    pub bytes: u64,
    /// Seconds that a request waits at most where the client asked for no other time, 0–86,400.
    pub max_wait_seconds: f64,
    /// Refused clients whose return is remembered at most, at least 1.
    pub appointments: usize,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { requests: 512, bytes: 256 * 1024 * 1024, max_wait_seconds: 60.0, appointments: 512 }
    }
}

impl QueueSettings {
    /// How long a request may wait: what it asks for, else the smaller of the configured time and
    /// half of the client's known patience.
    #[must_use]
    pub fn wait(&self, asked: Option<Duration>, patience: Option<Duration>) -> Duration {
        let configured = self.max_wait_seconds;
        let configured = if configured.is_finite() { configured.clamp(0.0, 86_400.0) } else { 60.0 };
        let configured = Duration::from_secs_f64(configured);
        asked.unwrap_or_else(|| patience.map_or(configured, |patience| configured.min(patience / 2)))
    }
}

impl Settings {
    /// What is wrong with the settings: key, value, range.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut must = |fine: bool, text: String| {
            if !fine {
                found.push(text);
            }
        };
        let (length, capacity, queue) = (&self.length, &self.capacity, &self.queue);
        must(
            matches!(length.status, 400 | 413),
            format!("admit.length.status = {}: must be 413 or 400", length.status),
        );
        for (key, value) in
            [("output_quantile", capacity.output_quantile), ("pool_share", capacity.pool_share)]
        {
            must(
                (0.5..=1.0).contains(&value),
                format!("admit.capacity.{key} = {value}: must be between 0.5 and 1"),
            );
        }
        for (key, value) in [
            ("default_output_tokens", capacity.default_output_tokens),
            ("unknown_pool_inflight", capacity.unknown_pool_inflight),
        ] {
            must(value > 0, format!("admit.capacity.{key} = 0: must be at least 1"));
        }
        must(queue.requests <= 100_000, format!("admit.queue.requests = {}: at most 100000", queue.requests));
        let wait = queue.max_wait_seconds;
        must((0.0..=86_400.0).contains(&wait), format!("admit.queue.max_wait_seconds = {wait}: 0 to 86400"));
        for (key, value) in [("ttft_seconds", self.slo.ttft_seconds), ("itl_seconds", self.slo.itl_seconds)] {
            let fine = value.is_none_or(|value| value > 0.0 && value <= 86_400.0);
            must(
                fine,
                format!("admit.slo.{key} = {}: must be over 0 and at most 86400", value.unwrap_or(0.0)),
            );
        }
        must(
            (0.0..=5.0).contains(&capacity.caution),
            format!("admit.capacity.caution = {}: must be between 0 and 5", capacity.caution),
        );
        for tenant in &self.fairness.tenants {
            let (id, weight) = (&tenant.id, tenant.weight);
            must(
                tenant.number().is_some(),
                format!(
                    "admit.fairness.tenants: id = {id:?}: must be a tenant's 16 hex digits, or \"anonymous\""
                ),
            );
            must(
                weight > 0.0 && weight <= 1e6,
                format!(
                    "admit.fairness.tenants: weight = {weight} of {id:?}: must be over 0 and at most 1000000"
                ),
            );
        }
        found.extend(capacity.comparison.problems());
        let mut must = |fine: bool, text: String| {
            if !fine {
                found.push(text);
            }
        };
        must(self.rates.max_tenants > 0, "admit.rates.max_tenants = 0: must be at least 1".to_owned());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_as_it_asks_or_half_of_its_patience() {
        let queue = QueueSettings::default();
        let s = Duration::from_secs;
        assert_eq!(queue.wait(None, None), s(60));
        assert_eq!(queue.wait(None, Some(s(600))), s(60));
        assert_eq!(queue.wait(None, Some(s(30))), s(15));
        assert_eq!(queue.wait(Some(s(600)), Some(s(30))), s(600));
    }

    #[test]
    fn the_settings_survive_a_round_and_refuse_unknown_keys() {
        let text = toml::to_string(&Settings::default()).unwrap();
        assert_eq!(toml::from_str::<Settings>(&text).unwrap(), Settings::default());
        assert!(toml::from_str::<Settings>("[queue]\nrequest = 1").is_err());
    }
}
