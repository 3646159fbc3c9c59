//! Clients over real sockets, by the same rules as those in virtual time.

use std::net::SocketAddr;
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

use crate::outcome::{Attempt, End};
use crate::random::Random;
use crate::workload::Request;

/// Seconds after the last arrival within which all answers must have ended, times the stretch.
const OVERTIME: f64 = 180.0;

/// Sends all requests at their times; what became of them, and how late the latest hundredth was sent.
pub async fn all(requests: &[Request], model: &str, (to, stretch): (SocketAddr, f64)) -> (Vec<Attempt>, f64) {
    let begin = Instant::now() + Duration::from_secs(1);
    let mut clients = JoinSet::new();
    for (client, request) in requests.iter().enumerate() {
        let (request, model) = (request.clone(), model.to_owned());
        clients.spawn(async move { one(client, &request, &model, (to, begin)).await });
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
    model: &str,
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
async fn begun(client: usize, request: &Request, model: &str, to: SocketAddr) -> Result<Begun, End> {
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

/// The request as it goes out: a prompt of token ids, so that its length is certain; no two begin alike.
fn http(client: usize, request: &Request, model: &str) -> Http<Full<Bytes>> {
    let mut random = Random::new(client as u64 + 1);
    let ids: Vec<usize> = (0..request.prompt).map(|_| 10 + random.below(90)).collect();
    let mut body = json!({"model": model, "prompt": ids, "stream": true});
    if let Some(most) = request.max_output {
        body["max_tokens"] = json!(most);
    }
    let builder = Http::post("/v1/completions")
        .header("host", "bench")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer tenant-{}", request.tenant))
        .header("x-kvgate-ttft", format!("{:.3}", request.ttft))
        .header("x-kvgate-priority", if request.batch { "batch" } else { "interactive" })
        .header("x-sim-output-tokens", request.output.to_string());
    builder.body(Full::new(Bytes::from(body.to_string()))).unwrap()
}
