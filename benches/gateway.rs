//! What the whole gateway adds to a stream: time to first token and time between tokens, through kvgate
//! and straight to the same simulated engine, alternating in one run.
//!
//! `cargo bench --bench gateway`. The ratio to the direct run is the result.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may stop")]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use kvgate::config::Config;
use kvgate::{gateway, sim};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Streams of each kind.
const STREAMS: usize = 150;
/// Tokens of each.
const TOKENS: usize = 20;

/// What one stream showed.
struct Seen {
    first: Duration,
    gaps: Vec<Duration>,
}

async fn connect(to: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn stream(sender: &mut SendRequest<Full<Bytes>>, body: &Bytes) -> Seen {
    sender.ready().await.unwrap();
    let request = Request::post("/v1/chat/completions")
        .header("host", "bench")
        .header("content-type", "application/json")
        .body(Full::new(body.clone()))
        .unwrap();
    let begun = Instant::now();
    let mut response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let (mut first, mut last, mut gaps) = (None, begun, Vec::new());
    while let Some(frame) = response.frame().await {
        if frame.unwrap().data_ref().is_some_and(|data| data.starts_with(b"data: {")) {
            let now = Instant::now();
            match first {
                None => first = Some(now - begun),
                Some(_) => gaps.push(now - last),
            }
            last = now;
        }
    }
    Seen { first: first.unwrap(), gaps }
}

fn percentile(values: &mut [Duration], share: f64) -> f64 {
    values.sort_unstable();
    let at = ((values.len() - 1) as f64 * share).round() as usize;
    values[at].as_secs_f64() * 1e6
}

fn row(name: &str, direct: &mut [Duration], gate: &mut [Duration]) {
    for share in [0.5, 0.99] {
        let (d, g) = (percentile(direct, share), percentile(gate, share));
        println!(
            "{name:28} p{:<3} direct {d:9.0} us   kvgate {g:9.0} us   added {:7.0} us   ratio {:.3}",
            share * 100.0,
            g - d,
            g / d
        );
    }
}

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("tokenizer");
    sim::write_tokenizer(&tokenizer).unwrap();
    let engine = sim::Settings {
        root: Some(tokenizer.display().to_string()),
        step_ms: 2.0,
        pool_tokens: 1 << 16,
        ..sim::Settings::default()
    };
    let engine = sim::start_with_log(engine, std::io::sink()).await.unwrap();
    let mut config = Config::default();
    config.engine.url = engine.url();
    config.proxy.listen.set_port(0);
    config.operate.listen.set_port(0);
    config.ledger.state_dir = Some(folder.path().join("state"));
    let stop = CancellationToken::new();
    let running = gateway::start(config, stop.clone()).await.unwrap();
    let text = "The gateway counts each prompt as the engine will. ".repeat(20);
    let body = serde_json::json!({
        "model": "sim", "stream": true, "max_tokens": TOKENS, "ignore_eos": true,
        "messages": [{"role": "user", "content": text}],
    });
    let body = Bytes::from(body.to_string());
    let (mut direct, mut gate) = (connect(engine.addr()).await, connect(running.data).await);
    let (mut firsts, mut gaps) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for n in 0..STREAMS + 10 {
        for (i, sender) in [&mut direct, &mut gate].into_iter().enumerate() {
            let seen = stream(sender, &body).await;
            if n >= 10 {
                firsts[i].push(seen.first);
                gaps[i].extend(seen.gaps);
            }
        }
    }
    println!("{STREAMS} streams of {TOKENS} tokens, {} bytes of body, one at a time", body.len());
    let [mut a, mut b] = firsts;
    row("time to first event", &mut a, &mut b);
    let [mut a, mut b] = gaps;
    row("time between events", &mut a, &mut b);
    stop.cancel();
    drop((direct, gate));
    running.ended().await;
    engine.stop().await;
}
