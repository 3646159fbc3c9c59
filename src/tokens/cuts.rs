//! Where a text may be cut so that the counts of its parts add up exactly.
//!
//! Anywhere else a cut may change the count.
//!
//! **At an added token.** `tokenizers` 0.23 (`added_vocabulary.rs` `extract_and_normalize`) first cuts
//! the raw text at its added tokens that are not normalized, leftmost and longest first, and then
//! treats each part by itself: normalizer, normalized added tokens, pre-tokenizer, model. So the parts
//! add up, and each such token is one. Two things break this: a token that swallows the blanks around
//! it or asks whether it stands in a word, and a pre-tokenizer that treats the first part differently.
//! A tokenizer with either is not cut.
//!
//! **Between two pre-tokens**, where the place can be told by the characters beside it. For the known
//! splitting patterns ([`Patterns`]) of byte-level BPE no alternative has a blank but at its start or
//! within a run of blanks: a blank after a character that is none begins a pre-token. The part
//! before ends with no blank, so that the only look-ahead, `\s+(?!\S)`, does not reach over the cut; there is no
//! look-behind. No alternative holds both an ASCII letter and a digit, nor a digit and punctuation, nor a letter
//! and punctuation behind it but the apostrophe. A newline before an ASCII letter ends one where
//! `\s*[\r\n]+` comes before the other alternatives for blanks, and full-width punctuation after an
//! ideograph begins one, as letters never hold punctuation behind them. NFC composes over none of these places.
//!
//! **Where nothing can merge.** Without a pre-tokenizer a whole part is merged at once (Gemma). The
//! normalizer makes a blank `▁`; where no entry of the vocabulary has it after a character c, no merge
//! reaches from c over a blank behind it, whatever stands around.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind};
use serde_json::Value;

use super::runs::Kinds;

/// A tokenizer's places.
#[derive(Debug)]
pub struct Cuts {
    added: Option<AhoCorasick>,
    within: Within,
    kinds: Kinds,
}

/// The places within a part.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Within {
    /// None is known.
    Nowhere,
    /// Those of a known pattern; whether a newline before a letter is one.
    Patterns { newline: bool },
    /// A blank after any but these.
    Blanks { except: Vec<char> },
}

/// The patterns whose places are known, as they stand in `tokenizer.json`, and whether a newline before a
/// letter is one: cl100k with three digits (Llama 3) and with one (Qwen), o200k (gpt-4o, gpt-oss), tekken
/// (Mistral Nemo), the three of DeepSeek V3.
const KNOWN: [&[&str]; 5] = [
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ],
];

/// Characters after which a blank may merge, at most: with more it is no place worth looking for.
const MOST_EXCEPTIONS: usize = 16;

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'t> {
    /// Its text, without added tokens that are matched in the raw text.
    pub text: &'t str,
    /// Where the added token behind it ends, in bytes of the whole; the length of the whole at its end.
    pub end: usize,
    /// Whether such a token follows.
    pub token: bool,
}

impl Cuts {
    /// Reads a `tokenizer.json` (`tokenizers` 0.23): its places, none where they are not certain.
    pub fn read(file: &Value) -> Self {
        let added = added(file);
        let within = within(file);
        let kinds = kinds(file, matches!(within, Within::Blanks { .. }));
        let cuts = Self { added, within, kinds };
        // A place within an added token that may stand in a part would cut it in two.
        let whole = tokens_within(file, cuts.added.is_some())
            .is_some_and(|all| all.iter().all(|token| cuts.place(token, 1).is_none()));
        if whole { cuts } else { Self { within: Within::Nowhere, ..cuts } }
    }

    /// No place at all.
    #[cfg(test)]
    pub const fn none() -> Self {
        let kinds = Kinds { cases: true, joiners: false, composed: true, anywhere: false };
        Self { added: None, within: Within::Nowhere, kinds }
    }

    /// Whether texts are cut at added tokens.
    pub const fn at_added(&self) -> bool {
        self.added.is_some()
    }

    /// What the patterns keep in one pre-token, where there are places within a part: without any known place
    /// nothing says that a long part is a run.
    pub fn kinds(&self) -> Option<Kinds> {
        (self.within != Within::Nowhere).then_some(self.kinds)
    }

