//! Every count against the reference's.
//!
//! With real tokenizers: `KVGATE_TOKENIZERS=DIR cargo test --release --lib real_tokenizers -- --ignored` where
//! `tests/real/tokenizers.sh DIR` has fetched them; `KVGATE_STRINGS` sets how many strings each is tried on.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::tokens::selfcheck::CORNERS;

fn sim() -> Tokenizer {
    let mut tokenizer = Tokenizer::load(include_bytes!("../../sim/tokenizer/tokenizer.json")).unwrap();
    tokenizer.remember(1000);
    tokenizer
}

/// Texts of all kinds: words, scripts, blanks, runs, added tokens whole and in part, any character.
fn text(random: &mut fastrand::Rng, added: &[String], bytes: usize) -> String {
    const WORDS: [&str; 40] = [
        "the",
        " of",
        " and",
        "Hello",
        "WORLD",
        "camelCase",
        "don't",
        "I'LL",
        "we’ve",
        " fn main() {\n",
        "    let x = 1;\n",
        "\"key\": ",
        "null, ",
        "3.14",
        "2026-11-30",
        "0xFF",
        "http://example.com/a?b=c",
        "naïve",
        "Straße",
        "e\u{301}",
        "한국어 ",
        "日本語、",
        "你好，世界。",
        "Привет ",
        "مرحبا ",
        "नमस्ते ",
        "ไทย",
        "🙂",
        "👩‍👩‍👧",
        "\u{a0}",
        "\u{3000}",
        "\u{200b}",
        "\r\n",
        "\n\n",
        "\t",
        "  ",
        "...",
        "!?",
        "---",
        "**bold** ",
    ];
    const RUNS: [&str; 14] =
        ["a", "Z", " ", "\n", "\t", "7", "!", "的", "é", "\u{301}", "ab", "=", "\u{a0}", "🙂"];
    let mut text = String::new();
    while text.len() < bytes {
        match random.u32(0..24) {
            0 | 1 if !added.is_empty() => text.push_str(&added[random.usize(0..added.len())]),
            2 if !added.is_empty() => {
                let token = &added[random.usize(0..added.len())];
                text.extend(token.chars().skip(random.usize(0..2)).take(random.usize(1..8)));
            }
            3 => text.extend(std::iter::repeat_n(RUNS[random.usize(0..RUNS.len())], random.usize(1..20))),
            4 => text.extend((0..random.usize(1..6)).filter_map(|_| char::from_u32(random.u32(0..0x3_0000)))),
            5 => text.extend((0..random.usize(1..12)).map(|_| random.lowercase())),
            6 => text.extend((0..random.usize(1..12)).map(|_| random.alphanumeric())),
            7 => text.push(char::from(random.u8(0x20..0x7f))),
            8 if random.u8(0..8) == 0 => {
                text.extend((0..4).map(|_| ['ſ', '\'', 'T', 'E', CORNERS[1], 's'][random.usize(0..6)]));
            }
            9..=12 => text.push(' '),
            _ => text.push_str(WORDS[random.usize(0..WORDS.len())]),
        }
    }
    text
}

/// A long text: what [`text`] makes, and runs that are counted in chunks.
fn long(random: &mut fastrand::Rng, added: &[String]) -> String {
    let mut long = text(random, added, 2000);
    for _ in 0..random.usize(1..4) {
        let length = random.usize(10_000..150_000);
        const ALPHABETS: [&str; 28] = [
            "a",
            "ab",
            "abcdefghijklmnopqrstuvwxyz",
            "QWERTYUIOP",
            "aAbBcC",
            " ",
            "\n",
            "\r\n",
            " \t",
            " \n",
            "\u{a0} \u{3000}",
            "!",
            "#$%&*+'",
            "的一是不了人我在",
            "かな漢字カナ",
            "\u{301}",
            "\u{301}\u{323}",
            "=-",
            "é",
            "éàüÉÀÜ",
            "АаБбВв",
            "🙂!",
            "👩\u{200d}👧",
            "ᄀ",
            "0123456789",
            "'s",
            "\u{a0}",
            "aZ0+/",
        ];
        let alphabet = ALPHABETS[random.usize(0..ALPHABETS.len())];
        let letters: Vec<char> = alphabet.chars().collect();
        long.extend((0..length / letters[0].len_utf8()).map(|_| letters[random.usize(0..letters.len())]));
        let bytes = random.usize(0..3000);
        long.push_str(&text(random, added, bytes));
    }
    long
}

