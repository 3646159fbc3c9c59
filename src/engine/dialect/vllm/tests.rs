use proptest::prelude::*;

use super::*;

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engine/", $name))
    };
}

fn read(page: &[u8]) -> Sample {
    sample(page, Instant::now()).unwrap()
}

#[test]
fn an_idle_engine_is_read() {
    let s = read(data!("metrics_idle.prom"));
    assert_eq!((s.running, s.waiting, s.kv_usage), (0.0, 0.0, Some(0.0)));
    assert_eq!(s.start_time, Some(1.79604891183e9));
    assert_eq!((s.steps_total, s.generation_tokens_total), (Some(0.0), Some(0.0)));
    assert!(!s.sleeping && !s.has_work());
    let pool = s.pool.unwrap();
    assert_eq!((pool.block_size, pool.blocks, pool.ranks), (32, 80, 1));
    assert_eq!((pool.tokens, pool.total(), pool.ceiling()), (Tokens(79 * 32), Tokens(2528), Tokens(2528)));
    assert_eq!((pool.kv_cache_size_tokens, pool.prefix_caching), (Some(Tokens(2560)), Some(true)));
}

#[test]
fn a_saturated_engine_is_read() {
    let s = read(data!("saturated_metrics.prom"));
    assert_eq!((s.running, s.waiting, s.kv_usage), (3.0, 5.0, Some(1.0)));
    assert_eq!((s.steps_total, s.generation_tokens_total), (Some(802.0), Some(2214.0)));
    assert_eq!((s.prefix_queries_total, s.prefix_hits_total), (Some(12127.0), Some(6048.0)));
    assert_eq!((s.preemptions_total, s.prompt_tokens_total), (Some(0.0), Some(12127.0)));
    assert!(s.has_work());
}

#[test]
fn a_killed_engine_still_shows_the_gauges_of_its_last_moment() {
    let before = read(data!("kill_engine_metrics_before.prom"));
    let dead = read(data!("kill_engine_metrics_dead.prom"));
    assert_eq!(before.start_time, dead.start_time);
    assert_eq!((dead.running, dead.waiting), (4.0, 2.0));
}

#[test]
fn data_parallel_ranks_add_up_and_the_fullest_counts() {
    let s = read(data!("dp2_metrics_busy3.prom"));
    assert_eq!(s.ranks.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["0", "1"]);
    assert_eq!(s.kv_usage, Some(0.9620253164556962));
    assert_eq!(s.running, s.ranks[0].running + s.ranks[1].running);
}

#[test]
fn the_blocks_of_data_parallel_ranks_are_a_sum() {
    // The page says 160 blocks; usage moves in steps of 1/79: each rank has 80.
    let s = read(data!("dp2_metrics_busy3.prom"));
    let steps = s.kv_usage.unwrap() * 79.0;
    assert!((steps - steps.round()).abs() < 1e-9);
    let pool = s.pool.unwrap();
    assert_eq!((pool.blocks, pool.ranks, pool.tokens, pool.total()), (80, 2, Tokens(2528), Tokens(5056)));
}

#[test]
fn older_versions_are_read_by_their_own_names() {
    let v0 = "vllm:num_requests_running{model_name=\"m\"} 2.0\n\
        vllm:num_requests_waiting{model_name=\"m\"} 1.0\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.25\n\
        vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1001\",enable_prefix_caching=\"None\"} 1.0\n\
        vllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 9\n";
    let s = read(v0.as_bytes());
    assert_eq!((s.running, s.waiting, s.kv_usage, s.ranks.len()), (2.0, 1.0, Some(0.25), 1));
    let pool = s.pool.unwrap();
    assert_eq!((pool.tokens, pool.kv_cache_size_tokens), (Tokens(16_000), None));
    assert_eq!((s.start_time, s.preemptions_total, s.prefix_hits_total), (None, None, Some(9.0)));
}

#[test]
fn where_layers_share_the_pool_the_engines_own_number_counts() {
    let page = "vllm:num_requests_running 0\n\
        vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\",kv_cache_size_tokens=\"8000\"} 1\n";
    let pool = read(page.as_bytes()).pool.unwrap();
    assert_eq!((pool.tokens, pool.ceiling()), (Tokens(7992), Tokens(15_984)));
}

