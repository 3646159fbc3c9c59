//! Blame by circumstances, where the engine left no dump that names the requests of its last step.
//!
//! The weights are those of kvgate's collection of public crash reports: in prefill without a token 3,
//! first of its shape 2, longer than 99 % of this life's prompts 2, a parameter that has killed engines 2,
//! longest in flight 1, sent within the last 10 s 1, its shape served 20 times before −2.

use std::collections::HashMap;

use tokio::time::Instant;

use super::report::Suspect;
use crate::ledger::Flight;
use crate::request::{Api, Outcome, Phase, PromptKind, Shape};

/// How many suspects a report names.
const NAMED: usize = 10;
/// How often a shape must have been served to be above suspicion.
const PROVEN: usize = 20;
/// Fewer served requests than this say nothing about what is rare.
const ENOUGH: usize = 20;

/// What two requests must share to be of one shape: sizes by powers of two, features by presence.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    api: Option<Api>,
    kind: PromptKind,
    prompt: u32,
    max_output: u32,
    sequences: u64,
    prompt_logprobs: bool,
    top_logprobs: u32,
    images: u32,
    pixels: u32,
    audio: bool,
    adapter: Option<&'a str>,
    structured: Option<&'a str>,
    flags: (bool, bool, bool, bool),
}

fn log2(n: u64) -> u32 {
    n.checked_ilog2().map_or(0, |bits| bits + 1)
}

fn key(shape: &Shape) -> Key<'_> {
    Key {
        api: shape.api,
        kind: shape.prompt_kind,
        prompt: log2(shape.prompt_tokens.unwrap_or(0)),
        max_output: log2(shape.max_output_tokens.unwrap_or(0)),
        sequences: shape.sequences(),
        prompt_logprobs: shape.prompt_logprobs.is_some(),
        top_logprobs: log2(shape.top_logprobs.unwrap_or(0).into()),
        images: log2(shape.images.into()),
        pixels: log2(shape.image_pixels.unwrap_or(0)),
        audio: shape.audio_seconds.is_some(),
        adapter: shape.adapter.as_deref(),
        structured: shape.structured.as_deref(),
        flags: (shape.echo, shape.min_tokens > 0, shape.logit_bias > 0, shape.stream),
    }
}

/// Orders those that were with the engine by suspicion; `life` is what it had served before.
pub(super) fn suspects(with: &[Flight], life: &[&Flight], died: Instant) -> Vec<Suspect> {
    let mut served: HashMap<Key<'_>, usize> = HashMap::new();
    let mut prompts = Vec::new();
    for flight in life.iter().filter(|f| f.record.outcome == Some(Outcome::Completed)) {
        *served.entry(key(&flight.record.shape)).or_default() += 1;
        prompts.extend(flight.record.shape.prompt_tokens);
    }
    prompts.sort_unstable();
    let rare = (prompts.len() >= ENOUGH).then(|| prompts[(prompts.len() - 1) * 99 / 100]);
    let longest = longest(with);
    let scene = Scene { served: &served, seen: life.len(), rare, longest, died };
    let mut all: Vec<(Suspect, u64)> =
        with.iter().map(|f| (scene.judge(f), f.record.shape.prompt_tokens.unwrap_or(0))).collect();
    all.sort_by(|(a, a_len), (b, b_len)| b.score.total_cmp(&a.score).then(b_len.cmp(a_len)));
    all.into_iter().map(|(suspect, _)| suspect).filter(|s| s.score > 0.0).take(NAMED).collect()
}

/// The longest prompt among several, where one is longer than all others.
fn longest(with: &[Flight]) -> Option<u64> {
    let mut lengths: Vec<u64> = with.iter().filter_map(|f| f.record.shape.prompt_tokens).collect();
    lengths.sort_unstable();
    match lengths[..] {
        [.., next, last] if last > next => Some(last),
        _ => None,
    }
}

/// What one request is held against.
struct Scene<'a> {
    served: &'a HashMap<Key<'a>, usize>,
    seen: usize,
    rare: Option<u64>,
    longest: Option<u64>,
    died: Instant,
}

impl Scene<'_> {
    fn judge(&self, flight: &Flight) -> Suspect {
        let record = &flight.record;
        let shape = &record.shape;
        let age = flight.admitted.map(|at| self.died.saturating_duration_since(at).as_secs_f64());
        let tokens = shape.prompt_tokens;
        let before = self.served.get(&key(shape)).copied().unwrap_or(0);
        let mut found: Vec<(f64, String)> = Vec::new();
        if record.phase == Phase::Prefill && age.is_some_and(|age| age < 60.0) {
            found.push((3.0, "in prefill: no token of it had come".to_owned()));
        }
        if before == 0 && self.seen > 0 {
            found.push((2.0, format!("the first of its shape among {} requests of this life", self.seen)));
        }
        if let (Some(tokens), Some(rare)) = (tokens, self.rare)
            && tokens > rare
        {
            found.push((2.0, format!("{tokens} prompt tokens: 99 % of those served had at most {rare}")));
        }
        for what in killer_prone(shape).into_iter().take(1) {
            found.push((2.0, format!("{what}: known to have killed engines")));
        }
        if tokens.is_some() && tokens == self.longest {
            found.push((1.0, "the longest prompt in flight".to_owned()));
        }
        if let Some(age) = age.filter(|age| *age < 10.0) {
            found.push((1.0, format!("sent {age:.1} s before the death")));
        }
        if before >= PROVEN {
            found.push((-2.0, format!("its shape was served {before} times before")));
        }
        let score = found.iter().map(|(points, _)| points).sum();
        let reasons = found.into_iter().map(|(_, reason)| reason).collect();
        Suspect { id: record.id.clone(), score, reasons }
    }
}

/// Parameters that public reports of crashes name.
fn killer_prone(shape: &Shape) -> Option<&'static str> {
    let named = [
        (shape.prompt_logprobs.is_some(), "prompt_logprobs"),
        (shape.echo && shape.top_logprobs.is_some(), "echo with logprobs"),
        (shape.images > 0, "images"),
        (shape.audio_seconds.is_some(), "audio"),
        (shape.adapter.is_some(), "an adapter"),
        (shape.structured.is_some(), "structured output"),
        (shape.sequences() > 1, "several sequences"),
        (shape.top_logprobs.is_some_and(|n| n > 0), "top_logprobs"),
        (shape.min_tokens > 0, "min_tokens"),
        (shape.logit_bias > 0, "logit_bias"),
        (shape.prompt_kind != PromptKind::Text, "a prompt that is not text"),
    ];
    named.into_iter().find_map(|(present, what)| present.then_some(what))
}
