//! What can be said about a text's tokens without tokenizing it: that they are certainly more than so many. That they
//! are certainly fewer says [`super::upper`].
//!
//! vLLM 0.32.0 (`renderers/params.py` `_text_len_check`) refuses a text with more characters than its
//! limit times the longest entry of the vocabulary. That is sound where no token can stand for more
//! characters than its entry has; [`Longest::read`] looks for all that could break it.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// How many characters of text one token can stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Longest(u64);

/// The parts of a `tokenizer.json` (tokenizers 0.23) that decide.
#[derive(Deserialize)]
pub struct File {
    #[serde(default)]
    pub normalizer: Option<Step>,
    #[serde(default)]
    pub pre_tokenizer: Option<Step>,
    pub model: Model,
    #[serde(default)]
    pub added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
pub struct Model {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    unk_token: Option<IgnoredAny>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(default)]
    pub continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub end_of_word_suffix: Option<String>,
}

#[derive(Deserialize)]
pub struct Added {
    #[serde(default)]
    pub content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// A normalizer or pre-tokenizer, or one of a sequence.
#[derive(Deserialize)]
pub struct Step {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, alias = "normalizers")]
    pub pretokenizers: Vec<Step>,
    #[serde(default)]
    behavior: Option<String>,
    #[serde(default)]
    invert: bool,
    #[serde(default)]
    pub pattern: Option<Pattern>,
    #[serde(default)]
    pub content: Option<String>,
    #[serde(default)]
    pub prepend: Option<String>,
    #[serde(default)]
    pub add_prefix_space: Option<bool>,
}

/// What is replaced, or where is split.
#[derive(Deserialize)]
pub struct Pattern {
    #[serde(default, rename = "String")]
    pub string: Option<String>,
}

impl File {
    /// Whether its model is BPE.
    pub fn is_bpe(&self) -> bool {
        self.model.kind.as_deref().is_none_or(|kind| kind == "BPE")
    }
}

impl Longest {
    /// Of a tokenizer whose longest entry has `chars` characters; `None` where a token can
    /// stand for text without end (blanks swallowed, unknown text fused, characters removed).
    pub fn of(file: &File, chars: usize) -> Option<Self> {
        let model = &file.model;
        let fuses = model.fuse_unk && model.unk_token.is_some() && !model.byte_fallback;
        let swallows = file.added_tokens.iter().any(|added| added.lstrip || added.rstrip);
        if !file.is_bpe() || fuses || swallows || !file.pre_tokenizer.as_ref().is_none_or(keeps_all) {
            return None;
        }
        let shrinks = file.normalizer.as_ref().map_or(Some(1), shrinks)?;
        Some(Self((chars.max(1) as u64).saturating_mul(shrinks)))
    }

    /// Whether a text certainly has more than `limit` tokens.
    pub fn exceeds(self, text: &str, limit: u64) -> bool {
        let most = limit.saturating_mul(self.0);
        text.len() as u64 > most && text.chars().count() as u64 > most
    }
}

/// Whether a pre-tokenizer lets no character fall.
fn keeps_all(step: &Step) -> bool {
    match step.kind.as_str() {
        "Sequence" => step.pretokenizers.iter().all(keeps_all),
        // Inverted, the pattern is what is kept: the known ones match every character.
        "Split" => step.behavior.as_deref() != Some("Removed") || step.invert,
        "Punctuation" => step.behavior.as_deref() != Some("Removed"),
        "ByteLevel" | "Digits" | "Metaspace" | "UnicodeScripts" | "FixedLength" => true,
        _ => false,
    }
}

/// How many characters a normalizer can make into one; `None` for any number.
fn shrinks(step: &Step) -> Option<u64> {
    match step.kind.as_str() {
        "Sequence" => step.pretokenizers.iter().try_fold(1_u64, |all, one| Some(all * shrinks(one)?)),
        // The longest canonical decomposition has four characters (U+1F82).
        "NFC" | "NFKC" => Some(4),
        "NFD" | "NFKD" | "Prepend" | "ByteLevel" | "Lowercase" => Some(1),
        "Replace" => {
            let pattern = step.pattern.as_ref()?.string.as_ref()?.chars().count() as u64;
            let content = step.content.as_ref()?.chars().count() as u64;
            (content > 0).then(|| pattern.div_ceil(content).max(1))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<Longest> {
        Longest::of(&serde_json::from_str(json).unwrap(), 10)
    }

    #[test]
    fn byte_level_tokenizers_are_bounded_by_their_longest_entry() {
        let longest =
            read(r#"{"model": {"type": "BPE", "vocab": {"a": 1}}, "pre_tokenizer": {"type": "ByteLevel"}}"#);
        assert_eq!(longest, Some(Longest(10)));
        assert!(!longest.unwrap().exceeds(&"x".repeat(50), 5));
        assert!(longest.unwrap().exceeds(&"x".repeat(51), 5));
        assert!(!longest.unwrap().exceeds(&"é".repeat(50), 5), "characters count, not bytes");
        let nfc = read(r#"{"model": {"type": "BPE"}, "normalizer": {"type": "NFC"}}"#);
        assert_eq!(nfc, Some(Longest(40)));
    }

    #[test]
    fn what_can_swallow_text_is_not_bounded() {
        for json in [
            r#"{"model": {"type": "WordPiece"}}"#,
            r#"{"model": {"type": "BPE", "unk_token": "u", "fuse_unk": true}}"#,
            r#"{"model": {"type": "BPE"}, "added_tokens": [{"content": "m", "lstrip": true}]}"#,
            r#"{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Whitespace"}}"#,
            r#"{"model": {"type": "BPE"}, "normalizer": {"type": "Strip"}}"#,
            r#"{"model": {"type": "BPE"}, "normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}}"#,
        ] {
            assert_eq!(read(json), None, "{json}");
        }
    }
}
