//! How fast the engine generates: seconds per token of one sequence, from whatever shows it.

use std::time::Duration;

use tokio::time::Instant;

/// How long a source is preferred after it last spoke.
const RECENT: Duration = Duration::from_secs(10);

/// A mean that forgets.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    value: f64,
    weight: f64,
    at: Option<Instant>,
}

impl Mean {
    /// Takes `value` in with `gain` (0–1); the first ones count in full, so that it starts unbiased.
    fn take(&mut self, value: f64, gain: f64, now: Instant) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        self.weight = (self.weight * (1.0 - gain)) + gain;
        self.value += (value - self.value) * (gain / self.weight).clamp(0.0, 1.0);
        self.at = Some(now);
    }

    fn known(&self) -> Option<f64> {
        self.at.map(|_| self.value)
    }

    fn recent(&self, now: Instant) -> Option<f64> {
        self.at.filter(|at| now.saturating_duration_since(*at) <= RECENT).map(|_| self.value)
    }
}

/// Learned times of the engine.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    stream: Mean,
    scrape: Mean,
    plain: Mean,
    lead: Mean,
}

impl Pace {
    /// A stream generated `tokens` per sequence in `gap`.
    pub fn streamed(&mut self, tokens: u64, gap: Duration, now: Instant) {
        if tokens > 0 {
            let gain = 1.0 - 0.98f64.powi(tokens.min(1000) as i32);
            self.stream.take(gap.as_secs_f64() / tokens as f64, gain, now);
        }
    }

    /// The engine's own counter: `running` requests generated `rate` tokens per second together.
    pub fn scraped(&mut self, running: f64, rate: Option<f64>, now: Instant) {
        if let Some(rate) = rate.filter(|rate| *rate > 0.0 && running >= 1.0) {
            self.scrape.take(running / rate, 0.3, now);
        }
    }

    /// A plain answer of `tokens` per sequence took `elapsed` in the engine.
    pub fn completed_plain(&mut self, tokens: u64, elapsed: Duration, now: Instant) {
        if tokens > 0 {
            self.plain.take(elapsed.as_secs_f64() / tokens as f64, 0.2, now);
        }
    }

    /// The first token came `after` the request was admitted.
    pub fn first_token(&mut self, after: Duration, now: Instant) {
        self.lead.take(after.as_secs_f64(), 0.1, now);
    }

    /// Seconds per token of one sequence, where anything has shown it.
    #[must_use]
    pub fn step(&self, now: Instant) -> Option<f64> {
        let sources = [&self.stream, &self.scrape, &self.plain];
        let recent = sources.iter().find_map(|source| source.recent(now));
        recent.or_else(|| sources.iter().find_map(|source| source.known())).filter(|step| *step > 0.0)
    }

    /// Seconds from admission to the first token; zero where no stream has shown it.
    #[must_use]
    pub fn lead(&self) -> f64 {
        self.lead.known().unwrap_or(0.0)
    }
}