    /// The parts between the added tokens of `text`, from byte `from` on, which must follow a token or be 0.
    pub fn parts<'t>(&'t self, text: &'t str, from: usize) -> impl Iterator<Item = Part<'t>> {
        let mut at = from;
        let mut over = false;
        std::iter::from_fn(move || {
            if over {
                return None;
            }
            let input = Input::new(text).range(at..).anchored(Anchored::No);
            let found: Option<Range<usize>> =
                self.added.as_ref().and_then(|added| added.find(input)).map(|found| found.range());
            let start = at;
            match found {
                Some(found) => {
                    at = found.end;
                    Some(Part { text: &text[start..found.start], end: found.end, token: true })
                }
                None => {
                    over = true;
                    Some(Part { text: &text[start..], end: text.len(), token: false })
                }
            }
        })
    }

    /// The first place in `text` at or after byte `least`, which is greater than 0.
    pub fn place(&self, text: &str, least: usize) -> Option<usize> {
        let bytes = text.as_bytes();
        let mut at = least.max(1);
        match &self.within {
            Within::Nowhere => None,
            Within::Blanks { except } => loop {
                at += memchr::memchr(b' ', bytes.get(at..)?)?;
                let before = text[..at].chars().next_back()?;
                if !before.is_whitespace() && before != '▁' && !except.contains(&before) {
                    return Some(at);
                }
                at += 1;
            },
            Within::Patterns { newline } => loop {
                let (after, before) = (*bytes.get(at)?, bytes[at - 1]);
                let place = match after {
                    b' ' => !blank_before(text, at),
                    b'0'..=b'9' => before.is_ascii_alphabetic() || sign(before),
                    _ if sign(after) => before.is_ascii_alphanumeric(),
                    _ if after.is_ascii_alphabetic() => {
                        before.is_ascii_digit() || (*newline && before == b'\n')
                    }
                    // 0xE3 begins 、 and 。, 0xEF begins ， (and others: looked at more closely).
                    0xE3 | 0xEF => {
                        text.is_char_boundary(at)
                            && text[at..].starts_with(['、', '。', '，'])
                            && text[..at].ends_with(|c| ('一'..='龥').contains(&c))
                    }
                    _ => false,
                };
                if place {
                    return Some(at);
                }
                at += 1;
            },
        }
    }
}

/// ASCII punctuation that begins no contraction.
const fn sign(byte: u8) -> bool {
    byte.is_ascii_punctuation() && byte != b'\''
}

/// Whether the character before byte `at` is a blank, by the widest definition of one.
fn blank_before(text: &str, at: usize) -> bool {
    let before = text.as_bytes()[at - 1];
    if before.is_ascii() {
        return before.is_ascii_whitespace() || before == 0x0B || (0x1C..=0x1F).contains(&before);
    }
    text[..at].ends_with(|c: char| c.is_whitespace() || c == '\u{180E}' || c == '\u{FEFF}')
}

/// The automaton of the added tokens at which texts are cut.
fn added(file: &Value) -> Option<AhoCorasick> {
    let entries = file.get("added_tokens")?.as_array()?;
    let flag = |entry: &Value, name: &str| entry.get(name).and_then(Value::as_bool).unwrap_or(false);
    let raw: Vec<&Value> = entries.iter().filter(|entry| !flag(entry, "normalized")).collect();
    let touches = |entry: &&Value| ["lstrip", "rstrip", "single_word"].iter().any(|name| flag(entry, name));
    if raw.is_empty() || raw.iter().any(touches) || !each_part_alone(file) {
        return None;
    }
    let contents: Option<Vec<&str>> =
        raw.iter().map(|entry| entry.get("content")?.as_str().filter(|text| !text.is_empty())).collect();
    AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents?).ok()
}

/// The added tokens that may stand within a part; `None` where one reaches beyond itself.
fn tokens_within(file: &Value, cut_at_raw: bool) -> Option<Vec<&str>> {
    let entries = file.get("added_tokens").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let flag = |entry: &Value, name: &str| entry.get(name).and_then(Value::as_bool).unwrap_or(false);
    entries
        .iter()
        .filter(|entry| !cut_at_raw || flag(entry, "normalized"))
        .map(|entry| {
            let touches = ["lstrip", "rstrip", "single_word"].iter().any(|name| flag(entry, name));
            entry.get("content")?.as_str().filter(|text| !touches && !text.contains(char::is_whitespace))
        })
        .collect()
}

