//! Between which characters nothing can merge, where a whole part is merged at once (Gemma).
//!
//! Byte-pair encoding begins with characters, and every token that it makes is an entry of the vocabulary. So where no
//! entry has the characters a and b side by side, no token ever reaches from an a to a b behind it, whatever
//! stands around: what is before that place and what is behind it are merged as if each stood alone. A character
//! that is no entry becomes its bytes, which merge with nothing, or where these are no entries unknown. Unknown characters
//! may become one (`fuse_unk`) up to the next that is an entry, so there a place has an entry on one side. A blank is written `▁`.
//!
//! The pairs are kept as bits under a hash: a pair that shares its bit with an entry's is taken for one, and is then no place.

use serde_json::Value;

use super::merges::{byte_entry, parts};

/// Bits for pairs; the Gemma vocabularies have some hundred thousand pairs.
const BITS: usize = 1 << 23;

/// The pairs that stand side by side in some entry.
pub struct Pairs {
    /// Of ASCII characters, exactly: the second one's bit in the first one's word.
    ascii: Box<[u128; 128]>,
    /// Of all others, by hash.
    others: Vec<u64>,
    /// A bit for each character that is an entry, where unknown ones become one.
    entries: Option<Vec<u64>>,
}

impl std::fmt::Debug for Pairs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pairs")
    }
}

/// A blank as the vocabulary writes it, in one byte: the text's own `▁` becomes the same token.
const fn written(c: char) -> char {
    if c == '▁' { ' ' } else { c }
}

fn is_entry(entries: &[u64], c: char) -> bool {
    entries[c as usize >> 6] >> (c as u32 & 63) & 1 == 1
}

const fn bit(a: char, b: char) -> usize {
    let both = (a as u64) << 32 | b as u64;
    (both.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 41) as usize % BITS
}

impl Pairs {
    /// Of a `tokenizer.json` (`tokenizers` 0.23) without a pre-tokenizer; `None` where its model is not known to merge
    /// characters only.
    pub fn read(file: &Value) -> Option<Self> {
        let model = file.get("model")?;
        let set =
            |name: &str| model.get(name).is_some_and(|value| value.as_bool().unwrap_or(!value.is_null()));
        let text = |name: &str| model.get(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        let bpe = model.get("type").is_none_or(|kind| kind.as_str() == Some("BPE"));
        let affixed = text("continuing_subword_prefix") || text("end_of_word_suffix");
        let vocab = model.get("vocab")?.as_object()?;
        let bytes = (0..=255).all(|byte| vocab.contains_key(&byte_entry(byte)));
        let fuses = set("fuse_unk") && !(set("byte_fallback") && bytes);
        if !bpe || affixed || set("ignore_merges") || set("dropout") {
            return None;
        }
        // That an entry for a byte is made of its letters is nowhere so, nor that one merges: it would be no pair below.
        let merges = model.get("merges").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let of_bytes = |merge: &Value| {
            parts(merge).is_none_or(|(left, right)| {
                is_byte(left) || is_byte(right) || is_byte([left, right].concat())
            })
        };
        if merges.iter().any(of_bytes) {
            return None;
        }
        let mut pairs = Self { ascii: Box::new([0; 128]), others: vec![0; BITS / 64], entries: None };
        for entry in vocab.keys() {
            if is_byte(entry) {
                continue;
            }
            // Bytes that merge stand for characters that the entry does not show.
            if entry.starts_with("<0x") && entry.len() % 6 == 0 && entry.as_bytes().chunks(6).all(is_byte) {
                return None;
            }
            entry.chars().zip(entry.chars().skip(1)).for_each(|(a, b)| pairs.add(written(a), written(b)));
        }
        if fuses {
            pairs.fuse(vocab.keys());
        }
        Some(pairs)
    }

    /// From now on two characters of which neither is an entry may become one token.
    fn fuse<'v>(&mut self, vocab: impl Iterator<Item = &'v String>) {
        let mut entries = vec![0; (char::MAX as usize >> 6) + 1];
        for entry in vocab {
            let mut chars = entry.chars();
            if let (Some(only), None) = (chars.next().map(written), chars.next()) {
                entries[only as usize >> 6] |= 1 << (only as u32 & 63);
            }
        }
        let unknown: Vec<char> = ('\0'..='\x7f').filter(|c| !is_entry(&entries, *c)).collect();
        unknown.iter().for_each(|a| unknown.iter().for_each(|b| self.add(*a, *b)));
        self.entries = Some(entries);
    }

