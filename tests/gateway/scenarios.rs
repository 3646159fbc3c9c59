//! Whole loads against the simulated engine: each file says the load, and the ranges that must come of it.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvgate::sim;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use crate::support::client::post;
use crate::support::{Gate, Raw};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    engine: sim::Settings,
    load: Load,
    expect: Expect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    /// Clients that send one request after the other.
    clients: usize,
    /// Requests in all.
    requests: usize,
    /// Least and most tokens of a prompt.
    prompt_tokens: [usize; 2],
    /// Least and most tokens asked for.
    output_tokens: [u64; 2],
    /// `x-kvgate-max-wait`
    max_wait_seconds: f64,
}

/// Least and most of each.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    served: [usize; 2],
    refused: [usize; 2],
    broken: [usize; 2],
    preemptions: [u64; 2],
    most_in_flight: [u64; 2],
    ttft_median_seconds: [f64; 2],
    ttft_longest_seconds: [f64; 2],
}

/// How one request ended.
enum End {
    Served { ttft: Duration },
    Refused,
    Broken,
}

fn within<T: PartialOrd + Debug>(file: &Path, what: &str, value: T, [least, most]: [T; 2]) -> Option<String> {
    let fine = value >= least && value <= most;
    (!fine).then(|| format!("{}: {what} = {value:?}, not in {least:?}..={most:?}", file.display()))
}

async fn one(gate: std::net::SocketAddr, ask: &[u8]) -> End {
    let began = Instant::now();
    let mut client = Raw::connect(gate).await;
    client.send(ask).await;
    let head = client.head().await;
    match head.status {
        200 => {
            client.chunk().await;
            let ttft = began.elapsed();
            let rest = String::from_utf8(client.chunks().await).unwrap();
            if rest.ends_with("data: [DONE]\n\n") && !rest.contains("\"error\"") {
                End::Served { ttft }
            } else {
                End::Broken
            }
        }
        429 | 503 => End::Refused,
        _ => End::Broken,
    }
}

fn asks(load: &Load) -> VecDeque<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(7);
    let wait = load.max_wait_seconds.to_string();
    let mut ask = || {
        let prompt = vec![7; random.usize(load.prompt_tokens[0]..=load.prompt_tokens[1])];
        let output = random.u64(load.output_tokens[0]..=load.output_tokens[1]);
        let body = json!({"prompt": prompt, "max_tokens": output, "stream": true});
        post("/v1/completions", &[("x-kvgate-max-wait", &wait)], &body)
    };
    (0..load.requests).map(|_| ask()).collect()
}

async fn play(file: &Path) -> Vec<String> {
    let scenario: Scenario = toml::from_str(&std::fs::read_to_string(file).unwrap())
        .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let sim = sim::start_with_log(scenario.engine, std::io::sink()).await.unwrap();
    let gate = Gate::ready_before(sim.url(), |_| {}).await;
    let waiting = Arc::new(Mutex::new(asks(&scenario.load)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..scenario.load.clients {
        let (addr, waiting) = (gate.data, Arc::clone(&waiting));
        clients.spawn(async move {
            let mut ends = Vec::new();
            loop {
                let Some(ask) = waiting.lock().unwrap().pop_front() else { return ends };
                ends.push(one(addr, &ask).await);
            }
        });
    }
    let mut most = 0;
    let watch = async {
        loop {
            most = most.max(gate.load().await.0);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ends = tokio::select! {
        ends = clients.join_all() => ends,
        () = watch => Vec::new(),
    };
    gate.idle().await;
    let ends: Vec<End> = ends.into_iter().flatten().collect();
    let mut ttft: Vec<f64> = Vec::new();
    let (mut refused, mut broken) = (0, 0);
    for end in &ends {
        match end {
            End::Served { ttft: time } => ttft.push(time.as_secs_f64()),
            End::Refused => refused += 1,
            End::Broken => broken += 1,
        }
    }
    ttft.sort_by(f64::total_cmp);
    let expect = scenario.expect;
    [
        within(file, "served", ttft.len(), expect.served),
        within(file, "refused", refused, expect.refused),
        within(file, "broken", broken, expect.broken),
        within(file, "preemptions", sim.stats().preemptions, expect.preemptions),
        within(file, "most_in_flight", most, expect.most_in_flight),
        within(file, "ttft_median_seconds", ttft[ttft.len() / 2], expect.ttft_median_seconds),
        within(file, "ttft_longest_seconds", ttft[ttft.len() - 1], expect.ttft_longest_seconds),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_scenario_stays_in_its_ranges() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/scenarios");
    let mut wrong = Vec::new();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 3);
    for file in files {
        wrong.extend(play(&file).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
