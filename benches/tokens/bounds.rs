//! Which share of real prompts the bounds decide, without tokenizing: those certainly within a context length, told
//! from their bytes, and those certainly over it.
//!
//! The lengths are those of production traces (`benches/overload/trace.csv` says which), which give tokens only. A prompt of n
//! tokens is taken to be so many bytes of the documents (conversations) or the source code (code) of the other parts
//! of this benchmark as have n tokens on average by the tokenizer at hand.

use kvgate::tokens::{Extent, Tokenizer};

use super::corpora::Corpora;

const TRACE: &str = include_str!("../overload/trace.csv");
/// So many quantiles of a trace stand for it.
const QUANTILES: usize = 1000;

/// Name of a trace, its corpus, its lengths.
fn traces() -> impl Iterator<Item = (&'static str, &'static str, Vec<u64>)> {
    [("conv", "english"), ("code", "code"), ("long", "english")].into_iter().map(|(name, corpus)| {
        let lines = TRACE.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let mut lengths: Vec<u64> =
            lines.filter(|line| line[0] == name).map(|line| line[2].parse().unwrap()).collect();
        lengths.sort_unstable();
        (name, corpus, lengths.iter().step_by((lengths.len() / QUANTILES).max(1)).copied().collect())
    })
}

pub fn bounds(tokenizer: &Tokenizer, corpora: &Corpora) {
    println!(
        "  {:6} {:>11} {:>8} {:>10} {:>10} {:>10} {:>10} {:>9}",
        "trace", "bytes/token", "context", "over", "surely in", "surely out", "tokenize", "decided"
    );
    for (name, corpus, lengths) in traces() {
        let text = &corpora.all.iter().find(|(name, _)| *name == corpus).unwrap().1;
        let sample = &text[..text.floor_char_boundary(2 << 20)];
        let counted = tokenizer.count(sample, false, &Extent::WHOLE).unwrap().tokens;
        let each = sample.len() as f64 / counted as f64;
        for context in [4, 8, 16, 32, 64, 128].map(|k| k << 10) {
            // The longest prompt that runs leaves room for one token.
            let limit = context - 1;
            let (mut within, mut over) = (0, 0);
            for length in &lengths {
                let prompt = &text[..text.floor_char_boundary((*length as f64 * each) as usize)];
                within += u32::from(tokenizer.at_most(prompt, true).is_some_and(|most| most <= limit));
                over += u32::from(tokenizer.exceeds(prompt, limit));
            }
            let share = |some: u32| 100.0 * f64::from(some) / lengths.len() as f64;
            let long = lengths.iter().filter(|length| **length > limit).count() as u32;
            println!(
                "  {name:6} {each:11.2} {context:8} {:8.1} % {:8.1} % {:8.1} % {:8.1} % {:7.1} %",
                share(long),
                share(within),
                share(over),
                share(lengths.len() as u32 - within - over),
                share(within + over)
            );
        }
    }
}
