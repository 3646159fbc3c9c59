//! Any order of requests, leaving clients and engine faults ends with empty books.

use std::time::Duration;

use kvgate::sim::{self, Fault};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::client::post;
use crate::support::{Gate, Raw, request, soon};

/// How long faults come.
const STORM: Duration = Duration::from_secs(5);

/// One client: asks for something, and stays to the end or leaves before.
async fn client(addr: std::net::SocketAddr, mut random: fastrand::Rng) -> Result<(), String> {
    let stream = random.bool();
    let prompt = vec![7; random.usize(1..900)];
    let body =
        json!({"prompt": prompt, "max_tokens": random.u64(1..120), "stream": stream, "n": random.u64(1..3)});
    let wait = random.f64().to_string();
    let ask = match random.u8(0..10) {
        0 => request("POST", "/v1/completions", &[], "nonsense"),
        1 => post(
            "/v1/chat/completions",
            &[],
            &json!({"messages": [{"role": "user", "content": "Hi"}], "stream": stream}),
        ),
        2 => post("/v1/embeddings", &[], &body),
        3 => post("/v1/completions", &[], &json!({"prompt": vec![7; 1500]})),
        _ => post("/v1/completions", &[("x-kvgate-max-wait", &wait)], &body),
    };
    let Ok(stream) = tokio::net::TcpStream::connect(addr).await else {
        return Err("not accepted".to_owned());
    };
    drop(stream);
    let mut raw = Raw::connect(addr).await;
    let part = if random.u8(0..8) == 0 { random.usize(0..ask.len()) } else { ask.len() };
    raw.try_send(&ask[..part]).await.map_err(|e| e.to_string())?;
    let leave = part < ask.len() || random.u8(0..3) == 0;
    let end = async {
        let answer = raw.answer().await;
        match answer.status {
            200 if answer.header("content-type").is_some_and(|t| t.starts_with("text/event-stream")) => {
                let text = answer.text();
                // A stream whose every choice has finished is whole, even if the engine stops before `[DONE]`.
                let last = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
                let whole = text.ends_with("data: [DONE]\n\n") || last.contains("\"finish_reason\":\"");
                if whole {
                    Ok(())
                } else {
                    Err(format!("no ending: {}", &text[text.len().saturating_sub(200)..]))
                }
            }
            200 | 400 | 404 | 413 | 429 | 503 => Ok(()),
            other => Err(format!("{other}: {answer:?}")),
        }
    };
    if leave {
        tokio::time::timeout(Duration::from_millis(random.u64(0..60)), end).await.unwrap_or(Ok(()))
    } else {
        end.await
    }
}

fn fault(random: &mut fastrand::Rng) -> Fault {
    let load_seconds = Some(0.05 + random.f64() * 0.8);
    match random.u8(0..10) {
        0 => Fault::Die { load_seconds },
        1 => Fault::DieHard { load_seconds },
        2 => Fault::Restart { load_seconds: 0.1 },
        3 => Fault::CutStream { after_tokens: random.u64(0..20) },
        4 => Fault::EndStreamEarly { after_tokens: random.u64(0..20) },
        5 => Fault::Busy { max_num_queued_reqs: random.u64(0..3) },
        6 => Fault::CloseIdle { seconds: 0.01 },
        7 => Fault::MetricsAbsent,
        8 => Fault::SlowMetrics { seconds: 0.3 },
        _ => Fault::Recover,
    }
}

async fn storm(seed: u64) {
    let settings = sim::Settings {
        pool_tokens: 2048,
        max_model_len: 1024,
        step_ms: 1.0,
        prefill_us_per_token: 1.0,
        load_seconds: Some(0.2),
        keep_alive_seconds: 0.05,
        ..Default::default()
    };
    let sim = sim::start_with_log(settings, std::io::sink()).await.unwrap();
    let gate = Gate::ready_before(sim.url(), |c| {
        c.admit.queue.requests = 20;
        c.proxy.head_timeout_seconds = 1.0;
        c.proxy.body_timeout_seconds = 0.5;
        c.engine.scrape_timeout_seconds = 0.2;
        // Metrics that were once away are looked for again at this pace.
        c.engine.facts_interval_seconds = 1.0;
    })
    .await;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut clients = JoinSet::new();
    let until = Instant::now() + STORM;
    while Instant::now() < until {
        for _ in 0..random.usize(0..6) {
            clients.spawn(client(gate.data, random.fork()));
        }
        if random.u8(0..12) == 0 {
            sim.fault(fault(&mut random));
        }
        sleep(Duration::from_millis(random.u64(0..20))).await;
        while let Some(ended) = clients.try_join_next() {
            ended.unwrap().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    }
    sim.fault(Fault::Recover);
    let rest = async {
        while let Some(ended) = clients.join_next().await {
            ended.unwrap().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    };
    soon(&format!("the end of all clients (seed {seed})"), rest).await;
    gate.ready().await;
    gate.idle().await;
    soon("an idle engine", sim.until(|s| s.running == 0 && s.waiting == 0)).await;
    let state = gate.admin_json("/api/v1/state").await;
    for zero in ["in_flight", "sequences", "reserved_tokens", "queued", "queued_bytes"] {
        assert_eq!(state["admission"][zero], 0, "{zero}, seed {seed}");
    }
    let answer = gate.ask(post("/v1/completions", &[], &json!({"prompt": "Hi", "max_tokens": 2}))).await;
    assert_eq!(answer.status, 200, "seed {seed}: {answer:?}");
    gate.stop();
    gate.ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_order_of_requests_leaving_clients_and_faults_ends_with_empty_books() {
    // SOAK_SEED=N plays another storm.
    let seed = std::env::var("SOAK_SEED").ok().and_then(|seed| seed.parse().ok());
    storm(seed.unwrap_or(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_storm_twice_ends_with_empty_books() {
    storm(20).await;
}
