//! How many tokens a text has at most, told from its bytes.
//!
//! A token covers at least one character, or with byte-level BPE one byte, of what the normalizer and the
//! pre-tokenizer made of the text; so what these can add bounds them all. By parts (`tokenizers` 0.23):
//!
//! - **Added tokens** (`added_vocabulary.rs`) are cut out of the raw or the normalized text, and have at least one
//!   character of it each.
//! - **Normalizers.** A canonical decomposition (NFD) has at most 3 times the bytes of its text, a compatible one (NFKD) at
//!   most 11 times, and composing makes no text longer: the test below tries every character. ASCII is left as it is, and
//!   so is a text that is normal already (Unicode Standard Annex #15, quick check). Small letters have at most twice the
//!   bytes of their capitals. `Replace` puts one text for another, `Prepend` one before each part between two
//!   added tokens; the parts are one more than the added tokens, so these must pay for it with their length.
//! - **Pre-tokenizers** only split and remove, except that `ByteLevel` may put a blank before each part. It
//!   writes each byte as one character.
//! - **BPE** (`models/bpe/model.rs` `merge_word`) begins with one symbol for each character that is an entry, and with
//!   one for each of its bytes where `byte_fallback` is set, or one or none; merging makes them fewer.
//! - The **post-processor** adds the same number around each text.
//!
//! So a character *weighs* as many symbols as BPE begins with, one at least, and the weight of the text that
//! reaches the model is the bound. What is not in the list above has none.

use unicode_normalization_alignments::{IsNormalized, is_nfc_quick, is_nfkc_quick};

use super::bounds::{File, Step};

/// The upper bound of a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upper {
    /// How the normalizer's first step may let a text grow.
    grows: Grows,
    /// Symbols for each byte after that.
    each_byte: u64,
    /// Symbols put before a text.
    before: u64,
    /// Tokens put around a text.
    around: u64,
}

/// Bytes for each byte that is not ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grows {
    times: u64,
    /// The only form that is made: what is in it already does not grow.
    form: Option<Form>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Canonical,
    Compatible,
}

/// What each character weighs.
struct Weights<'a> {
    byte_level: bool,
    byte_fallback: bool,
    is_entry: &'a dyn Fn(&str) -> bool,
}

impl Weights<'_> {
    /// Of a byte that reached the model as one character: one that is no entry is written with two bytes at most.
    fn byte(&self) -> u64 {
        let all = || bytes_alphabet().all(|c| (self.is_entry)(c.encode_utf8(&mut [0; 4])));
        if self.byte_fallback && !all() { 2 } else { 1 }
    }

    /// The weight of a text that a normalizer writes.
    fn written(&self, text: &str) -> u64 {
        if self.byte_level {
            return text.len() as u64 * self.byte();
        }
        let heavy = |c: char| self.byte_fallback && !(self.is_entry)(c.encode_utf8(&mut [0; 4]));
        text.chars().map(|c| if heavy(c) { c.len_utf8() as u64 } else { 1 }).sum()
    }

    /// The least that a text can weigh which a normalizer replaces.
    fn least(&self, text: &str) -> u64 {
        if self.byte_level { text.len() as u64 * self.byte() } else { text.chars().count() as u64 }
    }
}

/// The characters that stand for bytes (GPT-2): those that are printable stand for themselves.
fn bytes_alphabet() -> impl Iterator<Item = char> {
    let printable = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ');
    printable.chain((0..68).filter_map(|n| char::from_u32(256 + n)))
}

