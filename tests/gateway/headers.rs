//! What of a request reaches the engine, and what of its answer the client.

use serde_json::json;

use crate::support::client::post;
use crate::support::engine::Face;
use crate::support::{Answer, Engine, Exchange, Gate, get, request};

async fn pair() -> (Engine, Gate) {
    let engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    (engine, gate)
}

/// Sends a request, lets the engine answer `{}`, and gives what the engine and the client saw.
async fn through(engine: &mut Engine, gate: &Gate, request: impl AsRef<[u8]>) -> (Seen, Answer) {
    let mut client = gate.client().await;
    client.send(request).await;
    let exchange = engine.next().await;
    let seen = Seen::of(&exchange);
    exchange.json(200, &json!({})).await;
    (seen, client.answer().await)
}

/// A request as the engine saw it.
struct Seen {
    head: String,
    line: String,
    body: Vec<u8>,
}

impl Seen {
    fn of(exchange: &Exchange) -> Self {
        Self { head: exchange.head.clone(), line: exchange.line().to_owned(), body: exchange.body.clone() }
    }

    fn all(&self, name: &str) -> Vec<&str> {
        crate::support::client::header_values(&self.head, name)
    }
}

fn hi() -> serde_json::Value {
    json!({"prompt": "Hi", "max_tokens": 3})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_one_connection_and_steering_ones_do_not_reach_the_engine() {
    let (mut engine, gate) = pair().await;
    let headers = [
        ("Connection", "keep-alive, X-Foo"),
        ("Connection", "x-bar"),
        ("X-Foo", "1"),
        ("X-Bar", "2"),
        ("Keep-Alive", "timeout=9"),
        ("Proxy-Connection", "keep-alive"),
        ("Proxy-Authorization", "Basic eA=="),
        ("TE", "trailers"),
        ("Trailer", "x-t"),
        ("x-kvgate-max-wait", "3"),
        ("X-KVGate-Anything", "3"),
        ("x-override-rid", "3"),
        ("X-Override-Anything", "3"),
        ("X-data-parallel-rank", "1"),
        ("X-Own", "kept"),
        ("X-Own", "twice"),
        ("Authorization", "Bearer client"),
        ("Accept-Encoding", "gzip, br"),
        ("User-Agent", "test/1"),
    ];
    for (path, identity) in [("/v1/completions", true), ("/v1/embeddings", false)] {
        let (seen, answer) = through(&mut engine, &gate, post(path, &headers, &hi())).await;
        for gone in [
            "x-foo",
            "x-bar",
            "keep-alive",
            "proxy-connection",
            "proxy-authorization",
            "te",
            "trailer",
            "x-kvgate-max-wait",
            "x-kvgate-anything",
            "x-override-rid",
            "x-override-anything",
            "x-data-parallel-rank",
            "connection",
            "transfer-encoding",
        ] {
            assert_eq!(seen.all(gone), Vec::<&str>::new(), "{gone}: {}", seen.head);
        }
        assert_eq!(seen.all("host"), [engine.host()]);
        assert_eq!(seen.all("x-own"), ["kept", "twice"]);
        assert_eq!(seen.all("authorization"), ["Bearer client"]);
        assert_eq!(seen.all("user-agent"), ["test/1"]);
        assert_eq!(seen.all("content-length"), [hi().to_string().len().to_string()]);
        let encoding = if identity { "identity" } else { "gzip, br" };
        assert_eq!(seen.all("accept-encoding"), [encoding], "{path}");
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_the_engine_s_connection_do_not_reach_the_client() {
    let (mut engine, gate) = pair().await;
    for path in ["/v1/completions", "/other"] {
        let mut client = gate.client().await;
        client.send(post(path, &[], &hi())).await;
        let mut exchange = engine.next().await;
        exchange
            .send(
                "HTTP/1.1 200 OK\r\nConnection: x-secret, close\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\n\
                 X-Request-Id: the-engine-s\r\nx-kvgate-request-id: forged\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\
                 Server: uvicorn\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
            )
            .await;
        let answer = client.answer().await;
        for gone in ["connection", "x-secret", "keep-alive"] {
            assert_eq!(answer.all(gone), Vec::<&str>::new(), "{gone}");
        }
        assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"]);
        assert_eq!(answer.all("server"), ["uvicorn"]);
        let ours = answer.all("x-kvgate-request-id");
        assert!(ours.len() == 1 && ours[0].starts_with("kg-"), "{ours:?}");
        assert_eq!(answer.all("x-request-id"), ours, "without an id of the client's, ours stands there");
        // The engine closed its connection: the client's stays.
        client.send(get("/health")).await;
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_s_id_is_echoed_and_goes_to_the_engine_with_ours_appended() {
    let (mut engine, gate) = pair().await;
    let long = "i".repeat(128);
    for id in ["abc-1", long.as_str(), "a/b:c=~"] {
        let (seen, answer) =
            through(&mut engine, &gate, post("/v1/completions", &[("X-Request-ID", id)], &hi())).await;
        let ours = answer.header("x-kvgate-request-id").unwrap();
        assert_eq!(answer.all("x-request-id"), [id]);
        assert_eq!(seen.all("x-request-id"), [format!("{id}-{ours}")]);
    }
    let long = "i".repeat(129);
    for id in ["", "a b", "é", long.as_str(), "a\tb"] {
        let (seen, answer) =
            through(&mut engine, &gate, post("/v1/completions", &[("X-Request-ID", id)], &hi())).await;
        let ours = answer.header("x-kvgate-request-id").unwrap();
        assert_eq!(answer.all("x-request-id"), [ours], "{id:?}");
        assert_eq!(seen.all("x-request-id"), [ours], "{id:?}");
    }
    let disaggregated = "___prefill_addr_10.0.0.1:80___decode_addr_10.0.0.2:80_x";
    let ask = post("/v1/completions", &[("x-request-id", disaggregated)], &hi());
    let (seen, _) = through(&mut engine, &gate, ask).await;
    assert_eq!(seen.all("x-request-id"), [disaggregated]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_s_key_takes_the_place_of_the_client_s() {
    let mut engine = Engine::start().await;
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), "the-engine-s-key\n").unwrap();
    let file = key.path().to_owned();
    let gate = Gate::ready_before(engine.url(), |c| c.engine.key_file = Some(file)).await;
    let client = [("Authorization", "Bearer client"), ("authorization", "Basic second")];
    for path in ["/v1/completions", "/v1/embeddings"] {
        let (seen, _) = through(&mut engine, &gate, post(path, &client, &hi())).await;
        assert_eq!(seen.all("authorization"), ["Bearer the-engine-s-key"]);
    }
    let (seen, _) = through(&mut engine, &gate, get("/x")).await;
    assert_eq!(seen.all("authorization"), ["Bearer the-engine-s-key"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_and_body_reach_the_engine_byte_for_byte() {
    let (mut engine, gate) = pair().await;
    let odd =
        "{ \"prompt\" :\t\"H\\u0069 \u{1F642}\",\r\n \"max_tokens\":3, \"max_tokens\": 4 ,\"x\":1e2}\n ";
    for target in [
        "/v1/completions?a=1&b=%2F%2f+x&&c",
        "//v1/%63ompletions/?q",
        "/v1/embeddings?x=%zz&y=[]|~'()*",
        "/any/./thing/../else;p=1?",
    ] {
        let ask = request("POST", target, &[("content-type", "application/json")], odd);
        let (seen, _) = through(&mut engine, &gate, ask).await;
        assert_eq!(seen.line, format!("POST {target} HTTP/1.1"));
        assert_eq!(String::from_utf8(seen.body).unwrap(), odd);
    }
    // A proxy's form of the target names a host that is not the engine's.
    let (seen, _) = through(&mut engine, &gate, get("http://elsewhere.test/a?b")).await;
    assert_eq!((seen.line.as_str(), seen.all("host")), ("GET /a?b HTTP/1.1", vec![engine.host().as_str()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_path_comes_before_the_client_s() {
    let mut engine = Engine::with(Face { base: "/gpu0", ..Face::default() }).await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    let (seen, _) = through(&mut engine, &gate, post("/v1/completions?x=1", &[], &hi())).await;
    assert_eq!(seen.line, "POST /gpu0/v1/completions?x=1 HTTP/1.1");
    let (seen, _) = through(&mut engine, &gate, get("//a?b")).await;
    assert_eq!(seen.line, "GET /gpu0//a?b HTTP/1.1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunked_upload_reaches_the_engine_whole() {
    let (mut engine, gate) = pair().await;
    let body = json!({"prompt": "Hi there, engine", "max_tokens": 3}).to_string();
    for path in ["/v1/completions", "/v1/embeddings"] {
        let mut client = gate.client().await;
        let head = "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        client.send(format!("POST {path} HTTP/1.1\r\nhost: x\r\n{head}")).await;
        for piece in body.as_bytes().chunks(5) {
            client.send(format!("{:x};ext=1\r\n", piece.len())).await;
            client.send(piece).await;
            client.send("\r\n").await;
        }
        client.send("0\r\nx-trailer: 1\r\n\r\n").await;
        let exchange = engine.next().await;
        assert_eq!(String::from_utf8_lossy(&exchange.body), body);
        assert_eq!(exchange.header("content-type"), Some("application/json"));
        exchange.json(200, &json!({})).await;
        assert_eq!(client.answer().await.status, 200);
        // And the connection is good for more.
        client.send(get("/health")).await;
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_methods_and_unknown_paths_pass() {
    let (mut engine, gate) = pair().await;
    for method in ["OPTIONS", "DELETE", "PATCH", "PUT", "QUERY"] {
        let (seen, answer) = through(&mut engine, &gate, request(method, "/v1/completions", &[], "{}")).await;
        assert_eq!(seen.line, format!("{method} /v1/completions HTTP/1.1"));
        assert_eq!(answer.status, 200);
    }
    for path in ["/", "/unknown/path", "/v1/responses", "/docs?x"] {
        let (seen, _) = through(&mut engine, &gate, get(path)).await;
        assert_eq!(seen.line, format!("GET {path} HTTP/1.1"));
    }
    // The pages of the engine are its own.
    let page = gate.ask(get("/metrics")).await;
    assert!(page.text().contains("vllm:num_requests_running"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_a_body_passes_and_its_connection_is_used_again() {
    let (mut engine, gate) = pair().await;
    let mut client = gate.client().await;
    let cases = [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 77\r\nx-own: 1\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\nx-own: 1\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nx-own: 1\r\n\r\n"),
        ("GET", "HTTP/1.1 200 OK\r\nx-own: 1\r\ncontent-length: 0\r\n\r\n"),
        ("POST", "HTTP/1.1 200 OK\r\nx-own: 1\r\ncontent-length: 0\r\n\r\n"),
    ];
    for (number, (method, answer)) in cases.into_iter().enumerate() {
        client.send(request(method, "/own", &[], "")).await;
        let mut exchange = engine.next().await;
        assert_eq!(exchange.connection, 1, "{number}: {answer}");
        exchange.send(answer).await;
        exchange.again();
        let head = client.head().await;
        assert_eq!(head.header("x-own"), Some("1"));
        if method == "HEAD" {
            assert_eq!(head.header("content-length"), Some("77"));
        }
        gate.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_answer_to_a_prompt_passes() {
    let (mut engine, gate) = pair().await;
    let mut client = gate.client().await;
    for answer in ["HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"] {
        client.send(post("/v1/completions", &[], &hi())).await;
        let mut exchange = engine.next().await;
        exchange.send(answer).await;
        exchange.again();
        client.answer().await;
        gate.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_known_length_leaves_the_engine_connection_for_the_next() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    let mut client = gate.client().await;
    for nth in 0..3 {
        client.send(get("/some/page")).await;
        let exchange = engine.next().await;
        assert_eq!(exchange.connection, 1, "request {nth} came on a connection of its own");
        exchange.json(200, &json!({"nth": nth})).await;
        assert_eq!(client.answer().await.json(), json!({"nth": nth}));
    }
}
