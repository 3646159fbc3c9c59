//! What the journal adds to a request: an entry's way through the ledger without and with one, and
//! beside them the other way to build it, a write under a lock where the request is handled.
//!
//! `cargo bench --bench ledger`. First a table of medians and 99th percentiles over single requests,
//! then criterion's own numbers.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench")]

use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use kvgate::ledger::{Arrival, Ending, Entry, Ledger, Settings};
use kvgate::request::{Api, Outcome, RequestId, Shape, Tenant, Tokens};
use tokio::runtime::Runtime;

fn arrive(ledger: &Ledger) -> Entry {
    let shape = Shape {
        api: Some(Api::Chat),
        model: Some("meta-llama/Llama-3.1-8B-Instruct".to_owned()),
        prompt_tokens: Some(1234),
        max_output_tokens: Some(512),
        prompts: 1,
        n: 1,
        stream: true,
        ..Shape::default()
    };
    ledger.arrive(Arrival { id: RequestId::next(), client_id: None, tenant: Tenant::anonymous(), shape })
}

fn end(entry: Entry) {
    entry.end(Ending { outcome: Outcome::Completed, status: 200, reason: None });
}

/// How a request's record gets to disk.
#[derive(Clone)]
enum Way {
    /// By the ledger as it was opened: not at all, or by its journal.
    Ledger(Ledger),
    /// By a write under a lock on the request's own thread.
    Inline(Ledger, Arc<Mutex<File>>),
}

impl Way {
    async fn request(&self) -> Duration {
        match self {
            Self::Ledger(ledger) => {
                let entry = arrive(ledger);
                let started = Instant::now();
                entry.send(Tokens(1746)).await;
                let took = started.elapsed();
                end(entry);
                took
            }
            Self::Inline(ledger, file) => {
                let entry = arrive(ledger);
                let started = Instant::now();
                entry.send(Tokens(1746)).await;
                let json = serde_json::to_vec(&entry.record()).unwrap();
                let mut line = format!("kv1 {:08x} {:08} ", crc32fast::hash(&json), json.len()).into_bytes();
                line.extend_from_slice(&json);
                line.push(b'\n');
                file.lock().unwrap().write_all(&line).unwrap();
                let took = started.elapsed();
                end(entry);
                took
            }
        }
    }
}

struct Ways {
    _dir: tempfile::TempDir,
    ways: Vec<(&'static str, Way)>,
}

fn ways() -> Ways {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { state_dir: Some(dir.path().join("state")), ..Settings::default() };
    let (journaled, recovered) = Ledger::open(&settings);
    assert!(recovered.durable, "{recovered:?}");
    let file = File::options().create(true).append(true).open(dir.path().join("inline.log")).unwrap();
    let ways = vec![
        ("memory only", Way::Ledger(Ledger::in_memory())),
        ("journal", Way::Ledger(journaled)),
        ("inline write", Way::Inline(Ledger::in_memory(), Arc::new(Mutex::new(file)))),
    ];
    Ways { _dir: dir, ways }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// How requests come.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Tasks, each with one request at a time.
    at_once: usize,
    /// How long each task rests between two requests.
    pause: Option<Duration>,
    requests: usize,
}

const LOADS: [Load; 4] = [
    Load { name: "8 x 1 ms apart", at_once: 8, pause: Some(Duration::from_millis(1)), requests: 8_000 },
    Load { name: "one by one", at_once: 1, pause: None, requests: 20_000 },
    Load { name: "8, no pause", at_once: 8, pause: None, requests: 20_000 },
    Load { name: "64, no pause", at_once: 64, pause: None, requests: 20_000 },
];

/// The median and 99th percentile of `send`, in microseconds.
fn measure(runtime: &Runtime, way: &Way, load: Load) -> (f64, f64) {
    let Load { at_once, requests, pause, .. } = load;
    let tasks: Vec<_> = (0..at_once)
        .map(|_| {
            let way = way.clone();
            runtime.spawn(async move {
                let mut took = Vec::with_capacity(requests / at_once);
                for _ in 0..requests / at_once {
                    took.push(way.request().await);
                    match pause {
                        Some(pause) => tokio::time::sleep(pause).await,
                        None => tokio::task::yield_now().await,
                    }
                }
                took
            })
        })
        .collect();
    let mut all: Vec<Duration> = tasks.into_iter().flat_map(|t| runtime.block_on(t).unwrap()).collect();
    all.sort_unstable();
    let at = |q: f64| all[((all.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e6;
    (at(0.5), at(0.99))
}

fn table() {
    let (runtime, ways) = (runtime(), ways());
    println!("{:<16}{:<16}{:>9}{:>9}{:>11}{:>9}", "", "requests", "p50 us", "p99 us", "added p50", "ratio");
    for load in LOADS {
        let mut base = 0.0;
        for (name, way) in &ways.ways {
            measure(&runtime, way, Load { requests: load.requests / 10, ..load });
            let (p50, p99) = measure(&runtime, way, load);
            if *name == "memory only" {
                base = p50;
            }
            let (added, ratio, load) = (p50 - base, p50 / base, load.name);
            println!("{name:<16}{load:<16}{p50:>9.2}{p99:>9.1}{added:>11.2}{ratio:>9.1}");
        }
    }
}

fn ledger(c: &mut Criterion) {
    table();
    let (runtime, ways) = (runtime(), ways());
    let mut group = c.benchmark_group("ledger: one request");
    for (name, way) in &ways.ways {
        group.bench_function(*name, |b| {
            b.iter_custom(|n| {
                let way = way.clone();
                let task = runtime.spawn(async move {
                    let started = Instant::now();
                    for _ in 0..n {
                        way.request().await;
                    }
                    started.elapsed()
                });
                runtime.block_on(task).unwrap()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, ledger);
criterion_main!(benches);
