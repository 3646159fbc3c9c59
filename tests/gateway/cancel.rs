//! A client that leaves frees its place, its reservation and the engine's work at once.

use std::time::Duration;

use kvgate::sim::{self, Sim};
use serde_json::{Value, json};

use crate::support::{Engine, Gate, Raw, completion, soon, until};

fn ask(output: u64, stream: bool) -> Value {
    json!({"prompt": vec![7; 400], "max_tokens": output, "stream": stream})
}

async fn simulated(step_ms: f64) -> (Sim, Gate) {
    let settings = sim::Settings {
        pool_tokens: 1024,
        max_model_len: 1000,
        step_ms,
        prefill_us_per_token: 0.0,
        ..Default::default()
    };
    let sim = sim::start_with_log(settings, std::io::sink()).await.unwrap();
    let gate = Gate::ready_before(sim.url(), |_| {}).await;
    (sim, gate)
}

async fn sent(gate: &Gate, body: &Value) -> Raw {
    let mut client = gate.client().await;
    client.send(completion(body)).await;
    client
}

/// Waits until the engine has seen so many requests leave and holds nothing.
async fn aborted(sim: &Sim, count: u64) {
    soon("the engine's abort", sim.until(|s| s.aborted == count && s.running == 0 && s.waiting == 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_leaves_the_queue_was_never_at_the_engine() {
    let (sim, gate) = simulated(5.0).await;
    let first = sent(&gate, &ask(500, false)).await;
    gate.loaded(1, 0).await;
    let second = sent(&gate, &ask(500, false)).await;
    gate.loaded(1, 1).await;
    drop(second);
    gate.loaded(1, 0).await;
    drop(first);
    gate.idle().await;
    aborted(&sim, 1).await;
    assert_eq!(sim.stats().prompts_seen.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_leaves_before_its_first_token_frees_the_engine() {
    let (sim, gate) = simulated(1000.0).await;
    for (stream, count) in [(true, 1), (false, 2)] {
        let client = sent(&gate, &ask(500, stream)).await;
        soon("the request at the engine", sim.until(|s| s.running + s.waiting == 1)).await;
        drop(client);
        aborted(&sim, count).await;
        gate.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_leaves_in_the_middle_frees_the_engine() {
    let (sim, gate) = simulated(5.0).await;
    for count in 1..=4 {
        let mut client = sent(&gate, &ask(500, true)).await;
        assert_eq!(client.head().await.status, 200);
        client.chunk().await;
        client.chunk().await;
        if count % 2 == 0 {
            // Half a close is a client that has left (as for uvicorn).
            client.half_close().await;
        }
        drop(client);
        aborted(&sim, count).await;
        gate.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_place_of_one_that_left_goes_to_the_next() {
    let (sim, gate) = simulated(5.0).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(sent(&gate, &ask(500, true)).await);
        let queued = clients.len() as u64 - 1;
        gate.loaded(1, queued).await;
    }
    for left in (0..4).rev() {
        let mut client = clients.remove(0);
        assert_eq!(client.head().await.status, 200);
        drop(client);
        if left > 0 {
            gate.loaded(1, left - 1).await;
        }
    }
    aborted(&sim, 4).await;
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_leaves_inside_its_upload_is_no_fault_of_the_engine() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    let suspected = async || gate.admin_json("/api/v1/state").await["engine"]["state"] != "ready";
    for path in ["/v1/completions", "/v1/embeddings"] {
        for framing in ["content-length: 1000", "transfer-encoding: chunked"] {
            let mut client = gate.client().await;
            client.send(format!("POST {path} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n5\r\nabcde\r\n")).await;
            until("its arrival", async || (gate.load().await.2 == 1).then_some(())).await;
            drop(client);
            gate.idle().await;
            assert!(!suspected().await, "{path} {framing}");
        }
        // Broken framing inside the upload.
        let mut client = gate.client().await;
        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n"
            ))
            .await;
        until("its arrival", async || (gate.load().await.2 == 1).then_some(())).await;
        client.send("nonsense\r\n").await;
        let (rest, _) = client.rest().await;
        let text = String::from_utf8_lossy(&rest);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 400"), "{path}: {text}");
        gate.idle().await;
        assert!(!suspected().await, "{path}: framing");
    }
    assert!(!engine.asked());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_takes_nothing_in_is_cut_and_frees_the_engine() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.proxy.unread_timeout_seconds = 1.0).await;
    let mut client = gate.client().await;
    client.send(completion(&json!({"prompt": [1, 2, 3], "stream": true}))).await;
    let mut exchange = engine.next().await;
    exchange.stream().await;
    let event = format!("data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n", "x".repeat(200_000));
    let framed = format!("{:x}\r\n{event}\r\n", event.len());
    // More than all buffers on the way hold: the gateway stops taking it in, and at last gives up.
    soon("the gateway's giving up", async {
        while gate.load().await.0 > 0 {
            let _ = tokio::time::timeout(Duration::from_millis(100), exchange.try_send(&framed)).await;
        }
    })
    .await;
    gate.idle().await;
    drop(client);
}
