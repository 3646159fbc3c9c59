//! Whether a faster tokenizer gives the reference's ids: some thousand strings, tried when a model is loaded.

use tokenizers::Tokenizer;

use super::count::CountError;

/// Strings tried beside the pieces themselves.
const STRINGS: usize = 3000;
/// Strings that hold a [`CORNERS`] character.
const CORNER_STRINGS: usize = 400;

/// Characters that case folding makes into ASCII letters: libraries differ in whether a contraction may be
/// written with them (`ſ'ſ'TE` on the o200k pattern).
pub const CORNERS: [char; 2] = ['ſ', '\u{212A}'];

/// What a comparison with the reference came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Differences {
    /// Strings that differ, those with a corner apart.
    pub strings: usize,
    /// Strings with a corner that differ.
    pub corners: usize,
}

/// Whether a text holds a corner.
pub fn has_corner(text: &str) -> bool {
    let bytes = text.as_bytes();
    memchr::memmem::find(bytes, "ſ".as_bytes()).is_some()
        || memchr::memmem::find(bytes, "\u{212A}".as_bytes()).is_some()
}

/// Compares the ids of `other` with those of `reference`; takes some tenths of a second.
pub fn compare(
    reference: &Tokenizer,
    added: &[String],
    other: impl Fn(&str) -> Result<Vec<u32>, CountError>,
) -> Differences {
    let mut differences = Differences::default();
    for text in strings(added) {
        let wanted = reference.encode_fast(text.as_str(), false).ok();
        let wanted = wanted.as_ref().map(|encoding| encoding.get_ids());
        if other(&text).ok().as_deref() != wanted {
            let kind = if has_corner(&text) { &mut differences.corners } else { &mut differences.strings };
            *kind += 1;
        }
    }
    differences
}

/// What the strings are made of.
const PIECES: [&str; 74] = [
    "the",
    " of",
    "Hello",
    "WORLD",
    "camelCase",
    "snake_case",
    "don't",
    "I'LL",
    "it’s",
    "we've",
    "'s",
    "'T",
    "'",
    "re",
    " a",
    "x",
    "I",
    "0",
    "7",
    "42",
    "123",
    "1234567",
    "3.14",
    "1e-05",
    "²",
    "Ⅷ",
    "٣",
    " ",
    "  ",
    "     ",
    "\t",
    "\n",
    "\n\n",
    " \n",
    "\r\n",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{b}",
    "\u{200b}",
    "\u{200d}",
    ".",
    ",",
    "!!",
    "...",
    "—",
    "(",
    "[{",
    "\"",
    "</",
    ">",
    "//",
    "#",
    "$",
    "%",
    "+=",
    "€",
    "é",
    "e\u{301}",
    "ñ",
    "ﬁ",
    "Ł",
    "ß",
    "你好",
    "，世界。",
    "こんにちは",
    "カタカナ",
    "한국어",
    "Привет",
    "مرحبا",
    "नमस्ते",
    "ไทย",
    "🙂",
    "👩‍👩‍👧",
];

/// The strings: each piece and each added token alone, then random rows of them, then rows with corners.
fn strings(added: &[String]) -> impl Iterator<Item = String> {
    let mut random = fastrand::Rng::with_seed(0x6b76_6761_7465);
    let single: Vec<String> = PIECES.iter().map(|piece| (*piece).to_owned()).collect();
    let tokens: Vec<String> = added.iter().take(400).cloned().collect();
    let mut rows = Vec::with_capacity(STRINGS + CORNER_STRINGS);
    for number in 0..STRINGS + CORNER_STRINGS {
        let corner = number >= STRINGS;
        let mut row = String::new();
        for _ in 0..random.usize(1..=12) {
            match random.u32(0..20) {
                0 if !tokens.is_empty() => row.push_str(&tokens[random.usize(0..tokens.len())]),
                // Parts of added tokens, too.
                1 if !tokens.is_empty() => {
                    let token = &tokens[random.usize(0..tokens.len())];
                    row.extend(token.chars().take(random.usize(1..6)));
                }
                2 => row.push(char::from_u32(random.u32(0x20..0x3000)).unwrap_or('x')),
                3 => {
                    row.extend(std::iter::repeat_n(PIECES[random.usize(0..PIECES.len())], random.usize(2..9)))
                }
                4..=9 if corner => row.push(CORNERS[random.usize(0..2)]),
                10..=12 if corner => row.push_str(["'s", "'", "TE", "S", "k"][random.usize(0..5)]),
                _ => row.push_str(PIECES[random.usize(0..PIECES.len())]),
            }
        }
        if corner && !has_corner(&row) {
            row.push_str("ſ'ſ'TE");
        }
        rows.push(row);
    }
    single.into_iter().chain(tokens).chain(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strings_are_many_the_same_each_time_and_hold_every_added_token() {
        let added = ["<|x|>".to_owned(), "[y]".to_owned()];
        let all: Vec<String> = strings(&added).collect();
        assert!(all.len() > STRINGS + PIECES.len());
        assert!(added.iter().all(|token| all.contains(token)));
        assert!(all.iter().filter(|text| has_corner(text)).count() >= CORNER_STRINGS);
        assert!(strings(&added).eq(all));
    }
}