impl Upper {
    /// Of a tokenizer whose post-processor puts `around` tokens around a text; `None` where it has none that is known.
    pub fn of(file: &File, around: u64, is_entry: &dyn Fn(&str) -> bool) -> Option<Self> {
        let model = &file.model;
        let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
        let affixed = affixes.into_iter().flatten().any(|affix| !affix.is_empty());
        if !file.is_bpe() || affixed {
            return None;
        }
        let pre_tokenizers = steps(file.pre_tokenizer.as_ref());
        let byte_level = pre_tokenizers.iter().filter(|step| step.kind == "ByteLevel").count();
        if byte_level > 1 || !pre_tokenizers.iter().all(|step| only_splits(step) || step.kind == "ByteLevel")
        {
            return None;
        }
        let weights = Weights { byte_level: byte_level == 1, byte_fallback: model.byte_fallback, is_entry };
        let start = if weights.byte_level { weights.byte() } else { 1 };
        let mut upper = Self { grows: Grows { times: 1, form: None }, each_byte: start, before: 0, around };
        let mut written = false;
        for step in steps(file.normalizer.as_ref()) {
            written |= upper.normalizer(step, &weights, written)?;
        }
        let spaced = pre_tokenizers
            .iter()
            .position(|step| step.kind == "ByteLevel" && step.add_prefix_space.unwrap_or(true));
        match spaced {
            None => {}
            Some(0) => upper.before += weights.byte(),
            // Each piece of the steps before would get one.
            Some(_) => return None,
        }
        let paid = |content: &str| content.chars().count() as u64 > upper.before;
        let pays = upper.before == 0
            || (upper.grows.times == 1 && file.added_tokens.iter().all(|added| paid(&added.content)));
        pays.then_some(upper)
    }

    /// Adds what a normalizer may add; whether it is one that writes.
    fn normalizer(&mut self, step: &Step, weights: &Weights<'_>, written: bool) -> Option<bool> {
        // Those that change characters come first: what they make of a text that others wrote is not weighed.
        let changes = |upper: &mut Self, times: u64, form: Option<Form>| {
            let first = upper.grows == Grows { times: 1, form: None };
            upper.grows = Grows { times: upper.grows.times * times, form: form.filter(|_| first) };
            (!written && upper.grows.times <= 33).then_some(false)
        };
        match step.kind.as_str() {
            "NFC" => changes(self, 3, Some(Form::Canonical)),
            "NFKC" => changes(self, 11, Some(Form::Compatible)),
            "NFD" => changes(self, 3, None),
            "NFKD" => changes(self, 11, None),
            "Lowercase" => changes(self, 2, None),
            "Strip" | "StripAccents" => Some(false),
            "Prepend" => {
                self.before += weights.written(step.prepend.as_ref()?);
                Some(true)
            }
            "Replace" => {
                let replaced = step.pattern.as_ref()?.string.as_ref().filter(|text| !text.is_empty())?;
                let times = weights.written(step.content.as_ref()?).div_ceil(weights.least(replaced)).max(1);
                self.each_byte = self.each_byte.saturating_mul(times);
                self.before = self.before.saturating_mul(times);
                Some(true)
            }
            _ => None,
        }
    }

    /// How many tokens `text` has at most, with those of the post-processor where `special`.
    #[must_use]
    pub fn tokens(&self, text: &str, special: bool) -> u64 {
        let bytes = text.len() as u64;
        let grown = if self.grows.times == 1 || text.is_ascii() || self.is_normal(text) {
            bytes
        } else {
            let ascii = text.bytes().filter(u8::is_ascii).count() as u64;
            ascii.saturating_add((bytes - ascii).saturating_mul(self.grows.times))
        };
        let own = grown.saturating_mul(self.each_byte).saturating_add(self.before);
        own.saturating_add(if special { self.around } else { 0 })
    }

    /// Whether the only form that is made leaves the text as it is.
    fn is_normal(&self, text: &str) -> bool {
        match self.grows.form {
            None => false,
            Some(Form::Canonical) => is_nfc_quick(text.chars()) == IsNormalized::Yes,
            Some(Form::Compatible) => is_nfkc_quick(text.chars()) == IsNormalized::Yes,
        }
    }
}

/// The steps of a component, sequences taken apart.
fn steps(step: Option<&Step>) -> Vec<&Step> {
    match step {
        None => Vec::new(),
        Some(step) if step.kind == "Sequence" => {
            step.pretokenizers.iter().flat_map(|step| steps(Some(step))).collect()
        }
        Some(step) => vec![step],
    }
}

