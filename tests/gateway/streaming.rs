//! Streams: byte for byte, at once, and never without an ending.

use serde_json::json;

use crate::support::{Engine, Exchange, Gate, Raw, completion, soon};

const ROLE: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
const PIECE: &str =
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":null}]}\n\n";
const LAST: &str =
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"total_tokens\":7,\"completion_tokens\":3}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const DEAD: &str = include_str!("../data/engine/dead_event.txt");
const DEAD_PLAIN: &str = include_str!("../data/engine/dead_plain.json");
const BUSY_PLAIN: &str = include_str!("../data/engine/busy_plain.json");
const BUSY: &str = "data: {\"error\": {\"message\": \"The engine is currently busy and cannot accept new requests. \
                    Please try again later or on a different instance.\", \"type\": \"Service Unavailable\", \
                    \"param\": null, \"code\": 503}}\n\n";

async fn pair() -> (Engine, Gate) {
    let engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    (engine, gate)
}

/// A stream that was asked for and has reached the engine, which has sent its head.
async fn begun(engine: &mut Engine, gate: &Gate) -> (Raw, Exchange) {
    let mut client = gate.client().await;
    client.send(completion(&json!({"prompt": "Hi", "max_tokens": 9, "stream": true}))).await;
    let mut exchange = engine.next().await;
    exchange.stream().await;
    (client, exchange)
}

/// As `begun`, with one event passed on.
async fn running(engine: &mut Engine, gate: &Gate) -> (Raw, Exchange) {
    let (mut client, mut exchange) = begun(engine, gate).await;
    exchange.chunk(PIECE).await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    assert_eq!(client.chunk().await, PIECE.as_bytes());
    (client, exchange)
}

