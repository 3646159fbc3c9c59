//! How many tokens the bytes of a prompt usually come to, learned from the counts.
//!
//! The ratio of all tokens to all bytes counted, in which each count fades as further ones come: after a hundred of its
//! size to a third. So long prompts, which fill a pool, weigh more than short ones. Before the first count it is four
//! bytes a token, as in English text.

use crate::request::Tokens;

/// What is left of the sums at each count.
const KEPT: f64 = 0.99;
/// What is known before the first count: so many bytes, and tokens for four of them each.
const FIRST: Density = Density { bytes: 4096.0, tokens: 1024.0 };

/// Tokens and bytes of the prompts counted lately.
#[derive(Debug, Clone, Copy)]
pub struct Density {
    bytes: f64,
    tokens: f64,
}

impl Default for Density {
    fn default() -> Self {
        FIRST
    }
}

impl Density {
    /// So many bytes had so many tokens.
    pub fn learn(&mut self, bytes: usize, tokens: Tokens) {
        if bytes > 0 {
            self.bytes = self.bytes.mul_add(KEPT, bytes as f64);
            self.tokens = self.tokens.mul_add(KEPT, tokens.get() as f64);
        }
    }

    /// The usual number of tokens of so many bytes; at least one for any.
    #[must_use]
    pub fn tokens(self, bytes: usize) -> Tokens {
        Tokens((bytes as f64 * self.tokens / self.bytes).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_four_bytes_a_token_and_follows_the_counts() {
        let mut density = Density::default();
        assert_eq!(
            (density.tokens(0), density.tokens(1), density.tokens(4000)),
            (Tokens(0), Tokens(1), Tokens(1000))
        );
        (0..1000).for_each(|_| density.learn(3000, Tokens(1000)));
        assert_eq!(density.tokens(30_000), Tokens(10_000));
        (0..300).for_each(|_| density.learn(2000, Tokens(1000)));
        let later = density.tokens(20_000).get();
        assert!((9_000..=10_000).contains(&later), "{later}");
        density.learn(0, Tokens(1_000_000));
        assert_eq!(density.tokens(20_000).get(), later, "a prompt without text teaches nothing");
    }
}
