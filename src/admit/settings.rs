//! The room's settings, composed of those of its rules.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::gate::GateSettings;
use super::{CapacitySettings, ModeSettings, QueueSettings, RateSettings};

/// Limits, queue and modes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The mode of each rule.
    pub mode: ModeSettings,
    /// How long prompts may be.
    pub length: LengthSettings,
    /// Requests per minute of one tenant.
    pub rates: RateSettings,
    /// What fits into the engine.
    pub capacity: CapacitySettings,
    /// Who may wait.
    pub queue: QueueSettings,
    /// How long they may.
    pub wait: WaitSettings,
}

/// What becomes of a request whose prompt and asked output together are over the context length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputRule {
    /// It passes: vLLM cuts the output silently.
    #[default]
    Cut,
    /// It is refused.
    Strict,
}

/// How long prompts may be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LengthSettings {
    /// Longest prompt, tokens; absent means the engine's own limit alone.
    pub max_prompt_tokens: Option<u64>,
    /// Status of `context_length_exceeded`: 413, or 400 for strict OpenAI compatibility.
    pub status: u16,
    /// `cut` or `strict`.
    pub output: OutputRule,
    /// Profile file: `max_prompt_tokens` for each shape class.
    pub profile: Option<PathBuf>,
}

impl Default for LengthSettings {
    fn default() -> Self {
        Self { max_prompt_tokens: None, status: 413, output: OutputRule::Cut, profile: None }
    }
}

/// How long a request may wait in the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WaitSettings {
    /// Seconds, where the request does not say (`x-kvgate-max-wait`); half the client's own timeout is
    /// taken where that is shorter. 0 to 86,400.
    pub max_seconds: f64,
    /// Seconds that a request may ask for at most. 0 to 86,400.
    pub most_seconds: f64,
}

impl Default for WaitSettings {
    fn default() -> Self {
        Self { max_seconds: 60.0, most_seconds: 3600.0 }
    }
}

impl WaitSettings {
    /// How long a request may wait that asks for `asked`, of a client that gives up after `patience`.
    #[must_use]
    pub fn of(&self, asked: Option<Duration>, patience: Option<Duration>) -> Duration {
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
        let usual = seconds(self.max_seconds);
        let usual = patience.map_or(usual, |p| usual.min(p / 2));
        asked.map_or(usual, |a| a.min(seconds(self.most_seconds)))
    }
}

impl Settings {
    /// What the gate goes by.
    #[must_use]
    pub fn gate(&self) -> GateSettings {
        GateSettings { capacity: self.capacity.clone(), queue: self.queue.clone() }
    }

    /// What is wrong with the settings: key, value, range.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut must = |fine: bool, text: String| {
            if !fine {
                found.push(text);
            }
        };
        let (length, capacity, queue, wait) = (&self.length, &self.capacity, &self.queue, &self.wait);
        must(
            matches!(length.status, 400 | 413),
            format!("admit.length.status = {}: must be 413 or 400", length.status),
        );
        must(
            length.max_prompt_tokens != Some(0),
            "admit.length.max_prompt_tokens = 0: must be at least 1".to_owned(),
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
        for (key, value) in [("max_seconds", wait.max_seconds), ("most_seconds", wait.most_seconds)] {
            must(
                (0.0..=86_400.0).contains(&value),
                format!("admit.wait.{key} = {value}: must be between 0 and 86400"),
            );
        }
        must(self.rates.max_tenants > 0, "admit.rates.max_tenants = 0: must be at least 1".to_owned());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_the_shortest_of_what_is_known_unless_it_is_asked_for() {
        let wait = WaitSettings::default();
        let s = Duration::from_secs;
        assert_eq!(wait.of(None, None), s(60));
        assert_eq!(wait.of(None, Some(s(20))), s(10));
        assert_eq!(wait.of(None, Some(s(600))), s(60));
        assert_eq!(wait.of(Some(s(300)), Some(s(20))), s(300));
        assert_eq!(wait.of(Some(s(999_999)), None), s(3600));
    }
}
