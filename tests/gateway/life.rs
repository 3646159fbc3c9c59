//! The engine's life and death, as clients and the operator see them.

use kvgate::admit::Mode;
use kvgate::sim::{self, Fault, Loading};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{Engine, Exchange, Gate, Raw, completion, get, soon, until};

const PIECE: &str = "data: {\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":null}]}\n\n";

fn hi(stream: bool) -> Value {
    json!({"prompt": "Hi", "max_tokens": 3, "stream": stream})
}

async fn pair() -> (Engine, Gate) {
    let engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    (engine, gate)
}

async fn sent(gate: &Gate, body: &Value) -> Raw {
    let mut client = gate.client().await;
    client.send(completion(body)).await;
    client
}

/// One request answered, so that the gateway holds a connection to the engine.
async fn warm(engine: &mut Engine, gate: &Gate) {
    let mut client = sent(gate, &hi(false)).await;
    engine.next().await.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
    gate.idle().await;
}

/// Nothing was taken for a death.
async fn unharmed(gate: &Gate) {
    gate.engine("ready").await;
    assert_eq!(gate.reports().await, Vec::<Value>::new());
    assert_eq!(gate.admin_json("/api/v1/state").await["engine"]["starts_seen"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_closes_idle_connections_is_not_dead() {
    let (mut engine, gate) = pair().await;
    for _ in 0..20 {
        warm(&mut engine, &gate).await;
        engine.close_idle();
    }
    unharmed(&gate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_exactly_under_a_request_costs_nothing() {
    let (mut engine, gate) = pair().await;
    for reset in [false, true] {
        warm(&mut engine, &gate).await;
        let mut client = sent(&gate, &hi(false)).await;
        let exchange = engine.next().await;
        let first = exchange.connection;
        // The engine closes the reused connection without a byte: the request goes out once more.
        if reset {
            exchange.reset()
        } else {
            drop(exchange)
        }
        let exchange = engine.next().await;
        assert_ne!(exchange.connection, first);
        exchange.json(200, &json!({"again": true})).await;
        assert_eq!(client.answer().await.json(), json!({"again": true}));
    }
    unharmed(&gate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_never_sent_three_times() {
    let (mut engine, gate) = pair().await;
    warm(&mut engine, &gate).await;
    let mut client = sent(&gate, &hi(false)).await;
    engine.next().await.reset();
    engine.next().await.reset();
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "engine_crashed"));
    assert!(!engine.asked());
    unharmed(&gate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_on_a_new_connection_or_by_another_process_is_not_sent_again() {
    let (mut engine, gate) = pair().await;
    let mut client = sent(&gate, &hi(false)).await;
    engine.next().await.reset();
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "engine_crashed"));
    assert!(!engine.asked());
    gate.engine("ready").await;
    warm(&mut engine, &gate).await;
    let mut client = sent(&gate, &hi(false)).await;
    let exchange = engine.next().await;
    engine.face(|f| f.start_time += 50.0);
    exchange.reset();
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "engine_crashed"));
    assert!(!engine.asked(), "the process changed: the request may have killed it");
    until("a report", async || (gate.reports().await.len() == 1).then_some(())).await;
    gate.ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_streams_through_is_never_sent_again() {
    let (mut engine, gate) = pair().await;
    warm(&mut engine, &gate).await;
    let mut client = gate.client().await;
    client.send(crate::support::client::post("/v1/embeddings", &[], &hi(false))).await;
    engine.next().await.reset();
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "engine_crashed"));
    assert!(!engine.asked());
    unharmed(&gate).await;
}

/// Requests in each state at the engine's death.
struct Scene {
    streaming: (Raw, Exchange),
    prefill: (Raw, Exchange),
    plain: (Raw, Exchange),
    queued: Vec<Raw>,
}

async fn scene(engine: &mut Engine, gate: &Gate) -> Scene {
    // Served before: not among those that the report names.
    warm(engine, gate).await;
    let large = |stream| json!({"prompt": vec![7; 600], "max_tokens": 600, "stream": stream});
    let mut streaming = sent(gate, &large(true)).await;
    let mut exchange = engine.next().await;
    exchange.stream().await;
    exchange.chunk(PIECE).await;
    streaming.head().await;
    streaming.chunk().await;
    let prefill = sent(gate, &large(true)).await;
    let at_prefill = engine.next().await;
    let plain = sent(gate, &large(false)).await;
    let at_plain = engine.next().await;
    let mut queued = Vec::new();
    for _ in 0..3 {
        queued.push(sent(gate, &large(false)).await);
    }
    gate.loaded(3, 3).await;
    Scene {
        streaming: (streaming, exchange),
        prefill: (prefill, at_prefill),
        plain: (plain, at_plain),
        queued,
    }
}

fn named(report: &Value, list: &str) -> Vec<String> {
    let ids = report[list].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap().to_owned());
    let mut ids: Vec<_> = ids.collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_answers_everybody_and_one_report_names_those_in_flight() {
    let (mut engine, gate) = pair().await;
    let scene = scene(&mut engine, &gate).await;
    let ids = |e: &Exchange| e.header("x-request-id").unwrap().to_owned();
    let mut with = vec![ids(&scene.streaming.1), ids(&scene.prefill.1), ids(&scene.plain.1)];
    with.sort();
    engine.die().await;
    for (_, exchange) in [&scene.streaming, &scene.prefill, &scene.plain] {
        assert!(exchange.connection > 0);
    }
    let (mut streaming, exchange) = scene.streaming;
    exchange.reset();
    scene.prefill.1.reset();
    scene.plain.1.reset();
    let ending = String::from_utf8(streaming.chunks().await).unwrap();
    assert!(
        ending.starts_with("event: error\ndata: ") && ending.ends_with("\n\ndata: [DONE]\n\n"),
        "{ending}"
    );
    for mut client in [scene.prefill.0, scene.plain.0] {
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "engine_crashed"));
    }
    for mut client in scene.queued {
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "engine_unavailable"));
    }
    let late = gate.ask(completion(&hi(false))).await;
    assert_eq!((late.status, late.code().as_str()), (503, "engine_unavailable"));
    let ready = gate.admin("/readyz").await;
    assert_eq!((ready.status, &ready.json()["reason"]), (503, &json!("engine_down")));
    assert!(ready.json()["for_seconds"].as_f64().unwrap() >= 0.0);
    assert_eq!(gate.ask(get("/v1/models")).await.code(), "engine_unavailable");
    engine.revive().await;
    gate.ready().await;
    warm(&mut engine, &gate).await;
    let reports = gate.reports().await;
    assert_eq!(reports.len(), 1, "{reports:#?}");
    assert_eq!(named(&reports[0], "in_flight"), with);
    // Some of those that waited may have been let in by the first reset, before all was known.
    let (late, queued) =
        (named(&reports[0], "sent_while_suspected"), reports[0]["queued_total"].as_u64().unwrap());
    assert!(late.len() as u64 + queued <= 3, "{:#}", reports[0]);
    assert!(reports[0]["confirmed_by"].as_array().unwrap().len() >= 2, "{}", reports[0]["confirmed_by"]);
    assert_eq!(gate.admin_json("/api/v1/state").await["engine"]["starts_seen"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_die_leaves_one_report_and_a_gate_that_opens_again() {
    // Start times that are closer than half a second count as one process.
    let deaths = [
        Fault::Die { load_seconds: Some(0.7) },
        Fault::DieHard { load_seconds: Some(0.7) },
        Fault::Restart { load_seconds: 0.7 },
    ];
    for loading in [Loading::Refused, Loading::Answers503] {
        let settings = sim::Settings { step_ms: 5.0, loading, ..Default::default() };
        let sim = sim::start_with_log(settings, std::io::sink()).await.unwrap();
        let gate = Gate::ready_before(sim.url(), |_| {}).await;
        for (number, death) in deaths.iter().enumerate() {
            let mut clients = Vec::new();
            for stream in [true, false, true] {
                clients
                    .push(sent(&gate, &json!({"prompt": "Hi", "max_tokens": 500, "stream": stream})).await);
            }
            soon("all at the engine", sim.until(|s| s.running == 3)).await;
            gate.loaded(3, 0).await;
            sim.fault(death.clone());
            for client in &mut clients {
                let answer = client.answer().await;
                let whole = answer.status == 503 && answer.code() == "engine_crashed"
                    || answer.status == 200
                        && answer.text().ends_with("data: [DONE]\n\n")
                        && answer.text().contains("engine_crashed");
                assert!(whole, "{loading:?} {death:?}: {answer:?}");
            }
            until(&format!("a report of {death:?}, {loading:?}"), async || {
                (gate.reports().await.len() == number + 1).then_some(())
            })
            .await;
            let report = gate.reports().await.remove(0);
            assert_eq!(report["in_flight"].as_array().unwrap().len(), 3, "{loading:?} {death:?}");
            gate.ready().await;
            gate.idle().await;
            let answer = gate.ask(completion(&hi(false))).await;
            assert_eq!(answer.status, 200, "{loading:?} {death:?}: {answer:?}");
        }
        assert_eq!(gate.reports().await.len(), deaths.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_killer_is_told_not_to_come_back_its_like_is_kept_out_and_bystanders_may_return() {
    let settings = sim::Settings {
        step_ms: 5.0,
        load_seconds: Some(0.2),
        faults: vec![Fault::OomPromptTokens { tokens: 1000 }],
        ..Default::default()
    };
    let sim = sim::start_with_log(settings, std::io::sink()).await.unwrap();
    let gate = Gate::ready_before(sim.url(), |c| c.admit.mode.guard = Mode::Enforce).await;
    // A prompt of some length that the engine has borne.
    assert_eq!(gate.ask(completion(&json!({"prompt": vec![7; 500], "max_tokens": 1}))).await.status, 200);
    let mut bystander = sent(&gate, &json!({"prompt": vec![7; 300], "max_tokens": 400})).await;
    soon("the bystander", sim.until(|s| s.running == 1)).await;
    let killer = gate.ask(completion(&json!({"prompt": vec![7; 1200], "max_tokens": 3}))).await;
    assert_eq!((killer.status, killer.header("x-should-retry")), (503, Some("false")), "{killer:?}");
    let answer = bystander.answer().await;
    assert_eq!((answer.status, answer.header("x-should-retry")), (503, None), "{answer:?}");
    until("a report", async || (gate.reports().await.len() == 1).then_some(())).await;
    let report = gate.reports().await.remove(0);
    assert_eq!(report["suspects"][0]["id"].as_str(), killer.header("x-kvgate-request-id"), "{report:#}");
    // Its answer had broken, and its place was given back, before the death was known.
    assert_eq!(gate.admin_json("/api/v1/limits").await["learned"]["guard_tokens"], 600);
    gate.ready().await;
    for (prompt, status) in [(1200, 413), (601, 413), (600, 200)] {
        let answer = gate.ask(completion(&json!({"prompt": vec![7; prompt], "max_tokens": 1}))).await;
        assert_eq!(answer.status, status, "{prompt}: {answer:?}");
    }
    assert_eq!(gate.reports().await.len(), 1, "the engine lives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_engine_loads_clients_are_told_when_to_come_back() {
    for loading in [Loading::Refused, Loading::Answers503] {
        let settings = sim::Settings { start_load_seconds: 3.0, loading, ..Default::default() };
        let sim = sim::start_with_log(settings, std::io::sink()).await.unwrap();
        let gate = Gate::before(sim.url(), |_| {}).await;
        let answer = gate.ask(completion(&hi(false))).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "engine_unavailable"), "{loading:?}");
        let ready = gate.admin("/readyz").await;
        assert_eq!((ready.status, &ready.json()["reason"]), (503, &json!("engine_loading")));
        assert_eq!(gate.admin("/startupz").await.status, 200);
        assert_eq!(gate.admin("/livez").await.status, 200);
        assert_eq!(gate.admin("/engine/livez").await.status, 200);
        gate.ready().await;
        assert_eq!(gate.ask(completion(&hi(false))).await.status, 200);
        assert_eq!(gate.reports().await, Vec::<Value>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_pod_stays_ready_without_its_engine() {
    let gate = Gate::before("http://127.0.0.1:9".to_owned(), |c| {
        c.operate.ready_policy = kvgate::operate::ReadyPolicy::Single;
    })
    .await;
    let ready = gate.admin("/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (200, &json!(false)));
    assert_eq!(gate.ask(completion(&hi(false))).await.code(), "engine_unavailable");
    assert_eq!(gate.ask(get("/v1/models")).await.code(), "engine_unavailable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_streams_end_and_takes_no_more() {
    let (mut engine, gate) = pair().await;
    let mut client = sent(&gate, &hi(true)).await;
    let mut exchange = engine.next().await;
    exchange.stream().await;
    exchange.chunk(PIECE).await;
    client.head().await;
    client.chunk().await;
    let mut idle = gate.client().await;
    idle.send(get("/health")).await;
    assert_eq!(idle.answer().await.status, 200);
    gate.stop();
    let ready = until("the drain", async || {
        let ready = gate.admin("/readyz").await;
        (ready.status == 503).then_some(ready)
    })
    .await;
    assert_eq!(ready.json()["reason"], "draining");
    assert_eq!(idle.rest().await, (Vec::new(), None), "an idle connection is closed");
    until("the end of listening", async || match tokio::net::TcpStream::connect(gate.data).await {
        Err(_) => Some(()),
        Ok(_) => None,
    })
    .await;
    exchange.chunk("data: {\"choices\":[{\"index\":0,\"text\":\"y\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n").await;
    exchange.end_chunks().await;
    let rest = String::from_utf8(client.chunks().await).unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n") && !rest.contains("error"), "{rest}");
    assert_eq!(client.rest().await, (Vec::new(), None));
    gate.ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_evicts_the_queue_and_cuts_what_takes_too_long() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.drain_seconds = 0.5).await;
    let large = json!({"prompt": vec![7; 1500], "max_tokens": 548, "stream": true});
    let mut first = sent(&gate, &large).await;
    let mut exchange = engine.next().await;
    let mut second = sent(&gate, &large).await;
    gate.loaded(1, 1).await;
    gate.stop();
    let answer = second.answer().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "engine_unavailable"));
    gate.ended().await;
    exchange.left().await;
    let (rest, _) = first.rest().await;
    assert_eq!(rest, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_starts_on_a_port_in_use_says_which() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = kvgate::config::Config::default();
    config.proxy.listen = taken.local_addr().unwrap();
    config.operate.listen = "127.0.0.1:0".parse().unwrap();
    let error = kvgate::gateway::start(config, CancellationToken::new()).await.err().unwrap().to_string();
    assert!(
        error.contains("proxy.listen") && error.contains(&taken.local_addr().unwrap().to_string()),
        "{error}"
    );
}
