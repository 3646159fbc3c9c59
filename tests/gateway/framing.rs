//! HTTP framing from the client's side: limits, refusals before the body, hostile forms.

use serde_json::json;

use crate::support::client::post;
use crate::support::{Engine, Gate, completion, get, request, soon};

async fn pair(change: impl FnOnce(&mut kvgate::config::Config)) -> (Engine, Gate) {
    let engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), change).await;
    (engine, gate)
}

fn small(config: &mut kvgate::config::Config) {
    config.proxy.max_body_bytes = 1000;
}

fn hi() -> serde_json::Value {
    json!({"prompt": "Hi", "max_tokens": 3})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_declared_too_large_is_refused_before_a_byte_is_read() {
    let (mut engine, gate) = pair(small).await;
    let mut client = gate.client().await;
    client.send("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"));
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(answer.header("x-kvgate-limit"), Some("1000"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert!(!engine.asked());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_on_uploading_reads_its_refusal_and_no_reset() {
    let (mut engine, gate) = pair(small).await;
    for (path, framing, chunked) in [
        ("/v1/completions", "content-length: 3000000", false),
        ("/v1/completions", "transfer-encoding: chunked", true),
        ("/sleep", "content-length: 3000000", false),
        ("/sleep", "transfer-encoding: chunked", true),
    ] {
        let mut client = gate.client().await;
        client.send(format!("POST {path} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n")).await;
        let piece = vec![b'a'; 100_000];
        for _ in 0..30 {
            if chunked {
                client.send(format!("{:x}\r\n", piece.len())).await;
            }
            client.send(&piece).await;
            if chunked {
                client.send("\r\n").await;
            }
            tokio::task::yield_now().await;
        }
        if chunked {
            client.send("0\r\n\r\n").await;
        }
        let answer = client.answer().await;
        assert_eq!(answer.status, if path == "/sleep" { 403 } else { 413 });
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(client.rest().await, (Vec::new(), None), "{path} {framing}: a proper end");
    }
    assert!(!engine.asked());
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uploader_that_waits_to_read_gets_its_refusal() {
    let (_engine, gate) = pair(small).await;
    let mut client = gate.client().await;
    client.send("POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await;
    client.send(format!("7d0\r\n{}\r\n", "b".repeat(2000))).await;
    // It has not sent all and never will: the answer comes all the same.
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_continue_is_sent_where_the_body_is_wanted_and_only_there() {
    let (mut engine, gate) = pair(small).await;
    let body = hi().to_string();
    for path in ["/v1/completions", "/v1/embeddings"] {
        let mut client = gate.client().await;
        let head = format!("host: x\r\nexpect: 100-continue\r\ncontent-length: {}", body.len());
        client.send(format!("POST {path} HTTP/1.1\r\n{head}\r\n\r\n")).await;
        assert_eq!(client.head().await.head, "HTTP/1.1 100 Continue\r\n\r\n");
        client.send(&body).await;
        let exchange = engine.next().await;
        assert_eq!((exchange.all("expect"), exchange.body.as_slice()), (vec![], body.as_bytes()));
        exchange.json(200, &json!({})).await;
        assert_eq!(client.answer().await.status, 200);
    }
    let mut client = gate.client().await;
    client
        .send("POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2000\r\n\r\n")
        .await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    assert_eq!(client.rest().await, (Vec::new(), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_told_to_continue_and_sends_too_much_reads_its_refusal() {
    let (_engine, gate) = pair(small).await;
    let mut client = gate.client().await;
    let head = "host: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked";
    client.send(format!("POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n")).await;
    assert_eq!(client.head().await.status, 100);
    let piece = vec![b'a'; 100_000];
    for _ in 0..30 {
        client.send(format!("{:x}\r\n", piece.len())).await;
        client.send(&piece).await;
        client.send("\r\n").await;
    }
    client.send("0\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"));
    assert_eq!(client.rest().await, (Vec::new(), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_pauses_too_long_is_refused() {
    let (mut engine, gate) = pair(|c| c.proxy.body_timeout_seconds = 0.1).await;
    let mut client = gate.client().await;
    client.send("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"prompt\"").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_request"));
    assert!(!engine.asked());
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_framing_is_never_forwarded() {
    let (mut engine, gate) = pair(|_| {}).await;
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let heads = [
        "transfer-encoding: chunked, identity".to_owned(),
        "transfer-encoding: xchunked".to_owned(),
        "content-length: 5\r\ncontent-length: 6".to_owned(),
        "content-length: +5".to_owned(),
        "content-length: -1".to_owned(),
        "content-length: 0x5".to_owned(),
        "content-length: 99999999999999999999".to_owned(),
        "content-length: 5, 5".to_owned(),
        "content-length : 5".to_owned(),
        "transfer-encoding : chunked".to_owned(),
        " x-folded: 1".to_owned(),
        "x-nul: a\0b".to_owned(),
        "x\0: b".to_owned(),
    ];
    for head in heads {
        for path in ["/v1/completions", "/v1/embeddings"] {
            let mut client = gate.client().await;
            client
                .send(format!("POST {path} HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n0\r\n\r\n{smuggled}"))
                .await;
            let (rest, _) = soon(&format!("the end after {head:?}"), client.rest()).await;
            let text = String::from_utf8_lossy(&rest);
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 400"), "{head:?}: {text}");
            assert!(!engine.asked(), "{head:?} was forwarded");
        }
    }
    // Both framings at once: only the chunks count (RFC 9112, 6.1), and only one framing goes on.
    for both in
        ["content-length: 3\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 3"]
    {
        let mut client = gate.client().await;
        client
            .send(format!("POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n{both}\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"))
            .await;
        let exchange = engine.next().await;
        assert_eq!(exchange.body, b"abcde");
        assert_eq!(
            (exchange.all("content-length"), exchange.all("transfer-encoding")),
            (vec![], vec!["chunked"])
        );
    }
    for chunk in ["g\r\nx\r\n", "-1\r\n", "ffffffffffffffffff\r\n", "5\r\nabcdefgh\r\n0\r\n\r\n"] {
        let mut client = gate.client().await;
        let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        client.send(format!("{head}{chunk}")).await;
        let (rest, _) = client.rest().await;
        let text = String::from_utf8_lossy(&rest);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 400"), "{chunk:?}: {text}");
        assert!(!engine.asked(), "{chunk:?} was forwarded");
    }
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_or_senseless_head_ends_the_connection() {
    let (mut engine, gate) = pair(|c| c.proxy.head_timeout_seconds = 0.3).await;
    for start in [
        "GET / HTTP/9.9\r\n\r\n",
        "\x16\x03\x01\x02",
        "GET  / HTTP/1.1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut client = gate.client().await;
        client.send(start).await;
        let (rest, _) = client.rest().await;
        let text = String::from_utf8_lossy(&rest);
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 4") || text.starts_with("HTTP/1.1 505"),
            "{start:?}: {text}"
        );
    }
    let mut client = gate.client().await;
    client.send("GET / HTTP/1.1\r\nx: ").await;
    let long = vec![b'a'; 64 * 1024];
    let mut sent = 0;
    while sent < 4_000_000 && client.try_send(&long).await.is_ok() {
        sent += long.len();
    }
    let (rest, _) = client.rest().await;
    assert!(sent < 4_000_000 || rest.starts_with(b"HTTP/1.1 431"), "an endless head is read on");
    assert!(!engine.asked());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_tunnels_and_grpc_are_refused() {
    let (mut engine, gate) = pair(|_| {}).await;
    let asks = [
        request("GET", "/v1/realtime", &[("Connection", "Upgrade"), ("Upgrade", "websocket")], ""),
        request("GET", "/", &[("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c")], ""),
        request("POST", "/v1/completions", &[("Upgrade", "h2c")], hi().to_string()),
        request("POST", "/inference.GRPC/Infer", &[("Content-Type", "application/grpc+proto")], "abc"),
        request("CONNECT", "engine:80", &[], ""),
    ];
    for ask in asks {
        let answer = gate.ask(&ask).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "invalid_request"),
            "{}",
            String::from_utf8_lossy(&ask)
        );
    }
    assert!(!engine.asked());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_paths_are_closed_in_every_spelling() {
    let (mut engine, gate) = pair(|c| c.proxy.allow_paths = vec!["/sleep".to_owned()]).await;
    for target in [
        "/v1/load_lora_adapter",
        "//v1/load_lora_adapter",
        "/v1/%6coad_lora_adapter?x=1",
        "/v1/%256coad_lora_adapter",
        "/x/../wake_up",
        "/Wake_Up/",
        "/wake_up;a=b",
        "/wake_up%0a",
        "\\wake_up",
        "http://engine/wake_up",
        "/reset_prefix_cache",
        "/collective_rpc",
    ] {
        for method in ["POST", "GET", "HEAD"] {
            let mut client = gate.client().await;
            client.send(request(method, target, &[], "")).await;
            let answer = if method == "HEAD" { client.head().await } else { client.answer().await };
            // What is no target at all is refused as such.
            let refused = answer.status == 403 || (target.starts_with('\\') && answer.status == 400);
            assert!(refused, "{method} {target}: {}", answer.head);
        }
    }
    assert!(!engine.asked());
    let mut client = gate.client().await;
    client.send(request("POST", "/sleep", &[], "")).await;
    engine.next().await.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
    for other in ["//sleep", "/%73leep"] {
        let answer = gate.ask(request("POST", other, &[], "")).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "forbidden_path"), "{other}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_paths_can_be_refused() {
    let (mut engine, gate) = pair(|c| c.proxy.unknown_paths = kvgate::proxy::UnknownPaths::Refuse).await;
    let answer = gate.ask(get("/unknown")).await;
    assert_eq!((answer.status, answer.code().as_str()), (403, "forbidden_path"));
    assert_eq!(gate.ask(get("/v1/models")).await.status, 200);
    assert!(!engine.asked());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_carries_many_requests_and_pipelined_ones_in_order() {
    let (mut engine, gate) = pair(|_| {}).await;
    let mut client = gate.client().await;
    for number in 0..3 {
        client.send(completion(&hi())).await;
        let exchange = engine.next().await;
        assert_eq!(exchange.connection, 1, "the engine's connection is used again");
        exchange.json(200, &json!({"number": number})).await;
        assert_eq!(client.answer().await.json(), json!({"number": number}));
    }
    let three = [completion(&hi()), get("/health"), post("/v1/embeddings", &[], &hi())].concat();
    client.send(three).await;
    engine.next().await.json(200, &json!({"number": 1})).await;
    assert_eq!(client.answer().await.json(), json!({"number": 1}));
    assert_eq!(client.answer().await.json(), json!({}));
    engine.next().await.json(200, &json!({"number": 3})).await;
    assert_eq!(client.answer().await.json(), json!({"number": 3}));
    // A refusal whose request was read to its end does not cost the connection.
    client.send(completion(&json!({"prompt": 7.5}))).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (400, None));
    client.send(get("/health")).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_http_1_0_is_answered_in_its_way() {
    let (mut engine, gate) = pair(|_| {}).await;
    let body = hi().to_string();
    let mut client = gate.client().await;
    client
        .send(format!("POST /v1/completions HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
        .await;
    let exchange = engine.next().await;
    assert_eq!(exchange.line(), "POST /v1/completions HTTP/1.1");
    exchange.json(200, &json!({"a": 1})).await;
    let (rest, end) = client.rest().await;
    let text = String::from_utf8(rest).unwrap();
    assert!(text.starts_with("HTTP/1.0 200") && text.ends_with("{\"a\":1}"), "{text}");
    assert!(end.is_none() && !text.contains("chunked"));
    let streaming = json!({"prompt": "Hi", "stream": true}).to_string();
    let mut client = gate.client().await;
    client
        .send(format!(
            "POST /v1/completions HTTP/1.0\r\ncontent-length: {}\r\n\r\n{streaming}",
            streaming.len()
        ))
        .await;
    let mut exchange = engine.next().await;
    exchange.stream().await;
    exchange.chunk("data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n").await;
    exchange.chunk("data: [DONE]\n\n").await;
    exchange.end_chunks().await;
    let (rest, _) = client.rest().await;
    let text = String::from_utf8(rest).unwrap();
    assert!(
        text.ends_with("\r\n\r\ndata: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"),
        "{text}"
    );
    assert!(!text.contains("chunked"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_no_requests_are_refused_and_hurt_nobody() {
    let (mut engine, gate) = pair(|_| {}).await;
    let deep = format!("{{\"prompt\":{}1{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let deep_object = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    for body in ["", "{", "[]", "null", "\u{0}", "{\"prompt\":"] {
        let ask = request("POST", "/v1/completions", &[("content-type", "application/json")], body);
        let start: String = body.chars().take(20).collect();
        let answer = soon(&format!("the refusal of {start:?}"), gate.ask(ask)).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_request"), "{start:?}");
    }
    // Deep ones cost no stack here: refused, or left to the engine.
    for body in [deep, deep_object] {
        let mut client = gate.client().await;
        client.send(request("POST", "/v1/completions", &[("content-type", "application/json")], &body)).await;
        let answer = tokio::select! {
            answer = client.answer() => answer,
            exchange = engine.next() => {
                assert!(exchange.body == body.as_bytes());
                exchange.json(400, &json!({})).await;
                client.answer().await
            }
        };
        assert_eq!(answer.status, 400);
    }
    gate.idle().await;
}
