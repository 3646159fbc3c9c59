use super::*;
use crate::request::{Api, dialect};

fn reading(body: &str) -> Arc<Reading> {
    Arc::new(dialect::read(Api::Completions, body.as_bytes()).unwrap())
}

fn answering(count: u64) -> Ask {
    Arc::new(move |_| Box::pin(async move { Ok(count) }))
}

#[tokio::test]
async fn without_a_source_only_ids_are_counted() {
    let counter = Counter::new(&Settings::default());
    assert_eq!(counter.source().kind, "none");
    let text = counter.count(&reading(r#"{"prompt": "x"}"#), None, "t").await.unwrap();
    assert_eq!(text, Count::UNKNOWN);
    let ids = counter.count(&reading(r#"{"prompt": [[1, 2], [3]]}"#), None, "t").await.unwrap();
    assert_eq!(ids, Count { total: Tokens(3), longest: Tokens(2), certain: Certainty::Exact });
    let cut = reading(r#"{"prompt": [[1, 2, 3], [3]], "truncate_prompt_tokens": 2}"#);
    assert_eq!(counter.count(&cut, None, "t").await.unwrap().total, Tokens(3));
}

#[tokio::test]
async fn the_engine_is_asked_for_each_text() {
    let counter = Counter::new(&Settings::default());
    counter.use_engine(answering(7));
    assert_eq!(counter.source().kind, "engine");
    let two = counter.count(&reading(r#"{"prompt": ["a", "b"]}"#), None, "t").await.unwrap();
    assert_eq!(two, Count { total: Tokens(14), longest: Tokens(7), certain: Certainty::Exact });
    let many = format!("{{\"prompt\": {:?}}}", vec!["x"; 100]);
    assert_eq!(counter.count(&reading(&many), None, "t").await.unwrap(), Count::UNKNOWN);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_answer_leaves_the_count_unknown() {
    let counter = Counter::new(&Settings::default());
    counter.use_engine(Arc::new(|_| Box::pin(std::future::pending())));
    assert_eq!(counter.count(&reading(r#"{"prompt": "x"}"#), None, "t").await, Ok(Count::UNKNOWN));
    counter.use_engine(Arc::new(|_| Box::pin(async { Err("no".to_owned()) })));
    assert_eq!(counter.count(&reading(r#"{"prompt": "x"}"#), None, "t").await, Ok(Count::UNKNOWN));
}

#[tokio::test]
async fn one_in_so_many_counts_is_checked_and_a_wrong_one_ends_the_trust() {
    let encoder = || {
        let json = include_bytes!("../../sim/tokenizer/tokenizer.json");
        Arc::new(Encoder::from_parts(json, None, None).unwrap())
    };
    let counter = Counter::new(&Settings { check_one_in: 1, inline_bytes: 0, ..Settings::default() });
    let good = encoder();
    counter.use_encoder(Arc::clone(&good), "a test".to_owned());
    counter.count(&reading(r#"{"prompt": "a text of some words"}"#), None, "t").await.unwrap();
    assert_eq!(counter.source().library, Some("fastokens"));
    let (read, now) = (reading(r#"{"prompt": "a text of some words"}"#), SystemTime::now());
    let count = good.count(&read, now, None).unwrap();
    assert!(good.check(&read, now, count) && good.is_fast());
    assert!(!good.check(&read, now, Count::exact(count.total + Tokens(1))) && !good.is_fast());
    assert_eq!(counter.source().library, Some("tokenizers"));
    assert_eq!(good.count(&read, now, None).unwrap(), count, "the reference serves");
}

#[tokio::test]
async fn where_counts_drift_again_and_again_the_engine_is_asked_and_ours_stands_in_for_it() {
    let counter = Counter::new(&Settings::default());
    let json = include_bytes!("../../sim/tokenizer/tokenizer.json");
    counter.use_encoder(Arc::new(Encoder::from_parts(json, None, None).unwrap()), String::new());
    let read = reading(r#"{"prompt": "a text"}"#);
    let ours = counter.count(&read, None, "t").await.unwrap();
    (0..3).for_each(|_| counter.truth().compared(Api::Completions, 1, 2, "id"));
    assert_eq!(counter.count(&read, None, "t").await, Ok(ours), "nobody to ask");
    counter.use_engine(answering(77));
    assert_eq!(counter.count(&read, None, "t").await.unwrap().total, Tokens(77));
    counter.use_engine(Arc::new(|_| Box::pin(async { Err("no".to_owned()) })));
    assert_eq!(counter.count(&read, None, "t").await, Ok(ours));
}

#[tokio::test]
async fn a_tenant_that_has_used_up_its_share_is_told_and_others_are_counted() {
    let counter = Counter::new(&Settings { inline_bytes: 0, ..Settings::default() });
    let json = include_bytes!("../../sim/tokenizer/tokenizer.json");
    counter.use_encoder(Arc::new(Encoder::from_parts(json, None, None).unwrap()), String::new());
    counter.allowance().spent(number("greedy"), Duration::from_secs(10_000), Instant::now());
    let read = reading(r#"{"prompt": "x"}"#);
    assert!(matches!(counter.count(&read, None, "greedy").await, Err(CountError::Share { .. })));
    assert_eq!(counter.count(&read, None, "modest").await.unwrap().certain, Certainty::Exact);
}

#[tokio::test]
async fn what_cannot_be_counted_now_is_bounded_by_its_bytes() {
    let counter = Counter::new(&Settings { inline_bytes: 0, ..Settings::default() });
    let read = reading(r#"{"prompt": ["a few words", "two"], "add_special_tokens": false}"#);
    assert_eq!(counter.bound(&read, "t").await, None, "no tokenizer");
    let json = include_bytes!("../../sim/tokenizer/tokenizer.json");
    counter.use_encoder(
        Arc::new(Encoder::from_parts(json, None, Some("{{ messages[0].content }}{{ 'xy' }}")).unwrap()),
        String::new(),
    );
    let bound = counter.bound(&read, "t").await.unwrap();
    assert_eq!((bound.total, bound.longest), (Tokens(14), Tokens(11)));
    assert_eq!(bound.certain, Certainty::AtMost { likely: Tokens(3 + 1) }, "four bytes a token");
    let chat = |body: &str| Arc::new(dialect::read(Api::Chat, body.as_bytes()).unwrap());
    let words = chat(r#"{"messages": [{"role": "user", "content": "words"}]}"#);
    assert_eq!(counter.bound(&words, "t").await.unwrap().total, Tokens(7), "what the template adds is in it");
    let picture =
        r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}"#;
    assert_eq!(counter.bound(&chat(picture), "t").await, None, "the engine sees more than text");
    let own = chat(r#"{"messages": [{"role": "user", "content": "words"}], "chat_template": "{{ 1 }}"}"#);
    assert_eq!(counter.bound(&own, "t").await, None);
    assert!(counter.allowance().wait(number("t"), Instant::now()).is_none());
    (0..3).for_each(|_| counter.truth().compared(Api::Completions, 1, 2, "id"));
    assert_eq!(counter.bound(&read, "t").await, None, "our counts are not the engine's");
}

#[tokio::test]
async fn what_is_usual_is_learned_from_exact_counts() {
    let counter = Counter::new(&Settings { inline_bytes: 0, ..Settings::default() });
    let json = include_bytes!("../../sim/tokenizer/tokenizer.json");
    counter.use_encoder(Arc::new(Encoder::from_parts(json, None, None).unwrap()), String::new());
    let digits = reading(&format!("{{\"prompt\": \"{}\"}}", "7 ".repeat(2000)));
    let before = counter.guess(&digits.prompt).unwrap();
    for _ in 0..200 {
        counter.count(&digits, None, "t").await.unwrap();
    }
    let (after, exact) =
        (counter.guess(&digits.prompt).unwrap(), counter.count(&digits, None, "t").await.unwrap());
    assert!(
        before.get() < 1100 && after.get().abs_diff(exact.total.get()) * 3 < exact.total.get(),
        "{before} {after}"
    );
    assert_eq!(counter.guess(&Prompt::Unread { why: "x" }), None);
}

#[test]
fn a_conversation_goes_to_tokenize_with_all_that_changes_its_count() {
    let body = r#"{"messages": [{"role": "user", "content": "x"}], "tools": [{"a": 1}], "documents": [{"t": "d"}],
        "add_generation_prompt": false, "reasoning_effort": "low"}"#;
    let reading = dialect::read(Api::Chat, body.as_bytes()).unwrap();
    let want = serde_json::json!({
        "messages": [{"role": "user", "content": "x"}], "add_generation_prompt": false,
        "continue_final_message": false, "add_special_tokens": false, "tools": [{"a": 1}],
        "chat_template_kwargs": {"enable_thinking": true, "reasoning_effort": "low", "documents": [{"t": "d"}]},
    });
    assert_eq!(count_bodies_for_tokenize(&reading), [want]);
}
