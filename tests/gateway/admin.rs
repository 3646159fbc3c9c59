//! The admin port: probes, metrics, state.

use std::collections::BTreeSet;

use kvgate::admit::Rule;
use kvgate::sim::{self, Fault};
use kvgate::telemetry::names::{self, Kind};
use serde_json::json;

use crate::support::{Engine, Gate, PATIENCE, Raw, completion, get, request, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_names_of_its_own_are_answered() {
    let engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.operate.hosts = vec!["gate.example".to_owned()]).await;
    for (host, status) in [
        ("localhost", 200),
        ("127.0.0.1:8081", 200),
        ("[::1]:8081", 200),
        ("gate.example:1", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:8081", 421),
        ("", 421),
    ] {
        for path in ["/livez", "/metrics", "/api/v1/state", "/nothing"] {
            let mut client = Raw::connect(gate.admin).await;
            client.send(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
            let expected = if status == 200 && path == "/nothing" { 404 } else { status };
            assert_eq!(client.answer().await.status, expected, "{host} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_have_their_shapes_and_a_wrong_path_lists_the_right_ones() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    assert_eq!(gate.admin_json("/livez").await, json!({"alive": true}));
    assert_eq!(gate.admin_json("/startupz").await, json!({"started": true}));
    assert_eq!(gate.admin_json("/engine/livez").await["alive"], true);
    let ready = gate.admin_json("/readyz").await;
    assert_eq!((&ready["ready"], &ready["tokenizer"]["kind"]), (&json!(true), &json!("tokenizer")));
    let mut client = gate.client().await;
    client.send(completion(&json!({"prompt": vec![7; 9], "max_tokens": 5, "n": 2}))).await;
    let exchange = engine.next().await;
    let state = gate.admin_json("/api/v1/state").await;
    for (pointer, value) in [
        ("/engine/state", json!("ready")),
        ("/engine/kind", json!("vllm")),
        ("/engine/models", json!(["fake"])),
        ("/engine/starts_seen", json!(1)),
        ("/admission/in_flight", json!(1)),
        ("/admission/sequences", json!(2)),
        ("/admission/queued", json!(0)),
        ("/limits/engine/context_length", json!(2048)),
        ("/limits/mode/length", json!("enforce")),
        ("/tokenizer/kind", json!("tokenizer")),
    ] {
        assert_eq!(state.pointer(pointer), Some(&value), "{pointer}: {state:#}");
    }
    let inflight = gate.admin_json("/api/v1/inflight").await;
    assert_eq!(inflight["count"], 1);
    let record = &inflight["requests"][0];
    assert_eq!(Some(record["id"].as_str().unwrap()), exchange.header("x-request-id"));
    for (key, value) in [
        ("prompt_tokens", json!(9)),
        ("max_output_tokens", json!(5)),
        ("n", json!(2)),
        ("prompt_kind", json!("ids")),
    ] {
        assert_eq!(record[key], value, "{record:#}");
    }
    exchange.json(200, &json!({})).await;
    client.answer().await;
    let limits = gate.admin_json("/api/v1/limits").await;
    let rules: BTreeSet<_> = limits["mode"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(rules, Rule::ALL.map(|r| r.label().to_owned()).into());
    assert_eq!(gate.admin_json("/api/v1/reports").await, json!({"reports": [], "skipped": []}));
    for missing in
        ["/", "/metric", "/api/v1/", "/api/v1/state/x", "/api/v1/reports/crash-1-1", "/api/v1/reports/..%2f"]
    {
        let answer = gate.admin(missing).await;
        assert_eq!(answer.status, 404, "{missing}");
        if !missing.starts_with("/api/v1/reports/") {
            let paths = answer.json()["paths"].clone();
            assert!(paths.as_array().unwrap().contains(&json!("/api/v1/state")), "{missing}: {paths}");
        }
    }
    for method in ["POST", "DELETE", "PUT"] {
        assert_eq!(gate.admin_ask(&request(method, "/api/v1/state", &[], "")).await.status, 404);
    }
    let mut client = Raw::connect(gate.admin).await;
    client.send("HEAD /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(client.head().await.status, 200);
}

/// Facts that this scene cannot bring about.
const ELSEWHERE: &[&str] = &[];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_that_has_its_fact_is_on_the_page_and_the_page_reads() {
    let settings = sim::Settings {
        pool_tokens: 1024,
        max_model_len: 1000,
        step_ms: 2.0,
        load_seconds: Some(4.5),
        ..Default::default()
    };
    let sim = sim::start_with_log(settings, std::io::sink()).await.unwrap();
    let gate = Gate::ready_before(sim.url(), |c| {
        c.admit.mode.length = kvgate::admit::Mode::Shadow;
        c.tokens.check_one_in = 1;
    })
    .await;
    let ask = |prompt: usize| {
        completion(&json!({"prompt": vec![7; prompt], "max_tokens": 3, "stream": true,
                                                 "stream_options": {"include_usage": true}}))
    };
    assert_eq!(gate.ask(ask(10)).await.status, 200);
    assert_eq!(gate.ask(completion(&json!({"prompt": "Hello", "max_tokens": 3}))).await.status, 200);
    assert_eq!(gate.ask(ask(1500)).await.status, 400, "in shadow");
    assert_eq!(gate.ask(completion(&json!({"prompt": 1.5}))).await.status, 400);
    sim.fault(Fault::DieHard { load_seconds: None });
    until("a report", async || (gate.reports().await.len() == 1).then_some(())).await;
    gate.ready().await;
    let mut last = Vec::new();
    let page = until("all metrics", async || {
        let page = gate.admin("/metrics").await;
        let read = kvgate::engine::exposition::read(&page.body, |n| n.starts_with("kvgate_"));
        assert_eq!((read.bad_lines, read.truncated), (0, false));
        let missing = names::ALL.iter().filter(|m| {
            let suffix = if m.kind == Kind::Histogram { "_bucket" } else { "" };
            let name = format!("{}{suffix}", m.name);
            !ELSEWHERE.contains(&m.name) && !read.series.iter().any(|s| s.name == name)
        });
        let missing: Vec<_> = missing.map(|m| m.name).collect();
        if missing.is_empty() {
            return Some(page);
        }
        last = missing;
        None
    });
    let page = tokio::time::timeout(PATIENCE, page).await.unwrap_or_else(|_| panic!("missing: {last:?}"));
    assert!(page.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let text = page.text();
    for metric in names::ALL.iter().filter(|m| !ELSEWHERE.contains(&m.name)) {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        assert!(text.contains(&format!("# TYPE {} {kind}\n", metric.name)), "{}", metric.name);
        assert!(text.contains(&format!("# HELP {} ", metric.name)), "{}", metric.name);
    }
    // No series of ours that is in no table, none twice.
    let read = kvgate::engine::exposition::read(&page.body, |_| true);
    let mut seen = BTreeSet::new();
    for series in &read.series {
        let known = names::ALL.iter().any(|m| {
            series.name.strip_prefix(m.name).is_some_and(|rest| match m.kind {
                Kind::Histogram => ["_bucket", "_sum", "_count"].contains(&rest),
                Kind::Counter | Kind::Gauge => rest.is_empty(),
            })
        });
        assert!(known, "{} is in no table", series.name);
        assert!(seen.insert((series.name, series.raw_labels)), "{} twice", series.name);
    }
    let modes = read.series.iter().filter(|s| s.name == names::MODE).count();
    assert_eq!(modes, Rule::ALL.len() * 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_answer_while_the_data_port_is_full() {
    let engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.max_connections = 4).await;
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(gate.client().await);
    }
    assert_eq!(gate.admin("/livez").await.status, 200);
    // A place that is given back goes to the next in the backlog.
    held.drain(..8);
    let client = &mut held[0];
    client.send(get("/health")).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_client_that_stops_in_its_body_is_not_waited_for() {
    let engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    let mut client = Raw::connect(gate.admin).await;
    client.send("PATCH /api/v1/limits HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{").await;
    let (rest, _) = soon("the end", client.rest()).await;
    assert!(rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
    let mut client = Raw::connect(gate.admin).await;
    client.send("PATCH /api/v1/limits HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n\r\n").await;
    client.send(vec![b' '; 70_000]).await;
    assert_eq!(client.head().await.status, 413);
}
