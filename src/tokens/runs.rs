//! Counts a long run without a boundary in pieces that overlap: on one huge pre-token every library takes
//! more time per byte, and memory, the longer it is.
//!
//! Byte-pair encoding merges, among all neighbours that may merge, the pair of the lowest rank, the leftmost
//! where ranks are equal (`tokenizers` 0.23 `models/bpe/word.rs`). From that follows: a row of tokens is the
//! encoding of its text exactly where each two neighbours are the encoding of theirs. For let the first
//! merge that crosses a border of such a row cross the one between t and u. Up to then what was merged
//! within t and u was merged in the order in which it is when t and u stand alone, as the lowest and leftmost of
//! all is that of its surroundings too; so the crossing one would be made there as well: but t u is an encoding.
//!
//! So let A be the encoding of a run's beginning, and B that of its rest from the border p of A on. Where A and B
//! have a token in common, with the same start and the same end, then A up to that token and B
//! after it are the encoding of the whole: each two neighbours are neighbours in A or in B. Where they have none
//! within the overlap, the run is counted at once.
//!
//! That holds within one pre-token. A run is taken only of such characters as the known patterns ([`super::cuts`])
//! keep in one: letters (of one case where the pattern tells them apart), ideographs and kana, blanks, ASCII punctuation
//! and pictures, or one and the same character that is no number. And only where it begins its piece, which begins
//! a pre-token: whatever alternative takes the run there takes, from p on, what is left of it, up to the same end, since it
//! begins with a character of the same kind. (Behind other characters it may be the tail of another alternative, as
//! line ends and slashes are behind punctuation, and end elsewhere.) Blanks with line ends among them are one
//! pre-token up to the last line end (`\s*[\r\n]+`), so there p lies before the last of the chunk. Where texts
//! are composed only such characters are taken as are never reordered or composed with each other. That a
//! vocabulary's entry stands for its text unmerged (`ignore_merges`) concerns no pre-token that is longer than any entry.
//! Without a pre-tokenizer all of a part is one, and a run is of any characters. By GPT-2's pattern a letter and a
//! mark behind it are in two, once the text is composed, so a run of marks may begin there.

use super::count::CountError;

/// Bytes counted at once; runs of less than twice as many are no long ones.
pub const CHUNK: usize = 16 << 10;
/// Bytes of a chunk that the next one counts again.
const OVERLAP: usize = 1 << 10;

/// What the pattern keeps in one pre-token, beyond what all do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds {
    /// Small letters and capitals are told apart.
    pub cases: bool,
    /// The zero-width joiner is a symbol like those that it joins.
    pub joiners: bool,
    /// Texts are composed before they are split (NFC, NFKC).
    pub composed: bool,
    /// GPT-2's own pattern: numbers of any length are kept together, and marks apart from letters.
    pub gpt2: bool,
    /// There is no pre-tokenizer: a run may begin anywhere and hold anything.
    pub anywhere: bool,
}

/// How many bytes of text each token stands for.
#[derive(Debug, Clone)]
pub struct Lengths(Vec<u16>);

impl Lengths {
    /// From the entries of a vocabulary, as byte-level BPE writes them (a character for each byte), or with `▁` for
    /// a blank and `<0xNN>` for a byte.
    pub fn new(entries: impl IntoIterator<Item = (String, u32)>, byte_level: bool) -> Self {
        let mut lengths = Vec::new();
        for (entry, id) in entries {
            let bytes = if byte_level {
                entry.chars().count()
            } else if entry.len() == 6 && entry.starts_with("<0x") {
                1
            } else {
                entry.chars().map(|c| if c == '▁' { 1 } else { c.len_utf8() }).sum()
            };
            let id = id as usize;
            // Ids are dense; one that is not is no token of a run.
            if id < 1 << 22 {
                if lengths.len() <= id {
                    lengths.resize(id + 1, 0);
                }
                lengths[id] = u16::try_from(bytes).unwrap_or(0);
            }
        }
        Self(lengths)
    }

    /// Bytes of one; 0 for none that is known.
    pub fn of(&self, id: u32) -> usize {
        self.0.get(id as usize).copied().unwrap_or(0).into()
    }
}

