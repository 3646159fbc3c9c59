//! Which share of real prompts the bounds decide, without tokenizing: those certainly within a context length, told
//! from their bytes, and those certainly over it.
//!
//! The lengths are those of production traces (`prompt_lengths.txt` says which), which give tokens only. A prompt of n
//! tokens is taken to be so many bytes of the documents (conversations) or the source code (code) of the other parts
//! of this benchmark as have n tokens on average by the tokenizer at hand.

use kvgate::tokens::{Extent, Tokenizer};

use super::corpora::Corpora;

const LENGTHS: &str = include_str!("prompt_lengths.txt");

/// Name of a trace, its corpus, its lengths.
fn traces() -> impl Iterator<Item = (&'static str, &'static str, Vec<u64>)> {
    LENGTHS.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        (name, if name == "code" { "code" } else { "english" }, words.map(|n| n.parse().unwrap()).collect())
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
