//! Where a text may be cut so that the counts of its parts add up exactly.
//!
//! Anywhere else a cut may change the count.
//!
//! **At an added token.** `tokenizers` 0.23 (`added_vocabulary.rs` `extract_and_normalize`) first cuts
//! the raw text at its added tokens that are not normalized, leftmost and longest first, and then
//! treats each part by itself: normalizer, normalized added tokens, pre-tokenizer, model. So the parts
//! add up, and each such token is one. Where there is no normalizer each part is cut at the normalized ones in the same way.
//! Two things break this: a token that swallows the blanks around
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
//! **Where nothing can merge.** Without a pre-tokenizer a whole part is merged at once (Gemma): see [`super::unsplit`].

use std::ops::Range;

use serde_json::Value;

use super::added::AddedTokens;
use super::runs::Kinds;
use super::unsplit::Unsplit;

/// A tokenizer's places.
#[derive(Debug)]
pub struct Cuts {
    /// Those that are cut out of the raw text.
    added: Option<AddedTokens>,
    /// Those that are cut out of what is left, where that is the normalized text.
    normalized: Option<AddedTokens>,
    within: Within,
    kinds: Kinds,
}

/// The places within a part.
#[derive(Debug)]
enum Within {
    /// None is known.
    Nowhere,
    /// Those of a known pattern; whether a newline before a letter is one.
    Patterns { newline: bool },
    /// Between characters that no entry has side by side.
    Unsplit(Box<Unsplit>),
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
        let (added, normalized) = (added(file, false), added(file, true).filter(|_| is_unchanged(file)));
        let within = within(file);
        let kinds = kinds(file);
        let cuts = Self { added, normalized, within, kinds };
        // A place within an added token that may stand in a part would cut it in two.
        let inside = tokens_within(file, cuts.added.is_some(), cuts.normalized.is_some());
        let whole = inside.is_some_and(|all| match &cuts.within {
            // What merges parts knows no added tokens.
            Within::Unsplit(_) => all.is_empty(),
            _ => all.iter().all(|token| cuts.place(token, 1).is_none()),
        });
        if whole { cuts } else { cuts.at_added_only() }
    }

    /// Without the places within a part.
    pub fn at_added_only(self) -> Self {
        Self { within: Within::Nowhere, ..self }
    }

    /// No place at all.
    #[cfg(test)]
    pub const fn none() -> Self {
        let kinds = Kinds { cases: true, joiners: false, composed: true, gpt2: false, anywhere: false };
        Self { added: None, normalized: None, within: Within::Nowhere, kinds }
    }

    /// Whether texts are cut at added tokens.
    pub const fn at_added(&self) -> bool {
        self.added.is_some() || self.normalized.is_some()
    }

    /// What merges a part, where no pattern splits it.
    pub const fn unsplit(&self) -> Option<&Unsplit> {
        if let Within::Unsplit(unsplit) = &self.within { Some(unsplit) } else { None }
    }

    /// What the patterns keep in one pre-token, where there are places by patterns: without any known place
    /// nothing says that a long part is a run.
    pub fn kinds(&self) -> Option<Kinds> {
        matches!(self.within, Within::Patterns { .. }).then_some(self.kinds)
    }

    /// The parts between the added tokens of `text`, from byte `from` on, which must follow a token or be 0.
    pub fn parts<'t>(&'t self, text: &'t str, from: usize) -> impl Iterator<Item = Part<'t>> {
        let mut at = from;
        // The part up to the next token of the raw text: where it ends, where that token does, and whether one is there.
        let mut raw: Option<(usize, usize, bool)> = None;
        let mut over = false;
        std::iter::from_fn(move || {
            if over {
                return None;
            }
            let (stop, end, token) = *raw.get_or_insert_with(|| {
                let found = self.added.as_ref().and_then(|tokens| tokens.next(text, at..text.len()));
                found.map_or((text.len(), text.len(), false), |found| (found.start, found.end, true))
            });
            let start = at;
            if let Some(found) = self.normalized.as_ref().and_then(|tokens| tokens.next(text, at..stop)) {
                at = found.end;
                return Some(Part { text: &text[start..found.start], end: found.end, token: true });
            }
            (at, raw, over) = (end, None, !token);
            Some(Part { text: &text[start..stop], end, token })
        })
    }

    /// Finds where an added token ends that begins at or after a byte, which is to grow from call to call, and that is
    /// one whatever stands before it; `None` from where there is none on. All calls together take time linear in the
    /// text.
    pub fn tokens_behind<'t>(&'t self, text: &'t str) -> impl FnMut(usize) -> Option<usize> + 't {
        let (raw, normalized) = (self.added.as_ref(), self.normalized.as_ref());
        let mut first: Option<Range<usize>> = Some(0..0);
        move |least| {
            let least = least.min(text.len());
            if first.as_ref().is_some_and(|first| first.start < least.max(1)) {
                first = raw.and_then(|tokens| tokens.next_alone(text, least..text.len()));
            }
            let until = first.as_ref().map_or(text.len(), |first| first.start);
            let mut from = least;
            // Those of the raw text are cut out first: none may share a character with one of the others.
            while let Some(found) = normalized.and_then(|tokens| tokens.next_alone(text, from..until)) {
                let clear = |tokens: &AddedTokens| {
                    !tokens.may_reach_over(text.as_bytes(), found.start)
                        && !tokens.begins_in(text, found.clone())
                };
                if raw.is_none_or(clear) {
                    return Some(found.end);
                }
                from = found.end;
            }
            first.as_ref().map(|first| first.end)
        }
    }

    /// The first place in `text` at or after byte `least`, which is greater than 0.
    pub fn place(&self, text: &str, least: usize) -> Option<usize> {
        let bytes = text.as_bytes();
        let mut at = least.max(1);
        match &self.within {
            Within::Nowhere => None,
            Within::Unsplit(unsplit) => unsplit.place(text, at),
            Within::Patterns { newline } => loop {
                let (after, before) = (*bytes.get(at)?, bytes[at - 1]);
                let place = match after {
                    b' ' => !blank_before(text, at),
                    b'0'..=b'9' => before.is_ascii_alphabetic() || sign(before),
                    b'\'' => !*newline && before.is_ascii_alphabetic(),
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

/// The added tokens, those that are normalized or the others, at which texts are cut.
fn added(file: &Value, normalized: bool) -> Option<AddedTokens> {
    let entries = file.get("added_tokens")?.as_array()?;
    let flag = |entry: &Value, name: &str| entry.get(name).and_then(Value::as_bool).unwrap_or(false);
    let all: Vec<&Value> = entries.iter().filter(|entry| flag(entry, "normalized") == normalized).collect();
    let touches = |entry: &Value| ["lstrip", "rstrip", "single_word"].iter().any(|name| flag(entry, name));
    if entries.iter().any(touches) || !each_part_alone(file) {
        return None;
    }
    let contents: Option<Vec<&str>> = all.iter().map(|entry| entry.get("content")?.as_str()).collect();
    AddedTokens::new(&contents?)
}

/// Whether there is no normalizer.
fn is_unchanged(file: &Value) -> bool {
    steps(file, "normalizer", "normalizers").is_some_and(|steps| steps.is_empty())
}

/// The added tokens that may stand within a part; `None` where one reaches beyond itself.
fn tokens_within(file: &Value, cut_at_raw: bool, cut_at_normalized: bool) -> Option<Vec<&str>> {
    let entries = file.get("added_tokens").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let flag = |entry: &Value, name: &str| entry.get(name).and_then(Value::as_bool).unwrap_or(false);
    entries
        .iter()
        .filter(|entry| if flag(entry, "normalized") { !cut_at_normalized } else { !cut_at_raw })
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
fn kinds(file: &Value) -> Kinds {
    let steps = steps(file, "pre_tokenizer", "pretokenizers").unwrap_or_default();
    let regexes: Vec<&str> = steps.iter().filter_map(|step| regex(step)).collect();
    Kinds {
        cases: regexes.iter().any(|regex| regex.contains(r"\p{Lu}")),
        joiners: !regexes.iter().any(|regex| regex.contains(r"[\p{P}\p{S}]")),
        composed: file.get("normalizer").is_some_and(|step| step.to_string().contains("NF")),
        gpt2: regexes.is_empty(),
        anywhere: false,
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
    let unsplit = || Unsplit::read(file).map(|unsplit| Within::Unsplit(Box::new(unsplit)));
    patterns(file).or_else(unsplit).unwrap_or(Within::Nowhere)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cl100k() -> Value {
        json!({
            "normalizer": {"type": "NFC"},
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
    fn without_a_normalizer_what_is_left_is_cut_at_the_normalized_tokens() {
        let mut file = cl100k();
        file["normalizer"] = json!({"type": "Sequence", "normalizers": []});
        // A place within it is none: it is cut out before.
        file["added_tokens"][2]["content"] = json!("<|a");
        let cuts = Cuts::read(&file);
        assert!(cuts.kinds().is_some());
        let parts: Vec<_> = cuts.parts("x<|a<|a|>b<|ay", 0).collect();
        let part = |text, end, token| Part { text, end, token };
        assert_eq!(
            parts,
            [part("x", 4, true), part("", 10, true), part("", 13, true), part("y", 14, false)],
            "those of the raw text first"
        );
        let later: Vec<_> = cuts.parts("x<|a<|a|>b<|ay", 4).collect();
        assert_eq!(later, parts[1..]);
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
    fn by_gpt2s_own_pattern_an_apostrophe_behind_a_letter_begins_one() {
        let cuts = Cuts::read(&json!({
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "model": {"vocab": {}},
        }));
        assert_eq!((cuts.place("it's", 1), cuts.place("'''s", 1)), (Some(2), None));
        assert!(cuts.kinds().unwrap().gpt2 && !Cuts::read(&cl100k()).kinds().unwrap().gpt2);
        assert_eq!(Cuts::read(&cl100k()).place("it's", 1), None);
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
        let gemma = |replaced: &str| {
            Cuts::read(&json!({
                "normalizer": {"type": "Replace", "pattern": {"String": replaced}, "content": "▁"},
                "pre_tokenizer": null,
                "model": {"type": "BPE", "vocab": {"▁a": 0, ">▁</": 1, "▁▁": 2}},
            }))
        };
        let cuts = gemma(" ");
        assert_eq!((cuts.place("a> b c", 2), cuts.place("a> b c", 3)), (Some(3), Some(3)));
        assert_eq!(cuts.place("a  b", 2), Some(3));
        assert!(gemma("x").unsplit().is_none());
    }
}