    fn add(&mut self, a: char, b: char) {
        if a.is_ascii() && b.is_ascii() {
            self.ascii[a as usize] |= 1 << (b as u32);
        } else {
            let bit = bit(a, b);
            self.others[bit / 64] |= 1 << (bit % 64);
        }
    }

    /// Whether a token may reach from `a` to a `b` behind it.
    #[inline]
    pub fn join(&self, a: char, b: char) -> bool {
        let (a, b) = (written(a), written(b));
        if a.is_ascii() && b.is_ascii() {
            return self.ascii[a as usize] >> (b as u32) & 1 == 1;
        }
        let bit = bit(a, b);
        self.others[bit / 64] >> (bit % 64) & 1 == 1
            || self.entries.as_ref().is_some_and(|all| !is_entry(all, a) && !is_entry(all, b))
    }

    /// The first place in `text` at or after byte `least`, which is greater than 0.
    pub fn place(&self, text: &str, least: usize) -> Option<usize> {
        let least = (least..=text.len()).find(|at| text.is_char_boundary(*at))?;
        let mut before = text[..least].chars().next_back()?;
        for (at, c) in text[least..].char_indices() {
            if !self.join(before, c) {
                return Some(least + at);
            }
            before = c;
        }
        None
    }

    /// The text between the places.
    pub fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let (mut start, mut chars) = (0, text.char_indices().peekable());
        std::iter::from_fn(move || {
            let (_, mut before) = chars.next()?;
            let mut end = text.len();
            while let Some((at, c)) = chars.peek().copied() {
                if !self.join(before, c) {
                    end = at;
                    break;
                }
                before = c;
                chars.next();
            }
            let word = &text[start..end];
            start = end;
            Some(word)
        })
    }
}

/// Whether an entry stands for a byte.
fn is_byte(entry: impl AsRef<[u8]>) -> bool {
    let entry = entry.as_ref();
    entry.len() == 6 && entry.starts_with(b"<0x") && entry.ends_with(b">")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file() -> Value {
        json!({
            "model": {"type": "BPE", "fuse_unk": false, "vocab": {"▁ab": 0, "的是": 1, "c▁▁": 2, "<0x41>": 3}},
        })
    }

    #[test]
    fn a_text_falls_apart_where_no_entry_has_its_characters_side_by_side() {
        let pairs = Pairs::read(&file()).unwrap();
        let words = |text| pairs.words(text).collect::<Vec<&str>>();
        assert_eq!(words(" abab c  x的是的▁a"), [" ab", "ab", " ", "c  ", "x", "的是", "的", "▁a"]);
        assert_eq!(words("<0x41>"), ["<", "0", "x", "4", "1", ">"]);
        assert_eq!((words("").len(), pairs.place("ab", 1), pairs.place("的x", 1)), (0, None, Some(3)));
    }

    #[test]
    fn unknown_characters_that_may_become_one_are_not_parted() {
        let mut file = file();
        file["model"]["fuse_unk"] = json!(true);
        file["model"]["vocab"]["x"] = json!(4);
        file["model"]["vocab"]["▁"] = json!(5);
        let pairs = Pairs::read(&file).unwrap();
        let words = |text| pairs.words(text).collect::<Vec<&str>>();
        assert_eq!(words("yz的éx京y x y"), ["yz的é", "x", "京y", " ", "x", " ", "y"]);
    }

    #[test]
    fn models_that_merge_more_than_characters_have_none() {
        for (key, value) in [
            ("type", json!("Unigram")),
            ("ignore_merges", json!(true)),
            ("dropout", json!(0.1)),
            ("end_of_word_suffix", json!("</w>")),
            ("vocab", json!({"<0x41><0x42>": 0})),
            ("merges", json!([["<0x4", "1>"]])),
            ("merges", json!(["<0x4 1>"])),
            ("merges", json!(["<0x41> a"])),
            ("merges", json!(["a"])),
        ] {
            let mut file = file();
            file["model"][key] = value;
            assert!(Pairs::read(&file).is_none(), "{key}");
        }
    }
}
