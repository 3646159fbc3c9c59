//! Engines that answer nonsense, and clients that mean harm: nothing panics, nothing grows, all end.

use serde_json::json;

use crate::support::{Engine, Gate, completion, get, soon, until};

async fn pair() -> (Engine, Gate) {
    let engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    (engine, gate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_from_the_engine_is_a_503_and_nothing_worse() {
    let (mut engine, gate) = pair().await;
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "h".repeat(1_000_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(10_000));
    let answers = [
        "",
        "\r\n",
        "nonsense\r\n\r\n",
        "HTTP/1.1 99 Low\r\n\r\n",
        "HTTP/1.1 1000 High\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n",
        huge.as_str(),
        many.as_str(),
    ];
    for answer in answers {
        let start: String = answer.chars().take(60).collect();
        let mut client = gate.client().await;
        client.send(completion(&json!({"prompt": "Hi"}))).await;
        let mut exchange = engine.next().await;
        exchange.try_send(answer).await;
        exchange.close().await;
        let got = soon(&format!("an answer after {start:?}"), client.answer()).await;
        assert_eq!((got.status, got.code().as_str()), (503, "engine_crashed"), "{start:?}: {got:?}");
        gate.engine("ready").await;
    }
    gate.idle().await;
    assert!(gate.reports().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_answers_of_the_engine_end() {
    let (mut engine, gate) = pair().await;
    let answers = [
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\nmore",
        "HTTP/1.0 200 OK\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 599 Odd\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}",
    ];
    for path in ["/v1/completions", "/v1/embeddings"] {
        for answer in answers {
            let mut client = gate.client().await;
            client
                .send(crate::support::client::post(
                    path,
                    &[("Connection", "close")],
                    &json!({"prompt": "Hi"}),
                ))
                .await;
            let mut exchange = engine.next().await;
            exchange.try_send(answer).await;
            exchange.close().await;
            let (got, _) = soon(&format!("the end after {answer:?}"), client.rest()).await;
            let text = String::from_utf8_lossy(&got);
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 "), "{answer:?}: {text}");
            assert!(!text.contains("more"), "{answer:?}: {text}");
            gate.engine("ready").await;
        }
    }
    gate.idle().await;
    assert!(gate.reports().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_on_the_engine_s_pages_leaves_the_gate_serving() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    let hole = "vllm:num_requests_running NaN\nvllm:num_requests_waiting -1e308\nvllm:kv_cache_usage_perc 1e308\n\
                vllm:cache_config_info{block_size=\"0\",num_gpu_blocks=\"0\"} 1\n";
    let vast = "process_start_time_seconds 1.79e9\nvllm:num_requests_running 1e308\nvllm:num_requests_waiting +Inf\n\
                vllm:cache_config_info{block_size=\"18446744073709551615\",num_gpu_blocks=\"18446744073709551615\"} 1\n\
                vllm:kv_cache_usage_perc -5\nvllm:generation_tokens_total 1e300\n";
    let one = "process_start_time_seconds 1.79e9\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n\
               vllm:cache_config_info{block_size=\"1\",num_gpu_blocks=\"1\"} 1\nvllm:kv_cache_usage_perc 1\n";
    let pages: [&[u8]; 7] =
        [b"", b"\xff\xfe\x00", hole.as_bytes(), vast.as_bytes(), one.as_bytes(), b"{", &[b'a'; 5_000_000]];
    for page in pages {
        engine.face(|f| (f.page, f.reads) = (Some(page.to_vec()), 0));
        // When a read has begun, the one before it was taken in: after three the page was taken in twice, and
        // the gate still lets one request through.
        until("three reads of the page", async || (engine.face(|f| f.reads) >= 3).then_some(())).await;
        let mut client = gate.client().await;
        client.send(completion(&json!({"prompt": "Hi", "max_tokens": 4}))).await;
        let exchange = engine.next().await;
        exchange
            .json(
                200,
                &json!({"usage": {"prompt_tokens": 18446744073709551615_u64, "completion_tokens": -1}}),
            )
            .await;
        assert_eq!(
            client.answer().await.status,
            200,
            "{:?}",
            String::from_utf8_lossy(&page[..page.len().min(80)])
        );
        assert_eq!(gate.admin("/livez").await.status, 200);
        assert_eq!(gate.admin("/api/v1/state").await.status, 200);
    }
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_without_measure_in_a_request_are_survived() {
    let (mut engine, gate) = pair().await;
    let large = 18446744073709551615_u64;
    for body in [
        json!({"prompt": "Hi", "max_tokens": large}),
        json!({"prompt": "Hi", "n": large, "max_tokens": large}),
        json!({"prompt": ["Hi", "Ho"], "n": 4294967295_u64, "best_of": 4294967295_u64}),
        json!({"prompt": "Hi", "n": 0, "max_tokens": 0}),
        json!({"prompt": "Hi", "n": -1, "max_tokens": -5, "min_tokens": large}),
        json!({"prompt": "Hi", "max_tokens": 1e300, "logprobs": 1e300, "prompt_logprobs": -1}),
        json!({"prompt": [], "max_tokens": 1}),
        json!({"prompt": [[]], "max_tokens": 1}),
        json!({"prompt": [-1, 9223372036854775807_i64], "max_tokens": 1}),
        json!({"prompt": "Hi", "truncate_prompt_tokens": large}),
        json!({"prompt": "Hi", "truncate_prompt_tokens": -1, "max_tokens": 3}),
    ] {
        let mut client = gate.client().await;
        client.send(completion(&body)).await;
        let answer = tokio::select! {
            answer = client.answer() => answer,
            exchange = engine.next() => {
                exchange.json(400, &json!({})).await;
                client.answer().await
            }
        };
        assert!(answer.status < 500, "{body}: {answer:?}");
    }
    // And the books are as good as before.
    for headers in [
        [("x-kvgate-max-wait", "1e308")],
        [("x-kvgate-max-wait", "NaN")],
        [("x-kvgate-max-wait", "-1")],
        [("x-stainless-read-timeout", "inf")],
    ] {
        let mut client = gate.client().await;
        client
            .send(crate::support::client::post("/v1/completions", &headers, &json!({"prompt": "Hi"})))
            .await;
        engine.next().await.json(200, &json!({})).await;
        assert_eq!(client.answer().await.status, 200);
    }
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_clients_are_let_go() {
    let engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.head_timeout_seconds = 0.2).await;
    let mut silent = gate.client().await;
    let mut slow = gate.client().await;
    slow.send("GET / HT").await;
    let mut kept = gate.client().await;
    kept.send(get("/health")).await;
    assert_eq!(kept.answer().await.status, 200);
    for client in [&mut silent, &mut slow, &mut kept] {
        let (rest, _) = client.rest().await;
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_event_and_endless_small_chunks_stay_bounded() {
    let (mut engine, gate) = pair().await;
    let mut client = gate.client().await;
    client.send(completion(&json!({"prompt": "Hi", "stream": true}))).await;
    let mut exchange = engine.next().await;
    exchange.stream().await;
    exchange.chunk("data: {\"choices\":[{\"finish_reason\":null}]}\n\n").await;
    client.head().await;
    client.chunk().await;
    // One event of three times the bytes that are held back, in small chunks.
    let writer = tokio::spawn(async move {
        let piece = format!("40\r\n{}\r\n", "e".repeat(64)).repeat(1024);
        exchange.send("6\r\ndata: \r\n").await;
        for _ in 0..48 {
            exchange.send(&piece).await;
        }
        exchange.chunk("\n\ndata: [DONE]\n\n").await;
        exchange.end_chunks().await;
    });
    let body = client.chunks().await;
    assert_eq!(body.len(), 6 + 64 * 1024 * 48 + "\n\ndata: [DONE]\n\n".len());
    writer.await.unwrap();
    gate.idle().await;
}
