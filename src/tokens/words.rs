//! Counts a text word by word from a table of words, where it falls apart into such ([`super::pairs`]).
//!
//! Most words of a text were seen before. Their counts add up to the text's. The others are counted together,
//! set one behind the other wherever two do not join (or a known one keeps them apart), and each one's tokens are told by how many bytes they stand for.
//! Each thread has a table of its own of fixed size (4 MiB) in which a word has two places and takes that of any other: no
//! choice of words makes it dearer than counting them.

use std::cell::RefCell;

use super::count::CountError;
use super::pairs::Pairs;
use super::runs::Lengths;

/// Bytes of the longest word that is kept.
const LONGEST: usize = 30;
/// Sets of two places each in the table.
const SETS: usize = 1 << 16;
/// A text of so many bytes that were mostly new words has so many further ones counted without the table: it is then no
/// text of words, and the table's work is in vain.
const TELLING: usize = 4 << 10;
const SKIPPED: u8 = 7;
/// Bytes of new words that are counted at once.
const AT_ONCE: usize = 4 << 10;
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
    /// Texts yet to be counted without it.
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

/// New words, one behind the other.
#[derive(Default)]
struct New {
    text: String,
    /// Where each ends, and what it is kept under.
    ends: Vec<(usize, Option<Place>)>,
}

/// Counts `text` with the words of this thread and `encode`; `tokenizer` tells whose words these are. `None` where the
/// tokens do not end where the words do, or words are of no use.
///
/// # Errors
/// Those of `encode`.
pub fn count(
    text: &str,
    pairs: &Pairs,
    lengths: &Lengths,
    tokenizer: u64,
    encode: impl Fn(&str) -> Result<Vec<u32>, CountError>,
) -> Result<Option<u64>, CountError> {
    TABLE.with_borrow_mut(|table| {
        table.become_of(tokenizer);
        if table.skip > 0 && text.len() >= TELLING {
            table.skip -= 1;
            return Ok(None);
        }
        let mut fresh = 0;
        let (mut tokens, mut new) = (0, New::default());
        // The word before, where it was known, and its tokens.
        let mut before: Option<(&str, u64)> = None;
        for word in pairs.words(text) {
            let key = key(word);
            if let Some(known) = key.and_then(|key| table.get(key)) {
                tokens += known;
                before = Some((word, known));
                continue;
            }
            // Where two new words join, the one before this one may keep them apart.
            if let Some((between, known)) = before.take().filter(|_| new.joins(word, pairs))
                && !new.joins(between, pairs)
            {
                new.push(between, None);
                tokens -= known;
            }
            if new.joins(word, pairs) || new.text.len() >= AT_ONCE {
                let Some(counted) = new.count(table, lengths, &encode)? else { return Ok(None) };
                tokens += counted;
            }
            fresh += word.len();
            new.push(word, key);
        }
        if text.len() >= TELLING && fresh * 4 > text.len() * 3 {
            table.skip = SKIPPED;
        }
        Ok(new.count(table, lengths, &encode)?.map(|counted| tokens + counted))
    })
}

impl New {
    fn push(&mut self, word: &str, key: Option<Place>) {
        self.text.push_str(word);
        self.ends.push((self.text.len(), key));
    }

    /// Whether a word joins the last one that is there.
    fn joins(&self, word: &str, pairs: &Pairs) -> bool {
        match (self.text.chars().next_back(), word.chars().next()) {
            (Some(last), Some(first)) => pairs.join(last, first),
            _ => false,
        }
    }

