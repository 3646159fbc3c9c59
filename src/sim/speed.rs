//! How long a step takes: a roofline.
//!
//! `step + max(weights, token * N) + prefill * P + context * C + pair * Q + sequence * S`, for a step of N
//! tokens, P of them of prompts, with S sequences of which those that decode hold C tokens, and Q pairs of
//! a prompt token and one before it. The weights are read once for all tokens of a step, so that few
//! tokens cost no more than one.

use std::time::Duration;

use super::batch::{Batch, SeqId, Share};
use super::settings::Settings;

impl Settings {
    /// How long a step takes.
    #[must_use]
    pub fn step_time(&self, batch: &Batch) -> Duration {
        let (mut prefill, mut context, mut pairs) = (0.0, 0.0, 0.0);
        for share in &batch.shares {
            let (tokens, computed) = (f64::from(share.tokens), f64::from(share.computed));
            if share.decodes {
                context += computed + 1.0;
            } else {
                prefill += tokens;
                pairs += tokens * (computed + tokens / 2.0);
            }
        }
        let linear = (self.token_us * batch.tokens() as f64).max(self.weights_ms * 1e3);
        let micros = self.step_ms * 1e3
            + linear
            + self.prefill_us_per_token * prefill
            + self.context_us_per_token * context
            + self.pair_ns * 1e-3 * pairs
            + self.sequence_us * batch.shares.len() as f64;
        Duration::try_from_secs_f64(micros / 1e6).unwrap_or(Duration::ZERO)
    }

    /// How long the prefill of one prompt takes on an idle engine without a cache.
    #[must_use]
    pub fn prefill_time(&self, prompt: u32) -> Duration {
        let mut time = Duration::ZERO;
        let mut computed = 0;
        while computed < prompt {
            let tokens = (prompt - computed).min(self.max_num_batched_tokens.max(1));
            let share = Share { seq: SeqId(0), tokens, computed, new: computed == 0, decodes: false };
            time += self.step_time(&Batch { shares: vec![share], preempted: Vec::new() });
            computed += tokens;
        }
        time
    }

    /// The same engine with every step `factor` times as long.
    #[must_use]
    pub fn stretched(self, factor: f64) -> Self {
        Self {
            step_ms: self.step_ms * factor,
            weights_ms: self.weights_ms * factor,
            token_us: self.token_us * factor,
            prefill_us_per_token: self.prefill_us_per_token * factor,
            context_us_per_token: self.context_us_per_token * factor,
            pair_ns: self.pair_ns * factor,
            sequence_us: self.sequence_us * factor,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{PRESETS, Scheduler};

    fn decoding(sequences: u32, computed: u32) -> Batch {
        let share = |n| Share { seq: SeqId(n), tokens: 1, computed, new: false, decodes: true };
        Batch { shares: (0..u64::from(sequences)).map(share).collect(), preempted: Vec::new() }
    }

    #[test]
    fn the_default_is_a_step_and_so_much_a_token() {
        let settings = Settings::default();
        let share = Share { seq: SeqId(0), tokens: 100, computed: 0, new: true, decodes: false };
        let mut batch = decoding(2, 199);
        batch.shares.push(share);
        assert_eq!(settings.step_time(&batch), Duration::from_micros(20_000 + 100 * 50 + 400 / 2));
    }

    #[test]
    fn one_stream_runs_as_fast_as_was_measured_elsewhere() {
        // Public sweeps of an 8B model: 6.5 ms a token on an H100, some 75 tokens/s on an A100-40G.
        for (name, range) in [("h100-8b", 6.0..7.5), ("a100-40g-8b", 12.5..14.5)] {
            let settings = Settings::preset(name).unwrap();
            let millis = settings.step_time(&decoding(1, 512)).as_secs_f64() * 1e3;
            assert!(range.contains(&millis), "{name}: {millis}");
        }
    }

    #[test]
    fn reading_the_weights_hides_the_first_tokens() {
        let settings =
            Settings { sequence_us: 0.0, context_us_per_token: 0.0, ..Settings::preset("h100-8b").unwrap() };
        assert_eq!(settings.step_time(&decoding(1, 9)), settings.step_time(&decoding(100, 9)));
        assert!(settings.step_time(&decoding(1, 9)) < settings.step_time(&decoding(400, 9)));
    }

    #[test]
    fn a_prompt_alone_takes_its_prefill_time_whatever_the_stretch() {
        for name in PRESETS {
            let settings = Settings::preset(name).unwrap().stretched(3.0);
            let mut scheduler = Scheduler::new(settings.limits());
            scheduler.add(20_000, 1);
            let mut time = Duration::ZERO;
            loop {
                let batch = scheduler.plan();
                if batch.shares.is_empty() {
                    break;
                }
                time += settings.step_time(&batch);
                scheduler.complete(&batch);
            }
            assert_eq!(time, settings.prefill_time(20_000));
            let plain = Settings::preset(name).unwrap().prefill_time(20_000) * 3;
            assert!(time.abs_diff(plain) < Duration::from_micros(1), "{time:?} {plain:?}");
        }
    }
}