/// Whether each part is treated as if it stood alone.
fn each_part_alone(file: &Value) -> bool {
    // Metaspace may put its mark before the first part only.
    steps(file, "pre_tokenizer", "pretokenizers")
        .is_some_and(|steps| steps.iter().all(|step| matches!(kind(step), "Split" | "ByteLevel" | "Digits")))
}

/// The steps of a component, a sequence taken apart; none where it is null.
fn steps<'v>(file: &'v Value, name: &str, of: &str) -> Option<Vec<&'v Value>> {
    match file.get(name) {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(step) if kind(step) == "Sequence" => Some(step.get(of)?.as_array()?.iter().collect()),
        Some(step) => Some(vec![step]),
    }
}

/// Whether the vocabulary is written in the alphabet of bytes.
pub fn is_byte_level(file: &Value) -> bool {
    steps(file, "pre_tokenizer", "pretokenizers")
        .is_some_and(|steps| steps.iter().any(|step| kind(step) == "ByteLevel"))
}

/// What the patterns keep in one pre-token: o200k and tekken tell cases apart, DeepSeek's leaves joiners out of its
/// symbols.
fn kinds(file: &Value, anywhere: bool) -> Kinds {
    let steps = steps(file, "pre_tokenizer", "pretokenizers").unwrap_or_default();
    let regexes: Vec<&str> = steps.iter().filter_map(|step| regex(step)).collect();
    Kinds {
        cases: regexes.iter().any(|regex| regex.contains(r"\p{Lu}")),
        joiners: !regexes.iter().any(|regex| regex.contains(r"[\p{P}\p{S}]")),
        composed: file.get("normalizer").is_some_and(|step| step.to_string().contains("NF")),
        anywhere,
    }
}

/// Whether a step splits by a known pattern, alone, that matches every character: what is removed and what
/// is isolated by it is then the same.
pub fn is_known_split(step: &Value) -> bool {
    regex(step).is_some_and(|regex| KNOWN.iter().any(|known| *known == [regex]))
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or("")
}

fn within(file: &Value) -> Within {
    patterns(file).or_else(|| blanks(file)).unwrap_or(Within::Nowhere)
}

/// Known patterns before byte-level BPE, the text unchanged or composed.
fn patterns(file: &Value) -> Option<Within> {
    let normalizers = steps(file, "normalizer", "normalizers")?;
    if !normalizers.iter().all(|step| matches!(kind(step), "NFC" | "NFKC")) {
        return None;
    }
    let steps = steps(file, "pre_tokenizer", "pretokenizers")?;
    let (last, splits) = steps.split_last()?;
    let flag = |name: &str| last.get(name).and_then(Value::as_bool);
    if kind(last) != "ByteLevel" || flag("add_prefix_space") != Some(false) {
        return None;
    }
    if splits.is_empty() {
        // GPT-2's own pattern: a newline before a letter may be a blank of its own.
        return flag("use_regex").unwrap_or(true).then_some(Within::Patterns { newline: false });
    }
    let regexes: Vec<&str> = splits.iter().map(|step| regex(step)).collect::<Option<_>>()?;
    let known = KNOWN.contains(&regexes.as_slice());
    (known && flag("use_regex") == Some(false)).then_some(Within::Patterns { newline: true })
}

/// The pattern of a step that isolates its matches.
fn regex(step: &Value) -> Option<&str> {
    let how = (step.get("behavior")?.as_str()?, step.get("invert")?.as_bool()?);
    let whole = matches!(how, ("Isolated", false) | ("Removed", true));
    step.get("pattern")?.get("Regex")?.as_str().filter(|_| whole && kind(step) == "Split")
}

