//! What the engine "generates": how long, and which words.

use std::sync::LazyLock;

/// Words of which each is one token of the embedded tokenizer when a space stands before it.
static WORDS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| include_str!("tokenizer/words.txt").split_whitespace().collect());

/// A length drawn from the log-normal distribution about `median`, at least 1.
pub(super) fn length(rng: &mut fastrand::Rng, median: u64, sigma: f64) -> u32 {
    // Box-Muller: two uniform numbers make a normal one.
    let (u, v) = (1.0 - rng.f64(), rng.f64());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    let length = (median as f64 * (sigma * normal).exp()).round();
    length.clamp(1.0, f64::from(u32::MAX)) as u32
}

/// The text of tokens `from .. from + tokens` of the sequence with this seed: always the same.
pub(super) fn text(seed: u64, from: u32, tokens: u32) -> String {
    let mut out = String::new();
    for position in from..from.saturating_add(tokens) {
        // SplitMix64's finaliser: neighbouring positions give unrelated words.
        let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(u64::from(position) + 1);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        out.push(' ');
        out.push_str(WORDS[(x ^ (x >> 31)) as usize % WORDS.len()]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_does_not_depend_on_how_it_is_cut() {
        assert_eq!(text(7, 0, 9), text(7, 0, 4) + &text(7, 4, 5));
        assert_ne!(text(7, 0, 9), text(8, 0, 9));
    }

    #[test]
    fn lengths_repeat_with_the_seed_and_lie_about_the_median() {
        let draw = |seed| {
            let mut rng = fastrand::Rng::with_seed(seed);
            (0..1001).map(|_| length(&mut rng, 120, 0.6)).collect::<Vec<_>>()
        };
        let mut lengths = draw(1);
        assert_eq!(lengths, draw(1));
        lengths.sort_unstable();
        assert!((100..140).contains(&lengths[500]), "{}", lengths[500]);
        assert!(lengths[1000] > 300, "the tail is long");
    }
}
