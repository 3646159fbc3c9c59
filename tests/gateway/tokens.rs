//! Counts against what a real vLLM 0.32.0 counted (`tests/data/tokens/*.jsonl`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use kvgate::request::{Api, Certainty, Count, Prompt, Reading, Route, Tokens, dialect, route};
use kvgate::tokens::{CountError, Counter, Encoder, Settings};
use proptest::prelude::*;
use serde_json::{Value, json};

const FAMILIES: [&str; 2] = ["llama3", "qwen2"];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokens").join(name)
}

fn encoder(family: &str) -> Encoder {
    Encoder::load(&data(&format!("tiny-{family}")), None).unwrap()
}

fn golden(family: &str) -> Vec<Value> {
    let text = fs::read_to_string(data(&format!("golden_{family}.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn read(api: Api, body: &Value) -> Reading {
    dialect::read(api, body.to_string().as_bytes()).unwrap()
}

fn now() -> SystemTime {
    SystemTime::now()
}

#[test]
fn every_golden_request_is_counted_as_the_engine_counted_it() {
    for family in FAMILIES {
        let encoder = encoder(family);
        let mut counted = 0;
        for row in golden(family) {
            let name = &row["name"];
            let path = row["request_path"].as_str().unwrap();
            let Route::Prompt(api) = route(&http::Method::POST, path) else { continue };
            let reading = read(api, &row["request_body"]);
            let count = encoder.count(&reading, now(), None);
            if row["status"] != 200 {
                let left = matches!(reading.prompt, Prompt::Unread { .. });
                assert!(left || count.is_err(), "{family} {name}: {count:?}");
                continue;
            }
            let count = count.unwrap();
            assert_eq!(count.certain, Certainty::Exact, "{family} {name}");
            assert_eq!(json!(count.total), row["prompt_tokens"], "{family} {name}");
            if let Some(want) = row["token_ids"].as_array() {
                let ids = encoder.ids(&reading, now()).unwrap();
                assert_eq!(json!(ids), json!([want]), "{family} {name}");
            }
            counted += 1;
        }
        assert_eq!(counted, 37, "{family}");
    }
}

#[test]
fn a_prompt_over_the_limit_is_at_least_one_over_it() {
    let encoder = encoder("llama3");
    let reading = read(Api::Completions, &json!({"prompt": "a".repeat(900_000)}));
    let started = tokio::time::Instant::now();
    let count = encoder.count(&reading, now(), Some(Tokens(2048))).unwrap();
    let over = Tokens(2049);
    assert_eq!(count, Count { total: over, longest: over, certain: Certainty::AtLeast });
    assert!(started.elapsed().as_millis() < 100, "it was not tokenized");
    // vLLM's own bound here: 221 184 characters for 2048 tokens.
    let below = read(Api::Completions, &json!({"prompt": "a".repeat(221_184)}));
    assert_eq!(encoder.count(&below, now(), Some(Tokens(2048))).unwrap().certain, Certainty::Exact);
}

#[test]
fn truncation_keeps_what_the_engine_keeps() {
    let encoder = encoder("llama3");
    let body = |keep: i64| json!({"prompt": "hello world ".repeat(3000), "truncate_prompt_tokens": keep});
    let count = |keep, limit| encoder.count(&read(Api::Completions, &body(keep)), now(), limit).unwrap();
    assert_eq!(count(100, None), Count::exact(Tokens(100)));
    assert_eq!(count(100, Some(Tokens(2048))), Count::exact(Tokens(100)));
    assert_eq!(count(0, None), Count::exact(Tokens(0)));
    let whole = count(-1, None);
    assert!(whole.total > Tokens(2047));
    assert_eq!(whole.cut_to(Tokens(2047)), Count::exact(Tokens(2047)));
    assert_eq!(count(-1, Some(Tokens(10))).cut_to(Tokens(2047)).total, Tokens(11));
}

#[test]
fn images_make_a_count_a_lower_bound() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let text = json!({"type": "text", "text": "what is it?"});
    let with = read(Api::Chat, &json!({"messages": [{"role": "user", "content": [image, text]}]}));
    let without = read(Api::Chat, &json!({"messages": [{"role": "user", "content": "what is it?"}]}));
    let encoder = encoder("qwen2");
    let (with, without) = (encoder.count(&with, now(), None), encoder.count(&without, now(), None));
    assert_eq!(with.unwrap(), Count { certain: Certainty::AtLeast, ..without.unwrap() });
}

#[test]
fn a_requests_own_template_is_rendered_only_where_it_is_trusted() {
    let body =
        json!({"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ messages[0].content }}"});
    let reading = read(Api::Chat, &body);
    let encoder = encoder("qwen2");
    assert_eq!(encoder.count(&reading, now(), None), Ok(Count::UNKNOWN));
    let settings =
        Settings { trust_request_chat_template: true, template_fuel: 100_000, ..Settings::default() };
    let encoder = encoder.with_options((&settings).into());
    assert_eq!(encoder.count(&reading, now(), None), Ok(Count::exact(Tokens(1))));
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
    let endless = read(Api::Chat, &json!({"messages": body["messages"], "chat_template": endless}));
    assert_eq!(
        encoder.count(&endless, now(), None),
        Err(CountError::TemplateEndless { fuel: 100_000 }),
        "a hostile template ends by its fuel"
    );
}

#[test]
fn a_tokenizer_without_a_template_counts_texts_only() {
    let json = fs::read(data("tiny-qwen2/tokenizer.json")).unwrap();
    let encoder = Encoder::from_parts(&json, None, None).unwrap();
    let chat = read(Api::Chat, &json!({"messages": [{"role": "user", "content": "x"}]}));
    assert!(matches!(encoder.count(&chat, now(), None), Err(CountError::NoTemplate { .. })));
    assert_eq!(encoder.encode("Hi there", true).unwrap().len(), 3);
    assert!(Encoder::from_parts(b"{}", None, None).is_err());
    let named = json!({"bos_token": {"content": "B"}, "chat_template": [
        {"name": "default", "template": "{{ bos_token }}"}, {"name": "tool_use", "template": "{{ tools|length }}ab"}]});
    let encoder = Encoder::from_parts(&json, Some(named.to_string().as_bytes()), None).unwrap();
    let ids = encoder.ids(&chat, now()).unwrap();
    assert_eq!(ids, [Some(encoder.encode("B", false).unwrap())]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let chat = read(Api::Chat, &json!({"messages": [{"role": "user", "content": "x"}], "tools": tools}));
    assert_eq!(encoder.ids(&chat, now()).unwrap(), [Some(encoder.encode("1ab", false).unwrap())]);
}

#[tokio::test]
async fn long_and_short_prompts_are_counted_alike_in_any_lane() {
    let encoder = Arc::new(encoder("llama3"));
    let counter = Counter::new(&Settings { inline_bytes: 100, long_bytes: 10_000, ..Settings::default() });
    counter.use_encoder(Arc::clone(&encoder), "a test".to_owned());
    assert_eq!(counter.source().said_by.as_deref(), Some("a test"));
    for words in [1, 100, 5_000] {
        let reading = read(Api::Completions, &json!({"prompt": "hello world ".repeat(words)}));
        let reading = Arc::new(reading);
        assert_eq!(counter.count(&reading, None, "t").await, encoder.count(&reading, now(), None), "{words}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_count_is_the_number_of_ids_and_no_bound_contradicts_it(
        text in "[ a-zé\u{1f680}\n]{0,300}",
        times in 1_usize..20,
        limit in 0_u64..40,
    ) {
        static ENCODER: std::sync::OnceLock<Encoder> = std::sync::OnceLock::new();
        let encoder = ENCODER.get_or_init(|| encoder("qwen2"));
        let reading = read(Api::Completions, &json!({"prompt": [text.repeat(times), text]}));
        let ids = encoder.ids(&reading, now()).unwrap();
        let lengths: Vec<u64> = ids.into_iter().map(|ids| ids.unwrap().len() as u64).collect();
        let exact = encoder.count(&reading, now(), None).unwrap();
        prop_assert_eq!(exact.total, Tokens(lengths.iter().sum()));
        prop_assert_eq!(exact.longest, Tokens(lengths.iter().copied().max().unwrap()));
        let bounded = encoder.count(&reading, now(), Some(Tokens(limit))).unwrap();
        if bounded.certain == Certainty::AtLeast {
            prop_assert!(exact.longest > Tokens(limit) && exact.total >= bounded.total);
        } else {
            prop_assert_eq!(bounded, exact);
        }
    }

    #[test]
    fn any_conversation_is_counted_or_refused_without_panic(
        role in "user|assistant|system|tool|developer|x",
        content in "[a-z{}%<|>\\\\\"]{0,40}",
        shape in 0_usize..8,
    ) {
        static ENCODER: std::sync::OnceLock<Encoder> = std::sync::OnceLock::new();
        let encoder = ENCODER.get_or_init(|| encoder("llama3"));
        let content = match shape {
            0 => json!(null),
            1 => json!([content]),
            2 => json!([{"type": "text", "text": content}, {"type": "text"}]),
            3 => json!({"a": content}),
            4 => json!(5),
            5 => json!([{"type": content}]),
            _ => json!(content),
        };
        let calls = json!([{"function": {"arguments": content}}]);
        let body = json!({"messages": [{"role": role, "content": content, "tool_calls": calls}],
            "continue_final_message": shape == 7, "add_generation_prompt": shape != 7});
        let _ = encoder.count(&read(Api::Chat, &body), now(), None);
    }
}
