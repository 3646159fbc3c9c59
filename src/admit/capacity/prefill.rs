//! How long prompts take until their first token, and how much of that work the engine has before it.
//!
//! An engine computes the prompts that it was given one after another, a bounded number of tokens in
//! each step: the first token of one comes when all before it and itself are done. Learned from streams
//! by recursive least squares: seconds = w0 + w1·Σ(p−c)/10³ + w2·Σ(p²−c²)/(2·10⁶) over the prompts p, of which c
//! are found in the prefix cache, that were
//! outstanding when it was sent, its own included; the square is attention.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

/// Weights of an engine of which nothing is known: seconds, per 1,000 tokens, per 10⁶ of p²/2.
const FIRST: [f64; 3] = [0.02, 0.06, 0.0015];
/// Variances of these.
const DOUBT: [f64; 3] = [1.0, 0.05, 1e-5];
/// What is left of an observation's weight with each later one.
const MEMORY: f64 = 0.995;
/// Observations by which the scale of the weights is found: engines differ by a factor of a thousand.
const SCALING: u32 = 3;
/// The least of the second weight: prefill is never free.
const LEAST_PER_THOUSAND: f64 = 0.0005;

/// A prompt, as the prefill sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prompt {
    /// All of it, tokens.
    pub tokens: u64,
    /// What the engine finds in its prefix cache, at its beginning.
    pub cached: u64,
}

impl Prompt {
    /// Tokens that are computed.
    #[must_use]
    pub fn fresh(self) -> f64 {
        self.tokens.saturating_sub(self.cached) as f64
    }

    /// Pairs of tokens that attention looks at: each that is computed, with all before it.
    fn pairs(self) -> f64 {
        let (all, cached) = (self.tokens as f64, self.cached.min(self.tokens) as f64);
        (all * all - cached * cached) / 2.0
    }
}

impl From<u64> for Prompt {
    fn from(tokens: u64) -> Self {
        Self { tokens, cached: 0 }
    }
}

/// One prompt in the engine without a first token.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    prompt: Prompt,
    /// Sums when it was sent, its own included.
    tokens: f64,
    squares: f64,
    sent: Instant,
}

/// The model and what is outstanding.
#[derive(Debug, Clone)]
pub struct Prefill {
    weights: [f64; 3],
    doubt: [[f64; 3]; 3],
    seen: u32,
    outstanding: HashMap<u64, Outstanding>,
    tokens: f64,
    squares: f64,
    busy_until: Option<Instant>,
    /// Plain answers show no first token: they are taken for begun when the model says so.
    silent: VecDeque<(Instant, u64)>,
    /// The largest prompt that has had its first token, tokens.
    proven: u64,
}

impl Default for Prefill {
    fn default() -> Self {
        let mut doubt = [[0.0; 3]; 3];
        (0..3).for_each(|i| doubt[i][i] = DOUBT[i]);
        Self {
            weights: FIRST,
            doubt,
            seen: 0,
            outstanding: HashMap::new(),
            tokens: 0.0,
            squares: 0.0,
            busy_until: None,
            silent: VecDeque::new(),
            proven: 0,
        }
    }
}

impl Prefill {
    /// A prompt goes to the engine.
    pub fn sent(&mut self, id: u64, prompt: impl Into<Prompt>, stream: bool, now: Instant) {
        let prompt = prompt.into();
        self.tokens += prompt.fresh();
        self.squares += prompt.pairs();
        let until = later(self.busy_until.unwrap_or(now).max(now), self.cost(prompt));
        self.busy_until = Some(until);
        let one = Outstanding { prompt, tokens: self.tokens, squares: self.squares, sent: now };
        self.outstanding.insert(id, one);
        if !stream {
            self.silent.push_back((until, id));
        }
    }

    /// The first token of one came: teaches the weights.
    pub fn first_token(&mut self, id: u64, now: Instant) {
        let Some(one) = self.gone(id, now) else { return };
        self.proven = self.proven.max(one.prompt.tokens);
        let took = now.saturating_duration_since(one.sent).as_secs_f64();
        self.learn([1.0, one.tokens / 1e3, one.squares / 1e6], took);
    }

    /// One left the engine, or is past its prefill.
    pub fn left(&mut self, id: u64, now: Instant) {
        self.gone(id, now);
    }

    /// An answer without a first token of its own was whole: its prompt is proven.
    pub fn completed(&mut self, prompt: u64) {
        self.proven = self.proven.max(prompt);
    }

    /// Takes plain answers for begun whose time has come.
    pub fn pass(&mut self, now: Instant) {
        while let Some((_, id)) = self.silent.front().copied().filter(|(until, _)| *until <= now) {
            self.silent.pop_front();
            self.gone(id, now);
        }
    }

    /// The engine that had all this is gone; the weights stay.
    pub fn clear(&mut self) {
        self.outstanding.clear();
        self.silent.clear();
        (self.tokens, self.squares, self.busy_until) = (0.0, 0.0, None);
    }

    /// Prompt tokens to be computed that were sent and whose first token has not come.
    #[must_use]
    pub const fn tokens(&self) -> f64 {
        self.tokens
    }

    /// Seconds of prefill that the engine has before it.
    #[must_use]
    pub fn backlog(&self, now: Instant) -> f64 {
        self.busy_until.map_or(0.0, |until| until.saturating_duration_since(now).as_secs_f64())
    }

    /// Seconds of prefill that a prompt is, beside those before it.
    #[must_use]
    pub fn cost(&self, prompt: impl Into<Prompt>) -> f64 {
        let prompt = prompt.into();
        self.weights[1] * prompt.fresh() / 1e3 + self.weights[2] * prompt.pairs() / 1e6
    }