#[test]
fn a_sleeping_engine_is_noticed() {
    let page = "vllm:num_requests_running 0\nvllm:engine_sleep_state{sleep_state=\"awake\"} 0.0\n";
    assert!(read(page.as_bytes()).sleeping);
}

#[test]
fn another_engines_page_is_no_sample() {
    for page in ["", "process_start_time_seconds 1\n", "llamacpp:requests_processing 0\n", "<html>"] {
        assert_eq!(sample(page.as_bytes(), Instant::now()), None);
    }
}

#[test]
fn the_captured_answers_are_recognised() {
    for (status, body, expected) in [
        (500, &data!("dead_plain.json")[..], Said::Dead),
        (0, &data!("dead_event.txt")[..], Said::Dead),
        (503, &data!("busy_plain.json")[..], Said::Busy),
        (0, br#"data: {"error": {"message": "The engine is currently busy and cannot accept new requests. Please", "code": 503}}"#, Said::Busy),
        (0, b"event: error\ndata:{\"type\":\"error\",\"error\":{\"type\":\"x\",\"message\":\"EngineCore encountered an issue. S\"}}\n\n", Said::Dead),
        (500, br#"{"object":"error","message":"Background loop has errored already.","type":"x","code":500}"#, Said::Dead),
        (500, b"Internal Server Error", Said::Other),
        (500, b"EngineDeadError()", Said::Dead),
        (503, b"", Said::Other),
        (400, &data!("dead_plain.json")[..], Said::Other),
        (200, &data!("dead_plain.json")[..], Said::Other),
    ] {
        assert_eq!(said(status, body), expected, "{status} {}", String::from_utf8_lossy(body));
    }
}

#[test]
fn the_same_words_in_generated_text_mean_nothing() {
    for event in [
        r#"data: {"choices":[{"delta":{"content":"EngineCore encountered an issue. See stack trace"}}]}"#,
        r#"data: {"message":"EngineCore encountered an issue","object":"chat.completion.chunk"}"#,
        r#"data: {"error":{"message":"prompt `EngineCore encountered an issue` is bad"}}"#,
        "data: EngineCore encountered an issue",
    ] {
        assert_eq!(said(0, event.as_bytes()), Said::Other, "{event}");
    }
    let echoed = r#"{"error":{"message":"cannot parse: The engine is currently busy"}}"#;
    assert_eq!(said(500, echoed.as_bytes()), Said::Other);
}

proptest! {
    #[test]
    fn any_label_values_give_a_pool_or_none(
        block in "[0-9]{0,21}|None", blocks in "[0-9]{0,21}|None", tokens in "[0-9]{0,21}|None", ranks in 1..4u32,
    ) {
        let mut page = "vllm:num_requests_running 0\n".to_owned();
        for rank in 0..ranks {
            page += &format!(
                "vllm:cache_config_info{{block_size=\"{block}\",num_gpu_blocks=\"{blocks}\",kv_cache_size_tokens=\"{tokens}\",engine=\"{rank}\"}} 1\n"
            );
        }
        if let Some(pool) = read(page.as_bytes()).pool {
            prop_assert!(pool.blocks > 0 && pool.ceiling() >= pool.tokens);
        }
    }

    #[test]
    fn any_answer_is_judged_without_a_panic(status in 0..600u16, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = said(status, &body);
        let mut body = body;
        body.extend_from_slice(b"\ndata: {\"error\": \"EngineDeadError");
        let _ = said(status, &body);
    }

    #[test]
    fn a_mutated_capture_gives_sane_numbers(
        edits in proptest::collection::vec((0..9000usize, any::<u8>()), 0..60),
    ) {
        let mut page = data!("dp2_metrics_busy3.prom").to_vec();
        for (at, byte) in edits {
            if let Some(b) = page.get_mut(at) {
                *b = byte;
            }
        }
        if let Some(s) = sample(&page, Instant::now()) {
            prop_assert!(s.kv_usage.is_none_or(|u| (0.0..=1.0).contains(&u)));
            prop_assert!(s.running >= 0.0 && s.waiting >= 0.0);
        }
    }
}