/// A run between characters that may change where its pre-token begins and ends.
fn bordered(random: &mut fastrand::Rng, added: &[String]) -> String {
    const BORDERS: [&str; 26] = [
        "", "!", "!\n", "x", "X", "'", "'s", " ", "\n", " \n", "的", "1", "/", "/*", "\"", "é", "\u{301}",
        "\u{316}", "🙂", ".\r\n", "a!", " x", "\u{a0}", "\n \n", "?\n/", "한",
    ];
    const RUNS: [&str; 18] = [
        "/", "!", "\n", " ", "x", "X", "的", "é", "\u{301}", "🙂", "=", "\t", " \n", "xX", "'", "#/", "17",
        "\u{a0}",
    ];
    let border = |random: &mut fastrand::Rng| BORDERS[random.usize(0..BORDERS.len())];
    let mut text = String::new();
    for _ in 0..random.usize(1..3) {
        for _ in 0..random.usize(0..4) {
            text.push_str(border(random));
        }
        let run: Vec<char> = RUNS[random.usize(0..RUNS.len())].chars().collect();
        let length = random.usize(20_000..50_000) / run[0].len_utf8();
        text.extend((0..length).map(|_| run[random.usize(0..run.len())]));
        for _ in 0..random.usize(0..6) {
            text.push_str(border(random));
        }
        if random.bool() && !added.is_empty() {
            text.push_str(&added[random.usize(0..added.len())]);
        }
    }
    text
}

fn differs(tokenizer: &Tokenizer, text: &str, special: bool) -> Option<String> {
    let wanted = tokenizer.backend.reference_ids(text, special).unwrap();
    let count = tokenizer.count(text, special, &Extent::WHOLE).unwrap();
    let ids = tokenizer.backend.ids(text, special).unwrap();
    let most = tokenizer.at_most(text, special).unwrap_or(u64::MAX);
    if (count.tokens, count.whole) == (wanted.len() as u64, true)
        && ids == wanted
        && most >= wanted.len() as u64
    {
        return None;
    }
    let shown: String = text.chars().take(120).collect();
    Some(format!(
        "{} tokens, counted {}, {} ids, at most {most}: {shown:?}",
        wanted.len(),
        count.tokens,
        ids.len()
    ))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_is_counted_as_the_reference_counts_it(any in ".{0,200}", seed in any::<u64>(), special in any::<bool>()) {
        let tokenizer = sim();
        let random = &mut fastrand::Rng::with_seed(seed);
        let made = text(random, tokenizer.backend.added(), 3000);
        for text in [any, made] {
            prop_assert_eq!(differs(&tokenizer, &text, special), None);
            // And once more, from what is remembered.
            prop_assert_eq!(differs(&tokenizer, &text, special), None);
        }
    }

    #[test]
    fn counting_stops_once_there_are_enough_and_never_says_more_than_there_are(seed in any::<u64>(), enough in 0u64..20_000) {
        let tokenizer = sim();
        let text = long(&mut fastrand::Rng::with_seed(seed), tokenizer.backend.added());
        let whole = tokenizer.backend.reference_ids(&text, true).unwrap().len() as u64;
        let counted = tokenizer.count(&text, true, &Extent { enough, until: None }).unwrap();
        if counted.whole {
            prop_assert_eq!(counted.tokens, whole);
        } else {
            prop_assert!(enough <= counted.tokens && counted.tokens <= whole);
        }
    }
}

/// Files of one form each, with the vocabulary of the bytes and few merges: many tokens for each byte.
fn with_few_merges() -> Vec<(&'static str, Tokenizer)> {
    let byte_level: Vec<String> = ('!'..='~')
        .chain('¡'..='¬')
        .chain('®'..='ÿ')
        .chain((256..324).filter_map(char::from_u32))
        .map(String::from)
        .collect();
    let fallback: Vec<String> = (0..256)
        .map(|byte| format!("<0x{byte:02X}>"))
        .chain(["▁", "a", "b", "é"].map(String::from))
        .collect();
    let spaces = serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let bytes = |prefix: bool| serde_json::json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": false, "use_regex": true});
    let form = |kind: &str| serde_json::json!({ "type": kind });
    let cases = [
        ("bytes", &byte_level, Value::Null, bytes(false)),
        ("a blank before", &byte_level, Value::Null, bytes(true)),
        ("NFC", &byte_level, form("NFC"), bytes(false)),
        ("NFKC", &byte_level, form("NFKC"), bytes(false)),
        ("NFD", &byte_level, form("NFD"), bytes(false)),
        ("NFKD", &byte_level, form("NFKD"), bytes(false)),
        ("small letters", &byte_level, form("Lowercase"), bytes(false)),
        ("fallback", &fallback, spaces.clone(), Value::Null),
        ("fallback, composed", &fallback, form("NFC"), Value::Null),
        (
            "prepended",
            &fallback,
            serde_json::json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}),
            Value::Null,
        ),
        (
            "no entry",
            &fallback,
            serde_json::json!({"type": "Replace", "pattern": {"String": "b"}, "content": "▂▂"}),
            Value::Null,
        ),
    ];
    cases
        .into_iter()
        .map(|(name, entries, normalizer, pre_tokenizer)| {
            let vocab: serde_json::Map<String, Value> =
                entries.iter().enumerate().map(|(id, entry)| (entry.clone(), id.into())).collect();
            let file = serde_json::json!({
                "version": "1.0", "truncation": null, "padding": null,
                "added_tokens": [{"id": entries.len(), "content": "<s>", "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": true}],
                "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
                "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "vocab": vocab,
                    "merges": []},
            });
            (name, Tokenizer::load(file.to_string().as_bytes()).unwrap())
        })
        .collect()
}