/// No pre-tokenizer that matters, and a vocabulary in which `▁` follows few characters.
fn blanks(file: &Value) -> Option<Within> {
    let normalizer = file.get("normalizer")?;
    let replaced = normalizer.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
    if kind(normalizer) != "Replace"
        || replaced != Some(" ")
        || normalizer.get("content").and_then(Value::as_str) != Some("▁")
    {
        return None;
    }
    let steps = steps(file, "pre_tokenizer", "pretokenizers")?;
    let never = |step: &&Value| {
        let by = step.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
        kind(step) == "Split" && by == Some(" ")
    };
    if !steps.iter().all(never) {
        return None;
    }
    let mut except: Vec<char> = Vec::new();
    for entry in file.get("model")?.get("vocab")?.as_object()?.keys() {
        for (at, _) in entry.match_indices('▁').filter(|(at, _)| *at > 0) {
            let before = entry[..at].chars().next_back()?;
            if before != '▁' && !except.contains(&before) {
                except.push(before);
            }
        }
        if except.len() > MOST_EXCEPTIONS {
            return None;
        }
    }
    Some(Within::Blanks { except })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cl100k() -> Value {
        json!({
            "added_tokens": [{"content": "<|a|>"}, {"content": "<|a|>b"}, {"content": "[]", "normalized": true}],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": KNOWN[0][0]}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
            ]},
            "model": {"vocab": {}},
        })
    }

    #[test]
    fn a_text_is_cut_at_the_longest_added_token() {
        let cuts = Cuts::read(&cl100k());
        let parts: Vec<_> = cuts.parts("one<|a|>b two<|a|>[]", 0).collect();
        let part = |text, end, token| Part { text, end, token };
        assert_eq!(parts, [part("one", 9, true), part(" two", 18, true), part("[]", 20, false)]);
        let later: Vec<_> = cuts.parts("one<|a|>b two<|a|>[]", 9).collect();
        assert_eq!(later, parts[1..]);
        assert_eq!(Cuts::none().parts("a<|a|>", 0).count(), 1);
    }

    #[test]
    fn tokens_that_reach_beyond_themselves_forbid_it() {
        for flag in ["lstrip", "rstrip", "single_word"] {
            let mut file = cl100k();
            file["added_tokens"][0][flag] = json!(true);
            assert!(!Cuts::read(&file).at_added());
        }
        let mut file = cl100k();
        file["pre_tokenizer"] = json!({"type": "Metaspace", "prepend_scheme": "first"});
        assert!(!Cuts::read(&file).at_added());
    }

    #[test]
    fn the_places_are_before_blanks_after_newlines_and_before_full_width_punctuation() {
        let cuts = Cuts::read(&cl100k());
        let places = |text: &str| {
            let mut places = Vec::new();
            let mut at = 0;
            while let Some(next) = cuts.place(text, at + 1) {
                places.push(next);
                at = next;
            }
            places
        };
        assert_eq!(places("one two  three"), [3, 7]);
        assert_eq!(places("a\n b\nc\n\nd"), [5, 8]);
        assert_eq!(places("你好，世界。"), [6, 15]);
        assert!(places("\u{3000} x\u{a0} y").is_empty());
        assert_eq!(places("é ！，"), [2]);
        assert_eq!(places("ab12c-3-d'e"), [2, 4, 5, 6, 7]);
        assert_eq!(cuts.place("", 1), None);
    }

    #[test]
    fn an_added_token_that_holds_a_place_forbids_them_all() {
        for content in ["<obj1>", "a b", "x.y", "a\nb"] {
            let mut file = cl100k();
            file["added_tokens"][2]["content"] = json!(content);
            assert!(Cuts::read(&file).kinds().is_none() && Cuts::read(&file).at_added(), "{content}");
        }
    }

    #[test]
    fn other_patterns_and_normalizers_have_no_places() {
        let mut file = cl100k();
        file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(r"\w+|\s+");
        assert!(Cuts::read(&file).kinds().is_none());
        let mut file = cl100k();
        file["normalizer"] = json!({"type": "Lowercase"});
        assert!(Cuts::read(&file).kinds().is_none());
    }

    #[test]
    fn without_a_pre_tokenizer_the_vocabulary_says_where_nothing_merges() {
        let gemma = |vocab: Value| {
            Cuts::read(&json!({
                "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                "pre_tokenizer": null,
                "model": {"vocab": vocab},
            }))
        };
        let cuts = gemma(json!({"▁a": 0, ">▁</": 1, "▁▁": 2}));
        assert_eq!(cuts.place("a> b c", 1), Some(4));
        assert_eq!(cuts.place("a  b", 2), None);
        let many: serde_json::Map<_, _> = ('a'..='z').map(|c| (format!("{c}▁"), json!(1))).collect();
        assert!(gemma(many.into()).kinds().is_none());
    }
}
