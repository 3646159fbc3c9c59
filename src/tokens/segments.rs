//! Counts of texts seen before, by keyed hashes: the next turn of a conversation costs what is new in it.
//!
//! Two kinds of entry, each a 128-bit HighwayHash under a key of this process's own against a number, so that nobody
//! who writes prompts can choose entries that collide: the whole text from its beginning up to the
//! end of an added token (a known beginning costs one look-up), and a single part between two added
//! tokens (a part that moved, as when a template drops what a model thought). No text is kept.
//!
//! Exact because the counts of such parts add up: see [`super::cuts`].

use highway::{HighwayHash as _, HighwayHasher, Key};
use quick_cache::sync::Cache;

/// Of a part.
const PART: u64 = 1;
/// Of a beginning.
const BEGINNING: u64 = 2;

/// The counts.
#[derive(Debug)]
pub struct Segments {
    secret: (u64, u64, u64),
    counts: Cache<u128, u64>,
}

/// A hash that grows with its text.
pub struct Growing(HighwayHasher);

impl Segments {
    /// For so many entries at most.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        let mut random = fastrand::Rng::new();
        let mut seed =
            || random.u64(..) ^ std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        Self { secret: (seed(), seed(), seed()), counts: Cache::new(entries.max(16)) }
    }

    /// Entries held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    fn hasher(&self, kind: u64) -> HighwayHasher {
        let (a, b, c) = self.secret;
        HighwayHasher::new(Key([a, b, c, kind]))
    }

    /// The hash of a part.
    #[must_use]
    pub fn part(&self, text: &str) -> u128 {
        joined(self.hasher(PART).hash128(text.as_bytes()))
    }

    /// The hash of a text that will be made longer.
    #[must_use]
    pub fn beginning(&self) -> Growing {
        Growing(self.hasher(BEGINNING))
    }

    /// The count under a hash.
    #[must_use]
    pub fn get(&self, hash: u128) -> Option<u64> {
        self.counts.get(&hash)
    }

    /// Keeps a count; the least used one goes where there is no room.
    pub fn put(&self, hash: u128, count: u64) {
        self.counts.insert(hash, count);
    }
}

impl Growing {
    /// Takes more of the text.
    pub fn add(&mut self, text: &str) {
        self.0.append(text.as_bytes());
    }

    /// The hash of all that was added.
    #[must_use]
    pub fn hash(&self) -> u128 {
        joined(self.0.clone().finalize128())
    }
}

const fn joined([low, high]: [u64; 2]) -> u128 {
    (high as u128) << 64 | low as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_the_same_however_it_was_added_and_is_no_part() {
        let segments = Segments::new(100);
        let (mut one, mut two) = (segments.beginning(), segments.beginning());
        one.add("a conversation, ");
        one.add("and more of it than fits one block of the hash");
        two.add("a conversation, and more of it than fits one block of the hash");
        assert_eq!(one.hash(), two.hash());
        assert_ne!(
            one.hash(),
            segments.part("a conversation, and more of it than fits one block of the hash")
        );
        assert_ne!(segments.part("a"), Segments::new(100).part("a"), "the key is of this process");
    }

    #[test]
    fn its_size_is_bounded() {
        let segments = Segments::new(500);
        (0..10_000u64).for_each(|n| segments.put(u128::from(n), n));
        assert!((100..=600).contains(&segments.len()), "{}", segments.len());
    }
}
