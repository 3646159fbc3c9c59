//! Counts a text word by word from a table of words, where it falls apart into such ([`super::pairs`]).
//!
//! Most words of a text were seen before. Their counts add up to the text's. The others are merged.
//! Each thread has a table of its own of fixed size (4 MiB) in which a word has two places and takes that of any other: no
//! choice of words makes it dearer than merging them.

use std::cell::RefCell;

use super::pairs::Pairs;

/// Bytes of the longest word that is kept.
const LONGEST: usize = 30;
/// Sets of two places each in the table.
const SETS: usize = 1 << 16;
/// A text of so many bytes that were mostly new words has so many further ones merged without the table: it is then no
/// text of words, and the table's work is in vain.
const TELLING: usize = 4 << 10;
const SKIPPED: u8 = 7;
/// The byte with a word's tokens, in the last number of its place; the byte above has its length.
const TOKENS: u32 = 48;

/// A word, its tokens and its length; all zero for none.
type Place = [u64; 4];

/// Two places in one line of the processor's cache, the word used later first.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Set([Place; 2]);

thread_local! {
    static TABLE: RefCell<Table> = const { RefCell::new(Table { of: 0, sets: Vec::new(), skip: 0 }) };
}

struct Table {
    /// The tokenizer whose words these are.
    of: u64,
    sets: Vec<Set>,
    /// Texts yet to be merged without it.
    skip: u8,
}

impl Table {
    fn become_of(&mut self, tokenizer: u64) {
        if self.of != tokenizer {
            self.sets.clear();
            self.sets.resize(SETS, Set([[0; 4]; 2]));
            (self.of, self.skip) = (tokenizer, 0);
        }
    }

    /// The tokens of a word, where it is there.
    #[inline]
    fn get(&mut self, key: Place) -> Option<u64> {
        let Set(set) = self.sets.get_mut(at(key))?;
        let is = |there: &Place| there[..3] == key[..3] && there[3] & !(0xff << TOKENS) == key[3];
        if !is(&set[0]) {
            if !is(&set[1]) {
                return None;
            }
            set.swap(0, 1);
        }
        Some(set[0][3] >> TOKENS & 0xff)
    }

    fn put(&mut self, key: Place, tokens: u64) {
        if let (Some(Set(set)), 1..=255) = (self.sets.get_mut(at(key)), tokens) {
            *set = [[key[0], key[1], key[2], key[3] | tokens << TOKENS], set[0]];
        }
    }
}

/// A word as it is kept, without its tokens; `None` for a long one.
#[inline]
fn key(word: &str) -> Option<Place> {
    let mut bytes = [0; 32];
    bytes.get_mut(..word.len()).filter(|room| room.len() <= LONGEST)?.copy_from_slice(word.as_bytes());
    bytes[31] = word.len() as u8;
    let number = |n: usize| bytes[n * 8..].first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
    Some([number(0), number(1), number(2), number(3)])
}

const fn at(key: Place) -> usize {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    let one = (key[0] ^ key[1].rotate_left(23)).wrapping_mul(MIX);
    let two = (key[2] ^ key[3].rotate_left(41)).wrapping_mul(MIX.rotate_left(17));
    ((one ^ two.rotate_left(29)).wrapping_mul(MIX) >> 48) as usize % SETS
}

/// Counts `text` word by word with the words of this thread, new ones by `merged`; `tokenizer` tells whose words these are.
pub fn count(text: &str, pairs: &Pairs, tokenizer: u64, mut merged: impl FnMut(&str) -> u64) -> u64 {
    TABLE.with_borrow_mut(|table| {
        table.become_of(tokenizer);
        if table.skip > 0 && text.len() >= TELLING {
            table.skip -= 1;
            return pairs.words(text).map(merged).sum();
        }
        let (mut tokens, mut fresh) = (0, 0);
        for word in pairs.words(text) {
            let key = key(word);
            if let Some(known) = key.and_then(|key| table.get(key)) {
                tokens += known;
                continue;
            }
            let counted = merged(word);
            if let Some(key) = key {
                table.put(key, counted);
            }
            tokens += counted;
            fresh += word.len();
        }
        if text.len() >= TELLING && fresh * 4 > text.len() * 3 {
            table.skip = SKIPPED;
        }
        tokens
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pairs() -> Pairs {
        let vocab = json!({"▁ab": 0, "▁b": 1, "ccccc": 2, "a": 3, "b": 4, "c": 5, "▁": 6});
        Pairs::read(&json!({"model": {"vocab": vocab}})).unwrap()
    }

    /// A count with a token for each byte, and the words that were merged.
    fn run(text: &str, tokenizer: u64) -> (u64, Vec<String>) {
        let mut merged = Vec::new();
        let tokens = count(text, &pairs(), tokenizer, |word| {
            merged.push(word.to_owned());
            word.len() as u64
        });
        (tokens, merged)
    }

    #[test]
    fn each_new_word_is_merged_once() {
        let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(run(" ab b ab abccc b", 1), (16, all(&[" ab", " b", "ccc"])));
        assert_eq!(run(&" ab b ab abccc b".repeat(3), 1), (48, Vec::new()));
        let long = "c".repeat(40);
        assert_eq!(run(&long, 1), (40, all(&[&long])));
        assert_eq!(run(&long, 1), (40, all(&[&long])), "too long to be kept");
        assert_eq!(run(" ab", 2), (3, all(&[" ab"])), "another tokenizer has other words");
        assert_eq!(run("", 2), (0, Vec::new()));
    }

    #[test]
    fn a_text_of_new_words_only_has_the_next_ones_merged_without_the_table() {
        let merged = |text: &str| {
            let (tokens, words) = run(text, 7);
            assert_eq!(tokens, text.len() as u64);
            words.len()
        };
        let long = "c".repeat(5000);
        assert_eq!(merged(&long), 1);
        (0..SKIPPED).for_each(|_| assert_eq!(merged(&"a".repeat(5000)), 5000));
        assert_eq!(merged(&"a".repeat(5000)), 1, "tried again");
        assert_eq!(merged(&long), 1);
        (0..SKIPPED).for_each(|_| assert_eq!(merged("a"), 0, "short ones are not skipped"));
        (0..SKIPPED).for_each(|_| assert_eq!(merged(&"a".repeat(5000)), 5000));
        (0..2).for_each(|_| assert_eq!(merged(&"a".repeat(5000)), 0, "known words"));
    }

    #[test]
    fn words_are_told_apart_by_all_their_bytes_and_their_length() {
        let mut table = Table { of: 0, sets: Vec::new(), skip: 0 };
        table.become_of(1);
        let all =
            ["a", "a\0", "ab", "ba", "123456789012345678901234567890", "123456789012345678901234567891"];
        for (tokens, word) in all.iter().enumerate() {
            assert_eq!(table.get(key(word).unwrap()), None, "{word:?}");
            table.put(key(word).unwrap(), tokens as u64 + 1);
        }
        for (tokens, word) in all.iter().enumerate() {
            assert_eq!(table.get(key(word).unwrap()), Some(tokens as u64 + 1), "{word:?}");
        }
        assert_eq!(key(&"x".repeat(LONGEST + 1)), None);
        table.put(key("many").unwrap(), 256);
        assert_eq!(table.get(key("many").unwrap()), None, "more tokens than there is room for");
    }
}
