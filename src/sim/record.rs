//! What one life of the engine has counted, for `/metrics`.

use std::time::Duration;

use super::histogram::Histogram;
use super::outbox::Finish;

const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const LENGTHS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0];
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN_TOKENS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const WHOLE_REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

/// Gauges of the last step, and everything counted since the start.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub running: usize,
    pub waiting: usize,
    pub kv_usage: f64,
    pub preemptions: u64,
    pub prompt_tokens: u64,
    pub generation_tokens: u64,
    pub stopped: u64,
    pub at_length: u64,
    pub rejections: u64,
    pub step_tokens: Histogram,
    pub prompt_lengths: Histogram,
    pub output_lengths: Histogram,
    pub first_token: Histogram,
    pub between_tokens: Histogram,
    pub whole_request: Histogram,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            running: 0,
            waiting: 0,
            kv_usage: 0.0,
            preemptions: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            stopped: 0,
            at_length: 0,
            rejections: 0,
            step_tokens: Histogram::new(STEP_TOKENS),
            prompt_lengths: Histogram::new(LENGTHS),
            output_lengths: Histogram::new(LENGTHS),
            first_token: Histogram::new(FIRST_TOKEN),
            between_tokens: Histogram::new(BETWEEN_TOKENS),
            whole_request: Histogram::new(WHOLE_REQUEST),
        }
    }
}

impl Record {
    /// A step that computed so many tokens.
    pub fn step(&mut self, tokens: u64) {
        self.step_tokens.observe(tokens as f64);
    }

    /// A sequence's first token.
    pub fn first_token(&mut self, prompt: u32, after: Duration) {
        self.prompt_tokens += u64::from(prompt);
        self.prompt_lengths.observe(f64::from(prompt));
        self.generation_tokens += 1;
        self.first_token.observe(after.as_secs_f64());
    }

    /// A later token.
    pub fn next_token(&mut self, after: Duration) {
        self.generation_tokens += 1;
        self.between_tokens.observe(after.as_secs_f64());
    }

    /// A sequence's end.
    pub fn finished(&mut self, finish: Finish, output: u32, after: Duration) {
        match finish {
            Finish::Stop => self.stopped += 1,
            Finish::Length => self.at_length += 1,
        }
        self.output_lengths.observe(f64::from(output));
        self.whole_request.observe(after.as_secs_f64());
    }
}