    /// Counts what is there and keeps it in the table.
    fn count(
        &mut self,
        table: &mut Table,
        lengths: &Lengths,
        encode: impl Fn(&str) -> Result<Vec<u32>, CountError>,
    ) -> Result<Option<u64>, CountError> {
        if self.text.is_empty() {
            return Ok(Some(0));
        }
        let ids = encode(&self.text)?;
        // A `▁` of the text's own is the token of a blank, which stands for less: nothing is kept of such a text.
        if ids.iter().map(|id| lengths.of(*id)).sum::<usize>() != self.text.len() {
            return Ok(None);
        }
        let (mut at, mut next) = (0, ids.iter());
        let mut kept = Vec::with_capacity(self.ends.len());
        for (end, key) in self.ends.drain(..) {
            let mut tokens = 0;
            while at < end {
                let Some(id) = next.next() else { return Ok(None) };
                at += lengths.of(*id);
                tokens += 1;
            }
            if at != end {
                return Ok(None);
            }
            kept.extend(key.map(|key| (key, tokens)));
        }
        kept.into_iter().for_each(|(key, tokens)| table.put(key, tokens));
        self.text.clear();
        Ok(next.next().is_none().then_some(ids.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pairs() -> Pairs {
        let vocab = json!({"▁ab": 0, "▁b": 1, "ccccc": 2, "a": 3, "b": 4, "c": 5, "▁": 6});
        Pairs::read(&json!({"model": {"vocab": vocab}})).unwrap()
    }

    fn lengths() -> Lengths {
        Lengths::new([("▁ab".to_owned(), 0), ("▁b".to_owned(), 1), ("c".to_owned(), 2)], false)
    }

    #[test]
    fn each_new_word_is_counted_once() {
        let calls = RefCell::new(Vec::new());
        let encode = |text: &str| {
            calls.borrow_mut().push(text.to_owned());
            let ids = text.replace(" ab", "0").replace(" b", "1").replace('c', "2");
            Ok(ids.bytes().map(|b| u32::from(b - b'0')).collect())
        };
        let text = " ab b ab abccc b";
        assert_eq!(count(text, &pairs(), &lengths(), 1, encode), Ok(Some(8)));
        assert_eq!(calls.take(), [text], "a word that came twice in it was new twice");
        assert_eq!(count(&text.repeat(3), &pairs(), &lengths(), 1, encode), Ok(Some(24)));
        assert!(calls.take().is_empty());
        let long = format!(" b{}", "c".repeat(40));
        assert_eq!(count(&long, &pairs(), &lengths(), 1, encode), Ok(Some(41)));
        assert_eq!(count(" ab", &pairs(), &lengths(), 2, encode), Ok(Some(1)));
        assert_eq!(calls.take(), [&long[2..], " ab"], "another tokenizer has other words");
    }

    #[test]
    fn a_known_word_keeps_two_new_ones_apart_that_would_join() {
        let calls = RefCell::new(0);
        let encode = |text: &str| {
            *calls.borrow_mut() += 1;
            Ok(vec![2; text.len()])
        };
        let lengths = Lengths::new([("x".to_owned(), 2)], false);
        assert_eq!(count("a", &pairs(), &lengths, 6, encode), Ok(Some(1)));
        assert_eq!(count("caccacccacccc", &pairs(), &lengths, 6, encode), Ok(Some(13)));
        assert_eq!(calls.replace(0), 2);
        assert_eq!(count("accacccccb", &pairs(), &lengths, 6, encode), Ok(Some(10)));
        assert_eq!(calls.take(), 1);
    }

    #[test]
    fn tokens_that_end_elsewhere_are_noticed() {
        assert_eq!(count(" ab b", &pairs(), &lengths(), 3, |_| Ok(vec![0])), Ok(None));
        assert_eq!(count(" ab b", &pairs(), &lengths(), 3, |_| Ok(vec![2, 2, 2, 2, 1])), Ok(None));
        assert_eq!(count(" ab b", &pairs(), &lengths(), 4, |_| Ok(vec![0, 1, 1])), Ok(None));
        assert_eq!(count("", &pairs(), &lengths(), 5, |_| Ok(vec![])), Ok(Some(0)));
    }

    #[test]
    fn a_text_of_new_words_only_has_the_next_ones_counted_without_the_table() {
        let calls = RefCell::new(0);
        let run = |text: &str| {
            let encode = |text: &str| {
                *calls.borrow_mut() += 1;
                Ok(vec![0; text.len()])
            };
            let lengths = Lengths::new([("a".to_owned(), 0)], false);
            (count(text, &pairs(), &lengths, 7, encode).unwrap().is_some(), calls.replace(0) > 0)
        };
        let long = "c".repeat(5000);
        assert_eq!(run(&long), (true, true));
        (0..SKIPPED).for_each(|_| assert_eq!(run(&long), (false, false)));
        assert_eq!(run(&"a".repeat(5000)), (true, true), "tried again");
        (0..SKIPPED).for_each(|_| assert_eq!(run("a"), (true, false), "short ones are not skipped"));
        (0..SKIPPED).for_each(|_| assert_eq!(run(&long), (false, false)));
        assert_eq!(run(&"a".repeat(5000)), (true, false), "known words");
        assert_eq!(run(&"a".repeat(5000)), (true, false));
    }

    #[test]
    fn of_a_text_whose_tokens_stand_for_less_nothing_is_kept() {
        // `▁` has three bytes here and its token stands for one; the bytes of what follows seem to fill it up.
        let lengths = Lengths::new([("▁".to_owned(), 1), ("c".to_owned(), 2)], false);
        let encode = |text: &str| Ok(text.chars().map(|c| if c == '▁' { 1 } else { 2 }).collect());
        let pairs = Pairs::read(&json!({"model": {"vocab": {"▁": 1, "c": 2}}})).unwrap();
        assert_eq!(count("▁cc", &pairs, &lengths, 8, encode), Ok(None));
        let again = RefCell::new(false);
        let seen = |text: &str| {
            *again.borrow_mut() = true;
            encode(text)
        };
        assert_eq!(count("▁", &pairs, &lengths, 8, seen), Ok(None));
        assert!(again.take(), "counted anew");
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
