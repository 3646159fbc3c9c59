//! Text made to be dear to count.

use std::hint::black_box;
use std::time::Duration;

use kvgate::tokens::{Extent, Tokenizer};

use super::timed;

/// A kind of hostile text and what makes so many bytes of it, in a given round of measuring.
type Kind = (&'static str, fn(usize, &str, u64) -> String);

/// How often each is measured, what is random made anew: the least counts, as other work on the machine only adds.
const ROUNDS: u64 = 3;

const HOSTILE: [Kind; 26] = [
    ("one letter", |n, _, _| "a".repeat(n)),
    ("one capital", |n, _, _| "A".repeat(n)),
    ("spaces", |n, _, _| " ".repeat(n)),
    ("newlines", |n, _, _| "\n".repeat(n)),
    ("tabs", |n, _, _| "\t".repeat(n)),
    ("CR LF", |n, _, _| "\r\n".repeat(n / 2)),
    ("digits", |n, _, _| "7".repeat(n)),
    ("random digits", |n, _, round| letters(n, "0123456789", round)),
    ("random letters", |n, _, round| letters(n, "abcdefghijklmnopqrstuvwxyz", round)),
    ("random capitals", |n, _, round| letters(n, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", round)),
    ("two letters", |n, _, _| "ab".repeat(n / 2)),
    ("base64", |n, _, round| {
        letters(n, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", round)
    }),
    ("hex", |n, _, round| letters(n, "0123456789abcdef", round)),
    ("exclamation marks", |n, _, _| "!".repeat(n)),
    ("punctuation", |n, _, round| letters(n, "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~", round)),
    ("apostrophes", |n, _, _| "'s".repeat(n / 2)),
    ("combining marks", |n, _, _| format!("e{}", "\u{301}".repeat(n / 2))),
    ("ideographs", |n, _, _| "的".repeat(n / 3)),
    ("random ideographs", |n, _, round| {
        letters(
            n / 3,
            "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生",
            round,
        )
    }),
    ("emoji", |n, _, _| "👩‍👩‍👧".repeat(n / 18)),
    ("zero width", |n, _, _| "\u{200b}".repeat(n / 3)),
    ("no-break spaces", |n, _, _| "\u{a0}".repeat(n / 2)),
    ("special tokens", |n, token, _| token.repeat(n / token.len().max(1))),
    ("parts of special tokens", |n, token, _| {
        token[..token.floor_char_boundary(token.len().saturating_sub(1))].repeat(n / token.len().max(2))
    }),
    ("random bytes", |n, _, round| {
        let mut random = fastrand::Rng::with_seed(9 + round);
        let bytes: Vec<u8> = (0..n / 2).map(|_| random.u8(..)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }),
    ("spaces and letters", |n, _, _| "   a".repeat(n / 4)),
];

fn letters(n: usize, of: &str, round: u64) -> String {
    let (of, mut random): (Vec<char>, _) = (of.chars().collect(), fastrand::Rng::with_seed(5 + round));
    (0..n).map(|_| of[random.usize(0..of.len())]).collect()
}

/// Each kind against the reference, and how its cost grows.
pub fn hostile(tokenizer: &mut Tokenizer) {
    tokenizer.remember(0);
    let token = tokenizer.backend().added().first().cloned().unwrap_or_else(|| "<|x|>".to_owned());
    println!(
        "  {:24} {:>10} {:>10} {:>7} {:>12}",
        "hostile megabyte", "reference", "kvgate", "ratio", "8 MB : 1 MB"
    );
    let (mut worst, mut growth) = (0.0_f64, 0.0_f64);
    // What is loaded at first need.
    tokenizer.count(&"q".repeat(40_000), false, &Extent::WHOLE).unwrap();
    table(tokenizer);
    for (name, make) in HOSTILE {
        let [reference, small, large] = least(|round| {
            let (one, eight) = (make(1 << 20, &token, round), make(8 << 20, &token, round));
            // (What was seen before is cheaper: the beginning of the long one was, an eighth.)
            let ours =
                |text: &str| timed(|| _ = black_box(tokenizer.count(text, false, &Extent::WHOLE).unwrap()));
            [
                timed(|| drop(black_box(tokenizer.backend().reference_ids(&one, false).unwrap()))),
                ours(&one),
                ours(&eight),
            ]
        });
        let ratio = small.as_secs_f64() / reference.as_secs_f64();
        let grown = large.as_secs_f64() / small.as_secs_f64();
        let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(1 << 20);
        println!(
            "  {name:24} {:5.0} ns/B {:5.0} ns/B {ratio:6.2}x {grown:11.1}x",
            each(reference),
            each(small)
        );
        (worst, growth) = (worst.max(ratio), growth.max(grown));
    }
    println!("  worst: {worst:.2}x of the reference, 8 MB {growth:.1}x of 1 MB");
}

/// The least of each over the rounds.
fn least<const N: usize>(measure: impl FnMut(u64) -> [Duration; N]) -> [Duration; N] {
    let rounds: Vec<[Duration; N]> = (0..ROUNDS).map(measure).collect();
    std::array::from_fn(|i| rounds.iter().map(|round| round[i]).min().unwrap())
}

/// What each thread pays once: the library's table of words grows to its full size (64 MiB) by doubling, and the system
/// gives memory for it. Without this the first kind with many different words would pay for it, and look as if it
/// grew faster than its size.
fn table(tokenizer: &Tokenizer) {
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_";
    let run = |seed: u64| {
        let (of, mut random): (Vec<char>, _) = (alphabet.chars().collect(), fastrand::Rng::with_seed(seed));
        let text: String = (0..16 << 20).map(|_| of[random.usize(0..of.len())]).collect();
        timed(|| _ = black_box(tokenizer.count(&text, false, &Extent::WHOLE).unwrap()))
    };
    let (first, second) = (run(1), run(2));
    println!(
        "  a thread's table of words, once: {:?} (16 MB of base64: {first:?}, 16 MB of other: {second:?})",
        first.saturating_sub(second)
    );
}