/// The ends of tokens within a text, and which they are.
type Ends = Vec<(usize, u32)>;

/// Counts `text` with `encode`, its long runs in chunks; `None` where it has none, or where that does not work out.
///
/// # Errors
/// Those of `encode`.
pub fn count(
    text: &str,
    lengths: &Lengths,
    kinds: Kinds,
    encode: impl Fn(&str) -> Result<Vec<u32>, CountError>,
) -> Result<Option<u64>, CountError> {
    let (mut at, mut tokens) = (0, 0);
    // Tokens of the chunk before that reach into the next one.
    let mut before: Ends = Vec::new();
    while let Some(start) = long_run(text, at, kinds) {
        // Within a run the next chunk begins with it, however the first did.
        if start > at && !begins_there(text, start, kinds) {
            break;
        }
        let end = text.floor_char_boundary(start + CHUNK);
        let ids = encode(&text[at..end])?;
        let Some(ends) = ends(&ids, lengths, at, end) else { return Ok(None) };
        let Some((old, new)) = common(&before, &ends, at) else { return Ok(None) };
        // The last border well before the end of the chunk, and among blanks before its last line end.
        let line_end = text.as_bytes()[start..end].iter().rposition(|b| matches!(b, b'\r' | b'\n'));
        let most = line_end.map_or(end, |last| start + last).min(end.saturating_sub(OVERLAP));
        let mut border = ends.partition_point(|(to, _)| *to <= most);
        // Tokens of bytes may end within a character.
        while border > new + 1 && !text.is_char_boundary(ends[border - 1].0) {
            border -= 1;
        }
        if border <= new || ends[border - 1].0 <= start {
            return Ok(None);
        }
        tokens += (old + border - new) as u64;
        at = ends[border - 1].0;
        if !text.is_char_boundary(at) {
            return Ok(None);
        }
        // Behind the last line end the chunk was split as the whole is not.
        let trusted = line_end.map_or(end, |last| start + last + 1);
        before = ends[border..].iter().copied().take_while(|(to, _)| *to <= trusted).collect();
        if before.is_empty() {
            return Ok(None);
        }
    }
    if before.is_empty() {
        return Ok(None);
    }
    let ids = encode(&text[at..])?;
    let Some(ends) = ends(&ids, lengths, at, text.len()) else { return Ok(None) };
    let Some((old, new)) = common(&before, &ends, at) else { return Ok(None) };
    Ok(Some(tokens + (old + ends.len() - new) as u64))
}

/// Whether a run in the middle of a text begins a pre-token there.
fn begins_there(text: &str, start: usize, kinds: Kinds) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || matches!(c, 'À'..='Ö' | 'Ø'..='ö' | 'ø'..='ƺ');
    kinds.gpt2
        && !kinds.composed
        && text[start..].starts_with(|c| ('\u{300}'..='\u{36f}').contains(&c))
        && text[..start].ends_with(letter)
}

/// The ends of tokens; `None` where their lengths do not add up to the text.
fn ends(ids: &[u32], lengths: &Lengths, from: usize, to: usize) -> Option<Ends> {
    let mut at = from;
    let ends: Ends = ids
        .iter()
        .map(|id| {
            at += lengths.of(*id);
            (at, *id)
        })
        .collect();
    (at == to).then_some(ends)
}

/// How many tokens lie before the first that both encodings have, in each: of `before`, which goes on behind the
/// border `from`, and of `after`, which was begun there.
fn common(before: &Ends, after: &Ends, from: usize) -> Option<(usize, usize)> {
    if before.is_empty() {
        return Some((0, 0));
    }
    let start = |ends: &Ends, at: usize| if at == 0 { from } else { ends[at - 1].0 };
    let (mut i, mut j) = (0, 0);
    while i < before.len() && j < after.len() {
        if before[i] == after[j] && start(before, i) == start(after, j) {
            return Some((i, j));
        }
        if before[i].0 <= after[j].0 {
            i += 1;
        } else {
            j += 1;
        }
    }
    None
}

