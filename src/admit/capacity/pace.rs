//! How fast the engine generates: seconds per token of one sequence, from whatever shows it.

use std::time::Duration;

use tokio::time::Instant;

/// How long a source is preferred after it last spoke.
const RECENT: Duration = Duration::from_secs(10);

/// Weight from which on the gaps of streams are believed: some eight tokens.
const ENOUGH_GAPS: f64 = 0.15;

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

/// Progress of a plain answer is taken to be between these shares of what the pace says, until
/// answers that ended have shown how well the pace describes them.
const UNPROVEN: (f64, f64) = (0.9, 1.15);
/// Plain answers that prove it, and the least width that is then left on either side.
const PROOF: u32 = 3;
const LEAST_WIDTH: f64 = 0.03;
/// Widths are so many mean deviations.
const DEVIATIONS: f64 = 3.0;

/// Learned times of the engine.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    stream: Mean,
    scrape: Mean,
    plain: Mean,
    lead: Mean,
    /// Requests running at the scrape before.
    running: Option<f64>,
    /// Tokens that the pace said over tokens that came, of plain answers; and its deviation.
    ratio: Mean,
    deviation: Mean,
    proofs: u32,
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
        // The rate is over the time between two scrapes, the running of one moment: they belong
        // together where the running did not change. Else the pace is rather taken for too slow.
        let before = self.running.unwrap_or(running);
        let gain = if running == before { 0.3 } else { 0.05 };
        let mean = running.max(before);
        self.running = Some(running);
        if let Some(rate) = rate.filter(|rate| *rate > 0.0 && mean >= 1.0) {
            self.scrape.take(mean / rate, gain, now);
        }
    }

    /// A plain answer of `tokens` per sequence took `elapsed` in the engine.
    pub fn completed_plain(&mut self, tokens: u64, elapsed: Duration, now: Instant) {
        if tokens == 0 {
            return;
        }
        let seconds = elapsed.as_secs_f64();
        // Short answers say more of the prefill than of the pace.
        if let Some(step) = self.step(now).filter(|_| tokens >= 16) {
            let ratio = (seconds - self.lead()).max(0.0) / step / tokens as f64;
            let off = (ratio - self.ratio.known().unwrap_or(ratio)).abs();
            self.ratio.take(ratio, 0.1, now);
            self.deviation.take(off, 0.1, now);
            self.proofs = self.proofs.saturating_add(1);
        }
        self.plain.take(seconds / tokens as f64, 0.2, now);
    }

    /// Tokens that a plain answer has generated per sequence after `elapsed`: at least, at most.
    /// `None` while the pace is unknown.
    #[must_use]
    pub fn progress(&self, elapsed: Duration, now: Instant) -> Option<(f64, f64)> {
        let step = self.step(now)?;
        let said = (elapsed.as_secs_f64() - self.lead()).max(0.0) / step;
        let (least, most) = if self.proofs < PROOF {
            (UNPROVEN.0, UNPROVEN.1)
        } else {
            let width = (DEVIATIONS * self.deviation.value).max(LEAST_WIDTH);
            let ratio = self.ratio.value.max(0.1);
            ((1.0 - width).max(0.0) / ratio, (1.0 + width) / ratio)
        };
        Some((said * least, elapsed.as_secs_f64().max(0.0) / step * most))
    }

    /// The first token came `after` the request was admitted.
    pub fn first_token(&mut self, after: Duration, now: Instant) {
        self.lead.take(after.as_secs_f64(), 0.1, now);
    }

    /// Seconds per token of one sequence, where anything has shown it.
    #[must_use]
    pub fn step(&self, now: Instant) -> Option<f64> {
        // The first gaps of a stream may hold somebody else's prefill.
        let stream = Some(&self.stream).filter(|stream| stream.weight >= ENOUGH_GAPS);
        let sources = [stream, Some(&self.scrape), Some(&self.plain)];
        let recent = sources.iter().flatten().find_map(|source| source.recent(now));
        recent
            .or_else(|| sources.iter().flatten().find_map(|source| source.known()))
            .filter(|step| *step > 0.0)
    }

    /// Seconds from admission to the first token; zero where no stream has shown it.
    #[must_use]
    pub fn lead(&self) -> f64 {
        self.lead.known().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_progress_is_a_wide_interval_until_answers_have_proved_the_pace() {
        let (t, second) = (Instant::now(), Duration::from_secs(1));
        let mut pace = Pace::default();
        assert_eq!(pace.progress(second, t), None);
        pace.scraped(4.0, Some(80.0), t);
        pace.scraped(4.0, Some(80.0), t);
        assert_eq!(pace.step(t), Some(0.05));
        let (least, most) = pace.progress(10 * second, t).unwrap();
        assert!((least - 180.0).abs() < 1e-6 && (most - 230.0).abs() < 1e-6, "{least} {most}");
        // Answers take 10 % longer than the pace says: the ratio takes it in.
        (0..5).for_each(|_| pace.completed_plain(100, Duration::from_millis(5500), t));
        let (least, most) = pace.progress(11 * second, t).unwrap();
        assert!(least < 200.0 && most > 200.0 && most - least < 15.0, "{least} {most}");
    }
}
