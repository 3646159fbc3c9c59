//! The engine over real sockets with a real client, in real time.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::*;

mod faults;
mod http_api;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn quick() -> Settings {
    Settings { step_ms: 2.0, prefill_us_per_token: 0.0, ..Settings::default() }
}

async fn sim(settings: Settings) -> Sim {
    start_with_log(settings, std::io::sink()).await.unwrap()
}

struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

async fn ask(sim: &Sim, method: Method, path: &str, body: impl Into<Bytes>) -> Answer {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", sim.url()))
        .header("content-type", "application/json")
        .body(Full::new(body.into()))
        .unwrap();
    let answer = timeout(PATIENCE, client.request(request)).await.unwrap().unwrap();
    let (head, body) = answer.into_parts();
    let body = timeout(PATIENCE, body.collect()).await.unwrap().unwrap().to_bytes();
    Answer { status: head.status, headers: head.headers, body }
}

async fn post(sim: &Sim, path: &str, body: Value) -> Answer {
    ask(sim, Method::POST, path, body.to_string()).await
}

async fn get(sim: &Sim, path: &str) -> Answer {
    ask(sim, Method::GET, path, "").await
}

/// The value of a series without labels of its own.
async fn metric(sim: &Sim, name: &str) -> f64 {
    let page = get(sim, "/metrics").await;
    let line = page.text().lines().find(|l| l.starts_with(&format!("{name}{{"))).unwrap().to_owned();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn raw_request(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A connection that has sent a request and read nothing.
async fn sent(sim: &Sim, path: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(sim.addr()).await.unwrap();
    stream.write_all(raw_request(path, body).as_bytes()).await.unwrap();
    stream
}

/// Everything until the connection ends, and the error it ended with.
async fn read_to_end(stream: &mut TcpStream) -> (String, Option<std::io::Error>) {
    let mut bytes = Vec::new();
    let error = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap().err();
    (String::from_utf8_lossy(&bytes).into_owned(), error)
}

/// Reads until `wanted` has come.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        let mut buffer = [0; 4096];
        let n = timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(n > 0, "ended before {wanted:?}: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    text
}

fn endless() -> Value {
    json!({"prompt": "Hi there", "max_tokens": 2000, "stream": true})
}

async fn until(sim: &Sim, enough: impl FnMut(&Stats) -> bool) -> Stats {
    timeout(PATIENCE, sim.until(enough)).await.unwrap()
}

/// A log that can be read while the engine writes it.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_pool_fills_and_the_last_running_sequence_is_preempted() {
    let sim = sim(Settings { pool_tokens: 256, max_model_len: 240, step_ms: 0.5, ..quick() }).await;
    let body = json!({"prompt": vec![1; 60], "max_tokens": 100});
    let answers = tokio::join!(
        post(&sim, "/v1/completions", body.clone()),
        post(&sim, "/v1/completions", body.clone()),
        post(&sim, "/v1/completions", body),
    );
    for answer in [answers.0, answers.1, answers.2] {
        assert_eq!(answer.json()["usage"]["completion_tokens"], 100);
    }
    let stats = until(&sim, |s| s.served == 3 && s.running == 0).await;
    assert!(stats.preemptions > 0);
    assert_eq!(metric(&sim, "vllm:num_preemptions_total").await, stats.preemptions as f64);
    assert_eq!(metric(&sim, "vllm:generation_tokens_total").await, 300.0);
}

#[tokio::test]
async fn a_client_that_leaves_or_half_closes_frees_the_engine_at_once() {
    let sim = sim(Settings { max_num_seqs: 1, ..quick() }).await;
    let mut streaming = sent(&sim, "/v1/completions", &endless()).await;
    read_until(&mut streaming, "data: ").await;
    let plain = json!({"prompt": "Hi there", "max_tokens": 2000});
    let queued = sent(&sim, "/v1/completions", &plain).await;
    until(&sim, |s| (s.running, s.waiting) == (1, 1)).await;
    drop(queued);
    until(&sim, |s| (s.running, s.waiting, s.aborted) == (1, 0, 1)).await;
    streaming.shutdown().await.unwrap();
    let stats = until(&sim, |s| s.aborted == 2).await;
    assert_eq!((stats.running, stats.kv_usage), (0, 0.0));
    let (rest, _) = read_to_end(&mut streaming).await;
    assert!(!rest.contains("[DONE]"), "the stream stops where it was");
    let mut half_closed = sent(&sim, "/v1/completions", &plain).await;
    until(&sim, |s| s.running == 1).await;
    half_closed.shutdown().await.unwrap();
    until(&sim, |s| s.aborted == 3 && s.running == 0).await;
    assert_eq!(read_to_end(&mut half_closed).await.0, "", "a plain request gets no byte");
    assert_eq!(get(&sim, "/load").await.json()["server_load"], 0);
}

#[tokio::test]
async fn a_dropped_engine_takes_its_port_and_connections_along() {
    let sim = sim(quick()).await;
    let addr = sim.addr();
    let mut stream = sent(&sim, "/v1/completions", &endless()).await;
    read_until(&mut stream, "data: ").await;
    sim.stop().await;
    read_to_end(&mut stream).await;
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn a_setting_out_of_range_is_named() {
    let error = start(Settings { max_num_seqs: 0, ..quick() }).await.err().unwrap().to_string();
    assert_eq!(error, "`max_num_seqs` of the simulated engine must be at least 1, and is 0");
}

#[test]
fn the_settings_can_be_written_and_read_and_know_their_keys() {
    let text = toml::to_string(&Settings::default()).unwrap();
    assert_eq!(toml::from_str::<Settings>(&text).unwrap(), Settings::default());
    assert!(toml::from_str::<Settings>("nonsense = 1").is_err());
}