    /// Seconds until the first token of a prompt that is sent now.
    #[must_use]
    pub fn ttft(&self, prompt: impl Into<Prompt>, now: Instant) -> f64 {
        self.backlog(now) + self.weights[0] + self.cost(prompt)
    }

    /// Prompt tokens that are computed in so many seconds.
    #[must_use]
    pub fn tokens_in(&self, seconds: f64) -> f64 {
        seconds * 1e3 / self.weights[1]
    }

    /// The largest prompt that has had its first token, tokens.
    #[must_use]
    pub const fn proven(&self) -> u64 {
        self.proven
    }

    /// Whether a request has no first token yet, as far as can be seen.
    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        self.outstanding.contains_key(&id)
    }

    /// Prompts without a first token, tokens each.
    pub fn unproven(&self) -> impl Iterator<Item = u64> + '_ {
        self.outstanding.values().map(|one| one.prompt.tokens)
    }

    /// The same of one request; `None` where it had its first token, or is not here.
    #[must_use]
    pub fn unproven_of(&self, id: u64) -> Option<u64> {
        self.outstanding.get(&id).map(|one| one.prompt.tokens)
    }

    fn gone(&mut self, id: u64, now: Instant) -> Option<Outstanding> {
        let one = self.outstanding.remove(&id)?;
        self.tokens = (self.tokens - one.prompt.fresh()).max(0.0);
        self.squares = (self.squares - one.prompt.pairs()).max(0.0);
        if self.outstanding.is_empty() {
            (self.tokens, self.squares, self.busy_until) = (0.0, 0.0, Some(now));
        }
        Some(one)
    }

    /// One step of recursive least squares with forgetting.
    fn learn(&mut self, features: [f64; 3], seconds: f64) {
        let said: f64 = (0..3).map(|i| self.weights[i] * features[i]).sum();
        self.seen = self.seen.saturating_add(1);
        if self.seen <= SCALING {
            let by = (seconds / said.max(1e-6)).clamp(0.01, 1000.0).powf(1.0 / f64::from(self.seen));
            self.weights.iter_mut().for_each(|w| *w *= by);
            return;
        }
        let spread: [f64; 3] = std::array::from_fn(|i| (0..3).map(|j| self.doubt[i][j] * features[j]).sum());
        let scale = MEMORY + (0..3).map(|i| features[i] * spread[i]).sum::<f64>();
        // One that waited for something else must not be taken for a slow engine.
        let off = (seconds - said).clamp(-2.0 - said, 2.0 + said);
        for (i, row) in self.doubt.iter_mut().enumerate() {
            self.weights[i] += spread[i] / scale * off;
            for (j, doubt) in row.iter_mut().enumerate() {
                *doubt = ((*doubt - spread[i] * spread[j] / scale) / MEMORY).min(1e3);
            }
        }
        self.weights[0] = self.weights[0].max(0.0);
        self.weights[1] = self.weights[1].max(LEAST_PER_THOUSAND);
        self.weights[2] = self.weights[2].max(0.0);
    }
}

/// So many seconds after `at`, at most an hour.
fn later(at: Instant, seconds: f64) -> Instant {
    at + std::time::Duration::from_secs_f64(if seconds.is_finite() {
        seconds.clamp(0.0, 3600.0)
    } else {
        3600.0
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Prompts one after another on an engine of so many seconds per 1,000 tokens.
    fn taught(per_thousand: f64) -> (Prefill, Instant) {
        let (mut prefill, mut now) = (Prefill::default(), Instant::now());
        for id in 0..200u64 {
            let prompt = 100 + id * 37 % 4000;
            prefill.sent(id, prompt, true, now);
            now += Duration::from_secs_f64(0.01 + per_thousand * prompt as f64 / 1e3);
            prefill.first_token(id, now);
        }
        (prefill, now)
    }

    #[test]
    fn fast_and_slow_engines_are_learned() {
        for per_thousand in [0.005, 0.03, 0.3, 8.0] {
            let (prefill, now) = taught(per_thousand);
            for prompt in [500u64, 2000, 4000] {
                let (said, right) = (prefill.ttft(prompt, now), 0.01 + per_thousand * prompt as f64 / 1e3);
                assert!((said / right - 1.0).abs() < 0.15, "{per_thousand} {prompt}: {said} {right}");
            }
        }
    }

    #[test]
    fn what_was_sent_is_before_the_next_until_its_first_token_or_its_time() {
        let (mut prefill, now) = taught(1.0);
        prefill.sent(1000, 2000, true, now);
        prefill.sent(1001, 1000, false, now);
        assert_eq!(prefill.tokens(), 3000.0);
        assert!((prefill.backlog(now) - 3.0).abs() < 0.3, "{}", prefill.backlog(now));
        prefill.first_token(1000, now + Duration::from_secs(2));
        assert_eq!(prefill.tokens(), 1000.0);
        prefill.pass(now + Duration::from_secs(4));
        assert_eq!((prefill.tokens(), prefill.backlog(now + Duration::from_secs(4))), (0.0, 0.0));
        prefill.sent(1002, 500, true, now);
        prefill.left(1002, now);
        prefill.left(1002, now);
        assert_eq!(prefill.tokens(), 0.0);
    }

    #[test]
    fn nonsense_does_not_break_it() {
        let (mut prefill, now) = (Prefill::default(), Instant::now());
        for id in 0..50 {
            prefill.sent(id, u64::MAX / 4, id % 2 == 0, now);
            prefill.first_token(id, now);
        }
        assert!(prefill.ttft(100, now).is_finite());
        assert!(prefill.weights.iter().all(|w| w.is_finite() && *w >= 0.0));
    }
}