#[test]
fn no_text_has_more_tokens_than_its_bytes_allow() {
    let mut random = fastrand::Rng::with_seed(7);
    let added = ["<s>".to_owned()];
    for (name, tokenizer) in with_few_merges() {
        let mut reached = 0.0_f64;
        for number in 0..2000 {
            let made = match number % 4 {
                0 => text(&mut random, &added, 100),
                1 => "ab é<s>".chars().map(|c| String::from(c).repeat(random.usize(0..5))).collect(),
                2 => (0..20).filter_map(|_| char::from_u32(random.u32(0..0x3_0000))).collect(),
                _ => ["\u{344}", "\u{fdfa}", "\u{390}", "\u{1d160}", "b", "Ⱥ", "<s>", ""][number / 4 % 8]
                    .repeat(number % 9),
            };
            let most = tokenizer.at_most(&made, false).unwrap();
            let true_count = tokenizer.backend.reference_ids(&made, false).unwrap().len() as u64;
            assert!(true_count <= most, "{name}: {true_count} tokens, bound {most}: {made:?}");
            reached = reached.max(true_count as f64 / most as f64);
        }
        assert!(reached > 0.6, "{name}: no text comes near its bound: {reached}");
    }
}

#[test]
fn what_composing_makes_of_an_added_token_or_into_one_is_counted_as_the_reference_does() {
    let (_, tokenizer) = with_few_merges().into_iter().find(|(name, _)| *name == "NFKC").unwrap();
    assert!(tokenizer.backend.is_fast());
    for text in ["a<s>\u{338}b", "a＜s＞b", "<\u{338}s><s>é\u{301}", "＜s>"] {
        assert_eq!(differs(&tokenizer, text, false), None);
    }
}

#[test]
fn what_would_take_too_long_is_not_begun() {
    let tokenizer = sim();
    let until = Some(Instant::now());
    let counted = tokenizer.count(&"a".repeat(1 << 20), false, &Extent { enough: u64::MAX, until });
    assert_eq!(counted, Err(CountError::TooDear));
}

#[test]
fn the_next_turn_is_looked_up_and_counted_the_same() {
    let tokenizer = sim();
    let token = tokenizer.backend.added()[0].clone();
    let turn = format!("user asks a question of some length, {}{token}", "again and again ".repeat(40));
    let mut conversation = String::new();
    for turns in 1..20 {
        conversation.push_str(&turn);
        assert_eq!(differs(&tokenizer, &conversation, true), None, "after {turns} turns");
    }
    assert!(tokenizer.remembered() > 10);
}

#[test]
#[ignore = "needs real tokenizers: the step `exact` of .ci/run fetches them and runs it"]
fn real_tokenizers_are_counted_as_the_reference_counts() {
    let dir =
        PathBuf::from(std::env::var_os("KVGATE_TOKENIZERS").expect("KVGATE_TOKENIZERS names their folder"));
    let strings: u64 = std::env::var("KVGATE_STRINGS").map_or(20_000, |n| n.parse().unwrap());
    let mut failures = Vec::new();
    let mut folders: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let mut tried = 0;
    for folder in folders {
        let Ok(json) = std::fs::read(folder.join("tokenizer.json")) else { continue };
        tried += 1;
        let mut tokenizer = Tokenizer::load(&json).unwrap();
        tokenizer.remember(50_000);
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let added = tokenizer.backend.added().to_vec();
        let mut random = fastrand::Rng::with_seed(strings);
        let (mut wrong, mut in_chunks) = (0, 0);
        for number in 0..strings {
            let made = if number % 1000 == 0 {
                in_chunks += 1;
                long(&mut random, &added)
            } else if number % 100 == 0 {
                bordered(&mut random, &added)
            } else {
                let bytes = if number % 50 == 0 { 3000 } else { random.usize(1..90) };
                text(&mut random, &added, bytes)
            };
            let (mut from, mut behind) = (0, tokenizer.cuts.tokens_behind(&made));
            while let Some(end) = behind(from) {
                let mut parts = tokenizer.cuts.parts(&made, 0);
                assert!(parts.any(|part| part.token && part.end == end), "{name}: {end} in {made:?}");
                from = end + random.usize(0..100);
            }
            if let Some(difference) = differs(&tokenizer, &made, number % 3 == 0) {
                wrong += 1;
                failures.extend((wrong <= 3).then(|| format!("{name}: {difference}")));
            }
        }
        let path = tokenizer.backend.path();
        let bound = tokenizer.at_most("a\u{344} ", false);
        eprintln!(
            "{name:12} {path:?} bound of 4 bytes: {bound:?} corners by the reference: {}: {strings} strings, {in_chunks} long, {wrong} wrong",
            tokenizer.backend.corners()
        );
    }
    assert!(tried > 0, "no tokenizer there");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
