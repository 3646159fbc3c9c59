//! Finds added tokens in a text: leftmost and longest, as `tokenizers` 0.23 does (`added_vocabulary.rs`).
//!
//! Places where a token may begin are told by the bytes that tokens begin with, many places at once; only there is it
//! looked closer.

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, Span, StartKind, packed};

/// The longest token for which each place is looked at by itself: that bounds what a place costs.
const LONGEST: usize = 256;
/// Bytes of a beginning at most, and how many beginnings there may be (more are not told apart fast).
const BEGINNING: usize = 3;
const BEGINNINGS: usize = 48;

/// The added tokens of one kind.
#[derive(Debug)]
pub struct AddedTokens {
    automaton: AhoCorasick,
    /// `None` where they are too many, a token is too long for it, or the processor cannot.
    beginnings: Option<packed::Searcher>,
    /// A bit for each two bytes, the first one high, that stand side by side in a token.
    inner: Box<[u64; 1024]>,
    /// Bytes of the longest.
    longest: usize,
}

impl AddedTokens {
    /// For these tokens; `None` where there is none, or one is empty.
    #[must_use]
    pub fn new(tokens: &[&str]) -> Option<Self> {
        if tokens.is_empty() || tokens.iter().any(|token| token.is_empty()) {
            return None;
        }
        let mut builder = AhoCorasick::builder();
        builder.match_kind(MatchKind::LeftmostLongest).start_kind(StartKind::Both);
        let automaton = builder.build(tokens).ok()?;
        let mut inner = Box::new([0; 1024]);
        for pair in tokens.iter().flat_map(|token| token.as_bytes().windows(2)) {
            let (word, bit) = place(pair[0], pair[1]);
            inner[word] |= 1 << bit;
        }
        let longest = tokens.iter().map(|token| token.len()).max()?;
        let short = longest <= LONGEST;
        Some(Self { automaton, beginnings: short.then(|| beginnings(tokens)).flatten(), inner, longest })
    }

    /// The first token in a range of `text`.
    #[must_use]
    pub fn next(&self, text: &str, range: Range<usize>) -> Option<Range<usize>> {
        let find = |range, anchored| {
            let input = Input::new(text).range(range).anchored(anchored);
            self.automaton.find(input).map(|found| found.range())
        };
        let Some(beginnings) = &self.beginnings else { return find(range, Anchored::No) };
        let mut span = Span::from(range);
        while let Some(place) = beginnings.find_in(text, span) {
            if let Some(found) = find(place.start()..span.end, Anchored::Yes) {
                return Some(found);
            }
            span.start = place.start() + 1;
        }
        None
    }
}

impl AddedTokens {
    /// A token in a range of `text`, of those that are found wherever a search begins before them: no token holds the
    /// byte before such a one and its first byte side by side, and so none reaches over its beginning. What is before
    /// the range is not looked at. It is the first but where such stand within others.
    #[must_use]
    pub fn next_alone(&self, text: &str, range: Range<usize>) -> Option<Range<usize>> {
        let mut from = range.start.min(range.end);
        loop {
            let found = self.next(text, from..range.end)?;
            if !self.may_reach_over(text.as_bytes(), found.start) {
                return Some(found);
            }
            from = found.end;
        }
    }

    /// Whether one of these tokens that begins before `start` may go on there.
    #[must_use]
    pub fn may_reach_over(&self, bytes: &[u8], start: usize) -> bool {
        start.checked_sub(1).is_some_and(|before| {
            let (word, bit) = place(bytes[before], bytes[start]);
            self.inner[word] >> bit & 1 == 1
        })
    }

    /// Whether one of these tokens begins in a range.
    #[must_use]
    pub fn begins_in(&self, text: &str, range: Range<usize>) -> bool {
        let end = text.len().min(range.end + self.longest);
        self.next(text, range.start..end).is_some_and(|found| found.start < range.end)
    }
}

const fn place(first: u8, second: u8) -> (usize, u32) {
    let pair = (first as usize) << 8 | second as usize;
    (pair >> 6, (pair & 63) as u32)
}

/// What finds the beginnings of tokens: as long ones as there are few of.
fn beginnings(tokens: &[&str]) -> Option<packed::Searcher> {
    let of = |length: usize| -> BTreeSet<&[u8]> {
        tokens.iter().map(|token| &token.as_bytes()[..token.len().min(length)]).collect()
    };
    let few = (1..=BEGINNING).rev().map(of).find(|beginnings| beginnings.len() <= BEGINNINGS)?;
    packed::Config::new().heuristic_pattern_limits(false).builder().extend(few).build()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_token_or_an_empty_one_is_none() {
        assert!(AddedTokens::new(&[]).is_none() && AddedTokens::new(&["a", ""]).is_none());
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_the_automaton_finds(
            tokens in prop::collection::vec("[ab<▁\\n]{1,4}|é|<[a-z]{1,3}>", 1..80),
            long in prop::option::of("(ab){130}"),
            text in "[ab<>▁é\\n]{0,60}|(ab){0,200}",
            from in 0usize..60, until in 0usize..260,
        ) {
            let mut tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            tokens.extend(long.as_deref());
            let until = text.floor_char_boundary(until.min(text.len()));
            let from = text.floor_char_boundary(from.min(until));
            let found = AddedTokens::new(&tokens).unwrap().next(&text, from..until);
            let plain = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&tokens).unwrap();
            let input = Input::new(&text).range(from..until);
            prop_assert_eq!(found, plain.find(input).map(|found| found.range()));
            // One that stands alone is among those that are found one after another from the beginning.
            let added = AddedTokens::new(&tokens).unwrap();
            if let Some(alone) = added.next_alone(&text, from..text.len()) {
                prop_assert!(alone.start >= from);
                let all = plain.find_iter(&text).map(|found| found.range());
                prop_assert!(all.into_iter().any(|found| found == alone), "{:?} in {:?}", alone, text);
            }
        }
    }
}
