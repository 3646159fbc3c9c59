//! Clients over real sockets, by the same rules as those in virtual time.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use http::{Request as Http, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::process::post;
use crate::outcome::{Attempt, End};
use crate::random::Random;
use crate::workload::Request;

/// Seconds after the last arrival within which all answers must have ended, times the stretch.
const OVERTIME: f64 = 180.0;

/// Sends all requests at their times; what became of them, and how late the latest hundredth was sent.
///
/// `template`: the model's name, and the tokens of a chat beside its words.
pub async fn all(
    requests: &[Request],
    template: (&str, u32),
    (to, stretch): (SocketAddr, f64),
) -> (Vec<Attempt>, f64) {
    let begin = Instant::now() + Duration::from_secs(1);
    let mut clients = JoinSet::new();
    for (client, request) in requests.iter().enumerate() {
        let (request, model) = (request.clone(), template.0.to_owned());
        clients.spawn(async move { one(client, &request, (&model, template.1), (to, begin)).await });
    }
    let horizon = requests.last().map_or(0.0, |r| r.arrival) + OVERTIME * stretch;
    let end = begin + Duration::from_secs_f64(horizon);
    let (mut attempts, mut lateness) = (Vec::new(), Vec::new());
    while let Ok(Some(ended)) = timeout_at(end, clients.join_next()).await {
        let (attempt, late) = ended.unwrap();
        attempts.push(attempt);
        lateness.push(late);
    }
    attempts.sort_by_key(|attempt: &Attempt| attempt.client);
    (attempts, crate::score::quantile(&mut lateness, 0.99))
}

async fn one(
    client: usize,
    request: &Request,
    model: (&str, u32),
    (to, begin): (SocketAddr, Instant),
) -> (Attempt, f64) {
    let due = begin + Duration::from_secs_f64(request.arrival);
    sleep_until(due).await;
    let late = due.elapsed().as_secs_f64();
    let mut attempt = Attempt::new(client, 0, request.arrival, false);
    let patience = due + Duration::from_secs_f64(request.patience);
    attempt.end = match timeout_at(patience, begun(client, request, model, to)).await {
        Err(_) => End::Left,
        Ok(Err(end)) => end,
        Ok(Ok((mut body, sender))) => {
            attempt.sent = true;
            attempt.first = begin.elapsed().as_secs_f64();
            attempt.last = attempt.first;
            let end = rest(&mut body, &mut attempt, begin).await;
            drop(sender);
            end
        }
    };
    if attempt.end == End::Done {
        attempt.tokens = request.max_output.map_or(request.output, |most| most.min(request.output));
    }
    (attempt, late)
}

type Begun = (Incoming, SendRequest<Full<Bytes>>);

/// Asks, and reads up to the first token.
async fn begun(client: usize, request: &Request, model: (&str, u32), to: SocketAddr) -> Result<Begun, End> {
    let failed = |_| End::Failed;
    let stream = TcpStream::connect(to).await.map_err(|_| End::Failed)?;
    stream.set_nodelay(true).map_err(|_| End::Failed)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(connection);
    let response = sender.send_request(http(client, request, model)).await.map_err(failed)?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::SERVICE_UNAVAILABLE => {
            return Err(End::Refused);
        }
        _ => return Err(End::Failed),
    }
    let mut body = response.into_body();
    loop {
        let frame = body.frame().await.ok_or(End::Failed)?.map_err(failed)?;
        match frame.data_ref() {
            Some(data) if data.starts_with(b"data: {\"id\"") => return Ok((body, sender)),
            Some(_) => return Err(End::Failed),
            None => {}
        }
    }
}

/// Reads the rest of an answer.
async fn rest(body: &mut Incoming, attempt: &mut Attempt, begin: Instant) -> End {
    const SILENCE: Duration = Duration::from_secs(300);
    let mut done = false;
    loop {
        match timeout(SILENCE, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                let Some(data) = frame.data_ref() else { continue };
                done |= data.windows(12).any(|w| w == b"data: [DONE]");
                if data.starts_with(b"data: {\"id\"") {
                    attempt.last = begin.elapsed().as_secs_f64();
                }
            }
            Ok(None) if done => return End::Done,
            _ => return End::Failed,
        }
    }
}

/// The request as it goes out: a chat of so many words, each of them one token, and no two begin alike. (A completion
/// that names no limit would get 16 tokens.)
fn http(client: usize, request: &Request, (model, template): (&str, u32)) -> Http<Full<Bytes>> {
    let mut random = Random::new(client as u64 + 1);
    let mut text = String::new();
    for _ in 0..request.prompt.saturating_sub(template).max(1) {
        text.push(' ');
        text.push_str(WORDS[random.below(WORDS.len())]);
    }
    let messages = json!([{"role": "user", "content": text}]);
    let mut body = json!({"model": model, "stream": true, "messages": messages});
    if let Some(most) = request.max_output {
        body["max_tokens"] = json!(most);
    }
    let builder = Http::post("/v1/chat/completions")
        .header("host", "bench")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer tenant-{}", request.tenant))
        .header("x-kvgate-ttft", format!("{:.3}", request.ttft))
        .header("x-kvgate-priority", if request.batch { "batch" } else { "interactive" })
        .header("x-sim-output-tokens", request.output.to_string());
    builder.body(Full::new(Bytes::from(body.to_string()))).unwrap()
}

/// Words that are one token each behind a space.
static WORDS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| include_str!("../../../src/sim/tokenizer/words.txt").split_whitespace().collect());

/// Tokens that a chat has beside its words, by the engine's own count.
pub fn template(engine: SocketAddr, model: &str) -> u32 {
    const SAMPLE: usize = 100;
    let text: String = (0..SAMPLE).map(|n| format!(" {}", WORDS[n * 7 % WORDS.len()])).collect();
    let messages = json!([{"role": "user", "content": text}]);
    let answer =
        post(engine, "/tokenize", &json!({"model": model, "messages": messages}).to_string()).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let answer: serde_json::Value = serde_json::from_str(body).unwrap();
    answer["count"].as_u64().unwrap() as u32 - SAMPLE as u32
}