/// Where the next long run begins, at or after `from`.
pub fn long_run(text: &str, from: usize, kinds: Kinds) -> Option<usize> {
    let (mut start, mut kind) = (from, None);
    for (at, c) in text[from..].char_indices().map(|(at, c)| (from + at, c)) {
        let now = class(c, kinds);
        if now.is_none() || now != kind {
            (start, kind) = (at, now);
        } else if at - start >= 2 * CHUNK {
            return Some(start);
        }
    }
    None
}

/// What a character can form a run with.
fn class(c: char, kinds: Kinds) -> Option<u32> {
    let Kinds { cases, joiners, composed, gpt2, anywhere } = kinds;
    match c {
        _ if anywhere => Some(0),
        '0'..='9' if gpt2 => Some(6),
        'a'..='z' if cases => Some(1),
        'A'..='Z' if cases => Some(2),
        'a'..='z' | 'A'..='Z' => Some(1),
        // Latin, Greek and Cyrillic letters; where cases are told apart, each stands alone below.
        'À'..='Ö' | 'Ø'..='ö' | 'ø'..='ƺ' | 'Α'..='Ρ' | 'Σ'..='Ω' | 'α'..='ω' | 'А'..='я' if !cases => {
            Some(1)
        }
        '一'..='龥' | 'ぁ'..='ゖ' | 'ァ'..='ヺ' => Some(3),
        ' ' | '\t' | '\r' | '\n' | '\u{b}' | '\u{c}' | '\u{a0}' | '\u{3000}' | '\u{2002}'..='\u{200a}' => {
            Some(4)
        }
        _ if c.is_numeric() => None,
        // Symbols and punctuation; of the pictures only those that were symbols in every Unicode since 8.
        _ if c.is_ascii_punctuation() => Some(5),
        '\u{1F300}'..='\u{1F3FA}' | '\u{1F400}'..='\u{1F64F}' | '\u{1F680}'..='\u{1F6D0}' => Some(5),
        '\u{200D}' if joiners => Some(5),
        // The zero-width space is no mark and composes with nothing.
        _ if composed && !c.is_ascii() && c != '\u{200B}' => None,
        _ => Some(16 + u32::from(c)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOGETHER: Kinds =
        Kinds { cases: false, joiners: true, composed: false, gpt2: false, anywhere: false };
    const APART: Kinds = Kinds { cases: true, joiners: false, composed: true, gpt2: false, anywhere: false };

    /// Merges by rank, leftmost first, with a plain loop: tokens are letters, or two tokens that merge.
    #[derive(Debug, Clone)]
    struct Toy {
        /// Rank of (left, right) is the index; the merged token's id is 26 + index.
        merges: Vec<(u32, u32)>,
    }

    impl Toy {
        fn lengths(&self) -> Lengths {
            let mut lengths = vec![1; 26];
            for (left, right) in &self.merges {
                lengths.push(lengths[*left as usize] + lengths[*right as usize]);
            }
            Lengths(lengths)
        }

        fn encode(&self, text: &str) -> Vec<u32> {
            let mut ids: Vec<u32> = text.bytes().map(|b| u32::from(b - b'a')).collect();
            loop {
                let rank = |at: usize| self.merges.iter().position(|m| *m == (ids[at], ids[at + 1]));
                let Some((rank, at)) =
                    (0..ids.len().saturating_sub(1)).filter_map(|at| Some((rank(at)?, at))).min()
                else {
                    return ids;
                };
                ids.splice(at..at + 2, [26 + rank as u32]);
            }
        }
    }

    fn toys() -> impl Strategy<Value = Toy> {
        proptest::collection::vec((any::<u32>(), any::<u32>()), 1..12).prop_map(|pairs| {
            let mut merges: Vec<(u32, u32)> = Vec::new();
            for (left, right) in pairs {
                let known = 3 + merges.len() as u32;
                let id = |n: u32| if n % known < 3 { n % known } else { 23 + n % known };
                let pair = (id(left), id(right));
                if !merges.contains(&pair) {
                    merges.push(pair);
                }
            }
            Toy { merges }
        })
    }

    proptest! {
        #[test]
        fn two_encodings_with_a_token_in_common_join_to_that_of_the_whole(
            toy in toys(), text in "[abc]{2,60}", cut in any::<prop::sample::Index>(), end in any::<prop::sample::Index>(),
        ) {
            let lengths = toy.lengths();
            let whole = toy.encode(&text);
            let first = &text[..1 + end.index(text.len())];
            let a = ends(&toy.encode(first), &lengths, 0, first.len()).unwrap();
            let border = cut.index(a.len() + 1);
            let at = if border == 0 { 0 } else { a[border - 1].0 };
            let b = ends(&toy.encode(&text[at..]), &lengths, at, text.len()).unwrap();
            let before = a[border..].to_vec();
            if let Some((old, new)) = common(&before, &b, at).filter(|_| !before.is_empty()) {
                let joined: Vec<u32> = a[..border + old].iter().chain(&b[new..]).map(|(_, id)| *id).collect();
                prop_assert_eq!(joined, whole);
            }
        }
    }

    #[test]
    fn long_runs_are_counted_in_chunks_and_others_are_left_alone() {
        let toy = Toy { merges: vec![(0, 0), (26, 26), (0, 1)] };
        let calls = std::cell::Cell::new(0);
        let encode = |text: &str| {
            calls.set(calls.get() + 1);
            assert!(text.len() <= 3 * CHUNK);
            // "aaaa", then "aa", then "a": what the merges come to on a run.
            let (fours, rest) = (text.len() / 4, text.len() % 4);
            Ok([vec![27; fours], vec![26; rest / 2], vec![0; rest % 2]].concat())
        };
        let text = "a".repeat(10 * CHUNK + 3);
        assert_eq!(count(&text, &toy.lengths(), TOGETHER, encode), Ok(Some((10 * CHUNK / 4 + 2) as u64)));
        assert!(calls.get() > 8);
        assert_eq!(count(&text[..CHUNK], &toy.lengths(), TOGETHER, encode), Ok(None));
        let wrong = Lengths(vec![1; 30]);
        assert_eq!(count(&text, &wrong, TOGETHER, encode), Ok(None), "lengths that do not add up");
    }

    #[test]
    fn by_gpt2s_pattern_numbers_are_runs_and_marks_begin_one_behind_a_letter() {
        let gpt2 = Kinds { gpt2: true, composed: false, ..APART };
        let digits = "17".repeat(2 * CHUNK);
        assert_eq!((long_run(&digits, 0, gpt2), long_run(&digits, 0, APART)), (Some(0), None));
        assert_eq!(long_run(&digits, 0, Kinds { anywhere: true, ..APART }), Some(0));
        let encode = |text: &str| {
            assert!(text.len() <= 3 * CHUNK);
            Ok(vec![0; text.len() / 2])
        };
        let lengths = Lengths(vec![2]);
        let marks = |before: &str| format!("{before}{}", "\u{301}".repeat(2 * CHUNK));
        let counted = |before, kinds| count(&marks(before), &lengths, kinds, encode);
        assert_eq!(counted("é", gpt2), Ok(Some(2 * CHUNK as u64 + 1)));
        assert_eq!(counted("é", Kinds { composed: true, ..gpt2 }), Ok(None));
        assert_eq!((counted("é", TOGETHER), counted("! ", gpt2)), (Ok(None), Ok(None)));
    }

    #[test]
    fn letters_of_two_cases_are_two_runs_where_the_pattern_says_so() {
        let text = "aB".repeat(2 * CHUNK);
        assert_eq!((long_run(&text, 0, APART), long_run(&text, 0, TOGETHER)), (None, Some(0)));
        assert_eq!(long_run(&format!("1 {}", "!'?".repeat(CHUNK)), 0, APART), Some(2));
        assert_eq!(long_run(&"7".repeat(4 * CHUNK), 0, APART), None);
        let family = "\u{1F469}\u{200D}\u{1F467}!".repeat(CHUNK / 2);
        assert_eq!((long_run(&family, 0, APART), long_run(&family, 0, TOGETHER)), (None, Some(0)));
    }
}