/// Whether a pre-tokenizer adds nothing to a text.
fn only_splits(step: &Step) -> bool {
    const KNOWN: [&str; 8] = [
        "Split",
        "Punctuation",
        "Digits",
        "Whitespace",
        "WhitespaceSplit",
        "CharDelimiterSplit",
        "UnicodeScripts",
        "FixedLength",
    ];
    KNOWN.contains(&step.kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_normalization_alignments::UnicodeNormalization as _;
    use unicode_normalization_alignments::char::compose;

    fn of(json: &str) -> Option<Upper> {
        Upper::of(&serde_json::from_str(json).unwrap(), 2, &|entry| entry == "▁")
    }

    #[test]
    fn no_character_grows_by_more_than_is_reckoned_with_and_composing_shortens() {
        let bytes = |text: &[char]| text.iter().map(|c| c.len_utf8()).sum::<usize>();
        for c in '\0'..=char::MAX {
            let form = |all: Vec<(char, isize)>| all.into_iter().map(|(c, _)| c).collect::<Vec<char>>();
            let one = || std::iter::once(c);
            let canonical = form(one().nfd().collect());
            let compatible = form(one().nfkd().collect());
            let times = if c.is_ascii() { 1 } else { 3 };
            assert!(bytes(&canonical) <= times * c.len_utf8(), "{c:?}");
            let times = if c.is_ascii() { 1 } else { 11 };
            assert!(bytes(&compatible) <= times * c.len_utf8(), "{c:?}");
            let small: Vec<char> = c.to_lowercase().collect();
            assert!(bytes(&small) <= if c.is_ascii() { 1 } else { 2 * c.len_utf8() }, "{c:?}");
            if let [first, rest @ ..] = canonical.as_slice() {
                let mut composed = *first;
                for next in rest {
                    let Some(both) = compose(composed, *next) else { break };
                    assert!(both.len_utf8() <= composed.len_utf8() + next.len_utf8(), "{both:?}");
                    composed = both;
                }
            }
            if is_nfc_quick(one()) == IsNormalized::Yes {
                assert_eq!(form(one().nfc().collect()), [c]);
            }
            if is_nfkc_quick(one()) == IsNormalized::Yes {
                assert_eq!(form(one().nfkc().collect()), [c]);
            }
        }
    }

    #[test]
    fn a_byte_is_a_token_at_most_and_what_grows_is_reckoned_with() {
        let plain = of(
            r#"{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}}"#,
        );
        assert_eq!(plain.map(|p| (p.tokens("aé", false), p.tokens("aé", true))), Some((3, 5)));
        let nfc = of(r#"{"model": {"type": "BPE"}, "normalizer": {"type": "NFC"}}"#).unwrap();
        assert_eq!((nfc.tokens("aé", false), nfc.tokens("a\u{344}", false)), (3, 7));
        let gemma = r#"{"model": {"type": "BPE", "byte_fallback": true},
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}}"#;
        assert_eq!(of(gemma).map(|g| g.tokens("a b", false)), Some(3));
        assert_eq!(of(&gemma.replace('▁', "▂")).map(|g| g.tokens("a b", false)), Some(9), "no entry");
        let llama = r#"{"model": {"type": "BPE", "byte_fallback": true}, "added_tokens": [{"content": "<s>"}],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}}"#;
        assert_eq!(of(llama).map(|l| l.tokens("a b", false)), Some(4));
        assert_eq!(
            of(&llama.replace("<s>", "s")),
            None,
            "added tokens too short to pay for what is prepended"
        );
    }

    #[test]
    fn what_is_not_known_to_add_little_has_no_bound() {
        for json in [
            r#"{"model": {"type": "Unigram"}}"#,
            r#"{"model": {"type": "BPE", "end_of_word_suffix": "</w>"}}"#,
            r#"{"model": {"type": "BPE"}, "normalizer": {"type": "Precompiled"}}"#,
            r#"{"model": {"type": "BPE"}, "normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": "bb"}}"#,
            r#"{"model": {"type": "BPE"}, "normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "b"}}"#,
            r#"{"model": {"type": "BPE"}, "normalizer": {"type": "Sequence", "normalizers":
                [{"type": "Prepend", "prepend": "▁"}, {"type": "NFC"}]}}"#,
            r#"{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Metaspace"}}"#,
            r#"{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers":
                [{"type": "Digits"}, {"type": "ByteLevel", "add_prefix_space": true}]}}"#,
        ] {
            assert_eq!(of(json), None, "{json}");
        }
        assert_eq!(bytes_alphabet().count(), 256);
    }
}