/// Checks the exact bytes of our own ending, and that the connection is good for another request.
async fn ends_as(client: &mut Raw, code: &str) {
    let ending = String::from_utf8(client.chunks().await).unwrap();
    let data = ending.strip_prefix("event: error\ndata: ").unwrap_or_else(|| panic!("{ending:?}"));
    let error = data.strip_suffix("\n\ndata: [DONE]\n\n").unwrap_or_else(|| panic!("{ending:?}"));
    let error: serde_json::Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["code"], code);
    assert!(error["error"]["message"].is_string() && error["error"]["type"].is_string());
    client.send(crate::support::get("/health")).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_chunk_passes_identical_and_before_the_next_is_sent() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = begun(&mut engine, &gate).await;
    let crlf = PIECE.replace('\n', "\r\n");
    let two = format!("{PIECE}{PIECE}");
    let chunks = [ROLE, PIECE, ": keep-alive\n\n", &crlf, &two, LAST, USAGE, DONE];
    for (number, chunk) in chunks.iter().enumerate() {
        exchange.chunk(chunk).await;
        if number == 0 {
            client.head().await;
        }
        assert_eq!(String::from_utf8(client.chunk().await).unwrap(), *chunk);
    }
    exchange.end_chunks().await;
    assert_eq!(client.chunk().await, b"");
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_in_pieces_is_held_until_it_is_whole() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    let (a, b) = PIECE.split_at(20);
    exchange.chunk(a).await;
    exchange.chunk(&b[..b.len() - 1]).await;
    // What comes later on the same connection shows that the gateway has read the pieces.
    exchange.chunk("\ndata: n").await;
    let mut got = Vec::new();
    while got.len() < PIECE.len() {
        got.extend(client.chunk().await);
    }
    assert_eq!(got, PIECE.as_bytes());
    assert!(client.nothing_yet());
    exchange.chunk(format!("\n\n{LAST}{DONE}")).await;
    exchange.end_chunks().await;
    assert_eq!(String::from_utf8(client.chunks().await).unwrap(), format!("data: n\n\n{LAST}{DONE}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_over_the_limit_passes_as_it_comes() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.held_event_bytes = 1000).await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    let long = format!("data: {}", "y".repeat(3000));
    exchange.chunk(&long).await;
    assert_eq!(client.take(5).await, b"BBE\r\n", "the chunk comes before its event is whole");
    assert_eq!(client.take(long.len() + 2).await, format!("{long}\r\n").as_bytes());
    exchange.chunk(format!("\n\n{LAST}{DONE}")).await;
    exchange.end_chunks().await;
    assert_eq!(String::from_utf8(client.chunks().await).unwrap(), format!("\n\n{LAST}{DONE}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_stream_without_done_ends_as_it_is() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    exchange.chunk(LAST).await;
    exchange.end_chunks().await;
    assert_eq!(String::from_utf8(client.chunks().await).unwrap(), LAST);
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_engine_s_own_ends_a_stream() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    let error = "data: {\"error\": {\"message\": \"the image is no image\", \"code\": 400}}\n\n";
    exchange.chunk(error).await;
    exchange.end_chunks().await;
    assert_eq!(String::from_utf8(client.chunks().await).unwrap(), error);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_end_without_an_ending_gets_ours() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    exchange.chunk("data: {\"half").await;
    exchange.end_chunks().await;
    ends_as(&mut client, "engine_crashed").await;
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_in_the_middle_gets_our_ending_and_no_reset() {
    let (mut engine, gate) = pair().await;
    let (mut client, exchange) = running(&mut engine, &gate).await;
    exchange.reset();
    ends_as(&mut client, "engine_crashed").await;
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_inside_the_chunked_body_gets_our_ending() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    exchange.send(format!("{:x}\r\n{}", PIECE.len(), &PIECE[..9])).await;
    drop(exchange);
    ends_as(&mut client, "engine_crashed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_framing_inside_a_stream_gets_our_ending() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    exchange.send("nonsense\r\n").await;
    ends_as(&mut client, "engine_crashed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_s_word_of_its_death_is_replaced_by_ours() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    exchange.chunk(format!("{PIECE}{DEAD}{DONE}")).await;
    assert_eq!(client.chunk().await, PIECE.as_bytes(), "what came before it passes");
    ends_as(&mut client, "engine_crashed").await;
    exchange.left().await;
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_in_place_of_the_first_event_is_a_503() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = begun(&mut engine, &gate).await;
    exchange.chunk(format!("{DEAD}{DONE}")).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "engine_crashed"));
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_or_breaks_before_its_first_event_is_a_503() {
    let (mut engine, gate) = pair().await;
    let (mut client, exchange) = begun(&mut engine, &gate).await;
    exchange.reset();
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "engine_crashed"));
    gate.engine("ready").await;
    let (mut client, exchange) = begun(&mut engine, &gate).await;
    exchange.end_chunks().await;
    assert_eq!(client.answer().await.status, 503);
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_in_place_of_the_first_event_is_a_429() {
    let (mut engine, gate) = pair().await;
    let (mut client, mut exchange) = begun(&mut engine, &gate).await;
    exchange.chunk(BUSY).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "engine_saturated"));
    // In the middle of an answer the same words are the engine's own affair.
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    exchange.chunk(format!("{BUSY}{DONE}")).await;
    exchange.end_chunks().await;
    assert_eq!(String::from_utf8(client.chunks().await).unwrap(), format!("{BUSY}{DONE}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_errors_of_a_busy_or_dead_engine_become_429_and_503() {
    let (mut engine, gate) = pair().await;
    let plain = completion(&json!({"prompt": "Hi", "max_tokens": 9}));
    for (status, body, shown, code) in [
        (503, BUSY_PLAIN, 429, "engine_saturated"),
        (500, DEAD_PLAIN, 503, "engine_crashed"),
        (503, DEAD_PLAIN, 503, "engine_crashed"),
    ] {
        let mut client = gate.client().await;
        client.send(&plain).await;
        engine.next().await.json(status, &serde_json::from_str(body).unwrap()).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.code().as_str()), (shown, code), "{body}");
    }
    // Any other error is the engine's own and passes as it is.
    let own = json!({"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": 400}});
    for status in [400, 404, 500] {
        let mut client = gate.client().await;
        client.send(&plain).await;
        engine.next().await.json(status, &own).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.json()), (status, own.clone()));
    }
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_stream_is_ended_as_timed_out() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.stall_timeout_seconds = 0.2).await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    ends_as(&mut client, "upstream_timeout").await;
    exchange.left().await;
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_first_byte_in_time_is_a_504() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.first_byte_timeout_seconds = 0.2).await;
    let mut client = gate.client().await;
    client.send(completion(&json!({"prompt": "Hi"}))).await;
    let mut exchange = engine.next().await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (504, "upstream_timeout"));
    exchange.left().await;
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_answer_cut_inside_is_a_clean_503() {
    let (mut engine, gate) = pair().await;
    for reset in [true, false] {
        let mut client = gate.client().await;
        client.send(completion(&json!({"prompt": "Hi"}))).await;
        let mut exchange = engine.next().await;
        exchange
            .send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"id\"")
            .await;
        if reset {
            exchange.reset();
        } else {
            drop(exchange);
        }
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "engine_crashed"));
        gate.engine("ready").await;
    }
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_plain_answer_passes_and_is_aborted_where_it_is_cut() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.collect_bytes = 10_000).await;
    let body = json!({"text": "z".repeat(50_000)});
    let ask = completion(&json!({"prompt": "Hi"}));
    let mut client = gate.client().await;
    client.send(&ask).await;
    engine.next().await.json(200, &body).await;
    assert_eq!(client.answer().await.json(), body);
    for chunked in [true, false] {
        client.send(&ask).await;
        let mut exchange = engine.next().await;
        let framing = if chunked { "transfer-encoding: chunked" } else { "content-length: 90000" };
        exchange.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n")).await;
        if chunked {
            exchange.chunk("q".repeat(20_000)).await;
        } else {
            exchange.send("q".repeat(20_000)).await;
        }
        assert_eq!(client.head().await.status, 200);
        exchange.reset();
        let (rest, _) = client.rest().await;
        assert!(rest.len() < 30_000 && !rest.ends_with(b"0\r\n\r\n"), "an end that looks whole");
        client = gate.client().await;
    }
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_with_a_content_length_or_until_close_passes() {
    let (mut engine, gate) = pair().await;
    let events = format!("{PIECE}{LAST}{DONE}");
    for length in [true, false] {
        let mut client = gate.client().await;
        client.send(completion(&json!({"prompt": "Hi", "stream": true}))).await;
        let mut exchange = engine.next().await;
        let framing =
            if length { format!("content-length: {}", events.len()) } else { "connection: close".to_owned() };
        exchange
            .send(format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{framing}\r\n\r\n{events}"))
            .await;
        drop(exchange);
        let answer = soon("the answer", client.answer()).await;
        assert_eq!(answer.text(), events);
        assert_eq!(answer.header("connection"), None);
    }
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ending_is_not_glued_to_half_an_event() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.held_event_bytes = 1000).await;
    let (mut client, mut exchange) = running(&mut engine, &gate).await;
    let long = format!("data: {}", "y".repeat(3000));
    exchange.chunk(&long).await;
    exchange.reset();
    let rest = String::from_utf8(client.chunks().await).unwrap();
    assert!(rest.starts_with(&format!("{long}\n\nevent: error\ndata: ")), "{}", &rest[2990..]);
    assert!(rest.ends_with("\n\ndata: [DONE]\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_sends_its_head_and_nothing_more_is_timed_out() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.first_byte_timeout_seconds = 0.3).await;
    let (mut client, _exchange) = begun(&mut engine, &gate).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (504, "upstream_timeout"));
    gate.idle().await;
}
