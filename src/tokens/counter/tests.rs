use std::sync::atomic::AtomicBool;

use super::*;
use crate::request::{Api, dialect};

fn reading(body: &str) -> Reading {
    dialect::read(Api::Completions, body.as_bytes()).unwrap()
}

fn answering(count: u64) -> Ask {
    Arc::new(move |_| Box::pin(async move { Ok(count) }))
}

#[tokio::test]
async fn without_a_source_only_ids_are_counted() {
    let counter = Counter::new(&Settings::default());
    assert_eq!(counter.source().kind, "none");
    let text = counter.count(&reading(r#"{"prompt": "x"}"#), None).await.unwrap();
    assert_eq!(text, Count::UNKNOWN);
    let ids = counter.count(&reading(r#"{"prompt": [[1, 2], [3]]}"#), None).await.unwrap();
    assert_eq!(ids, Count { total: Tokens(3), longest: Tokens(2), certain: Certainty::Exact });
    let cut = reading(r#"{"prompt": [[1, 2, 3], [3]], "truncate_prompt_tokens": 2}"#);
    assert_eq!(counter.count(&cut, None).await.unwrap().total, Tokens(3));
}

#[tokio::test]
async fn the_engine_is_asked_for_each_text() {
    let counter = Counter::new(&Settings::default());
    counter.use_engine(answering(7));
    assert_eq!(counter.source().kind, "engine");
    let two = counter.count(&reading(r#"{"prompt": ["a", "b"]}"#), None).await.unwrap();
    assert_eq!(two, Count { total: Tokens(14), longest: Tokens(7), certain: Certainty::Exact });
    let many = format!("{{\"prompt\": {:?}}}", vec!["x"; 100]);
    assert_eq!(counter.count(&reading(&many), None).await.unwrap(), Count::UNKNOWN);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_answer_leaves_the_count_unknown() {
    let counter = Counter::new(&Settings::default());
    counter.use_engine(Arc::new(|_| Box::pin(std::future::pending())));
    assert_eq!(counter.count(&reading(r#"{"prompt": "x"}"#), None).await, Ok(Count::UNKNOWN));
    counter.use_engine(Arc::new(|_| Box::pin(async { Err("no".to_owned()) })));
    assert_eq!(counter.count(&reading(r#"{"prompt": "x"}"#), None).await, Ok(Count::UNKNOWN));
}

#[tokio::test]
async fn a_full_lane_says_busy_and_a_dropped_waiter_is_never_started() {
    let lane = Arc::new(Lane::new(1, 1));
    let (release, held) = std::sync::mpsc::channel::<()>();
    let busy = tokio::spawn({
        let lane = Arc::clone(&lane);
        async move { lane.run(move || held.recv()).await }
    });
    while lane.turns.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let started = Arc::new(AtomicBool::new(false));
    let waiter = tokio::spawn({
        let (lane, started) = (Arc::clone(&lane), Arc::clone(&started));
        async move { lane.run(move || started.store(true, Ordering::SeqCst)).await }
    });
    while lane.waiting.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(lane.run(|| ()).await, Err(CountError::Busy { waiting: 1, limit: 1 }));
    waiter.abort();
    assert!(waiter.await.is_err());
    release.send(()).unwrap();
    busy.await.unwrap().unwrap().unwrap();
    assert_eq!(lane.run(|| 5).await, Ok(5));
    assert!(!started.load(Ordering::SeqCst));
    assert_eq!(lane.waiting.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_panic_in_a_lane_is_an_error_and_gives_the_turn_back() {
    let lane = Lane::new(1, 1);
    assert_eq!(lane.run(|| panic!("x")).await.map(|()| 0), Err(CountError::Stopped));
    assert_eq!(lane.run(|| 5).await, Ok(5));
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
