//! What the demo shows, in order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::client::{Reply, call};
use super::say;
use crate::gateway::Running;
use crate::sim::{Fault, Sim};

const CHAT: &str = "/v1/chat/completions";
/// Requests of the burst.
const BURST: usize = 40;

fn chat(text: &str, max_tokens: u64, stream: bool) -> Value {
    json!({
        "model": "demo",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "ignore_eos": true,
        "stream": stream,
    })
}

/// The whole story.
///
/// # Errors
/// Where the gateway does not answer.
pub async fn play(running: &Running, sim: &Sim, crash: bool) -> anyhow::Result<()> {
    let (data, admin) = (running.data, running.admin);
    say(&format!("simulated engine  {}  (context 2048 tokens, KV pool 4096 tokens)", sim.url()));
    say(&format!("kvgate            http://{data}  (clients)   http://{admin}  (operators)\n"));
    ready(admin).await?;
    stream(data).await?;
    too_long(data).await?;
    burst(data).await?;
    if crash {
        death(data, admin, sim).await?;
    }
    say("Light traffic goes on. Look at:");
    for path in ["/readyz", "/api/v1/state", "/api/v1/inflight", "/api/v1/reports", "/metrics"] {
        say(&format!("  curl http://{admin}{path}"));
    }
    say(&format!(
        "  curl -N http://{data}{CHAT} -H 'content-type: application/json' \\\n    -d '{}'\n",
        json!({"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": true})
    ));
    Ok(())
}

/// Waits until the engine is ready and its tokenizer was found.
async fn ready(admin: SocketAddr) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let reply = call(admin, Method::GET, "/readyz", None).await?;
        if reply.status == 200 && reply.field("/tokenizer/kind") == "tokenizer" {
            return Ok(());
        }
        anyhow::ensure!(
            begun.elapsed() < Duration::from_secs(20),
            "the demo's engine is not ready: {}",
            reply.text
        );
        sleep(Duration::from_millis(50)).await;
    }
}

async fn stream(data: SocketAddr) -> anyhow::Result<()> {
    let reply = call(data, Method::POST, CHAT, Some(&chat("Tell me about the sea.", 24, true))).await?;
    say(&format!(
        "1. a stream: {}, {} events, the first after {:.2} s",
        reply.status.as_u16(),
        reply.events(),
        reply.first.as_secs_f64()
    ));
    Ok(())
}

async fn too_long(data: SocketAddr) -> anyhow::Result<()> {
    let reply = call(data, Method::POST, CHAT, Some(&chat(&"far too long ".repeat(2000), 24, true))).await?;
    say(&format!(
        "2. a prompt over the limit: {} {}",
        reply.status.as_u16(),
        reply.header("x-kvgate-reason")
    ));
    say(&format!("   \"{}\"", reply.field("/error/message")));
    Ok(())
}

/// More at once than the engine can take: some run, some wait, the rest are told when to come back.
async fn burst(data: SocketAddr) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut calls = JoinSet::new();
    for n in 0..BURST {
        let body = chat(&format!("Request {n}: {}", "write on ".repeat(60)), 150, true);
        calls.spawn(async move { call(data, Method::POST, CHAT, Some(&body)).await });
    }
    let mut by_status: BTreeMap<u16, Vec<Reply>> = BTreeMap::new();
    while let Some(reply) = calls.join_next().await {
        let reply = reply??;
        by_status.entry(reply.status.as_u16()).or_default().push(reply);
    }
    say(&format!("3. {BURST} requests at once ({:.1} s):", begun.elapsed().as_secs_f64()));
    for (status, replies) in &by_status {
        let waits: Vec<u64> = replies.iter().filter_map(|r| r.header("retry-after").parse().ok()).collect();
        let told = match (waits.iter().min(), waits.iter().max()) {
            (Some(least), Some(most)) => format!("  Retry-After {least} to {most} s"),
            _ => String::new(),
        };
        say(&format!("   {:>3} × {status} {}{told}", replies.len(), replies[0].header("x-kvgate-reason")));
    }
    say("");
    Ok(())
}

/// One prompt kills the engine; everybody gets an answer, and the report names who was there.
async fn death(data: SocketAddr, admin: SocketAddr, sim: &Sim) -> anyhow::Result<()> {
    sim.fault(Fault::OomPromptTokens { tokens: 1200 });
    let mut bystanders = JoinSet::new();
    for n in 0..3 {
        let body = chat(&format!("Bystander {n}"), 400, n != 0);
        bystanders.spawn(async move { call(data, Method::POST, CHAT, Some(&body)).await });
    }
    sleep(Duration::from_millis(600)).await;
    let killer = call(data, Method::POST, CHAT, Some(&chat(&"deadly ".repeat(900), 24, true))).await?;
    say("4. a prompt that the engine's memory cannot hold:");
    say(&format!(
        "   to its sender   {} {}{}",
        killer.status.as_u16(),
        killer.header("x-kvgate-reason"),
        if killer.header("x-should-retry") == "false" { ", x-should-retry: false" } else { "" }
    ));
    while let Some(reply) = bystanders.join_next().await {
        let reply = reply??;
        let told = if reply.text.contains("engine_crashed") { "engine_crashed" } else { "" };
        let how = if reply.status == 200 { ", a stream that ends with" } else { "" };
        say(&format!("   to a bystander  {}{how} {told}", reply.status.as_u16()));
    }
    let report = report(admin).await?;
    say(&format!("   the report: http://{admin}/api/v1/reports/{}", report.field("/id")));
    let value: Value = serde_json::from_str(&report.text)?;
    for suspect in value["suspects"].as_array().into_iter().flatten().take(2) {
        let reasons: Vec<&str> =
            suspect["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        say(&format!(
            "   suspect {} (score {}): {}",
            suspect["id"].as_str().unwrap_or("?"),
            suspect["score"],
            reasons.join("; ")
        ));
    }
    ready(admin).await?;
    say("   the engine is back, and requests are served again\n");
    Ok(())
}

async fn report(admin: SocketAddr) -> anyhow::Result<Reply> {
    let begun = Instant::now();
    loop {
        let list = call(admin, Method::GET, "/api/v1/reports", None).await?;
        let id = list.field("/reports/0/id");
        if !id.is_empty() {
            return call(admin, Method::GET, &format!("/api/v1/reports/{id}"), None).await;
        }
        anyhow::ensure!(begun.elapsed() < Duration::from_secs(15), "no crash report was written");
        sleep(Duration::from_millis(50)).await;
    }
}

/// A request now and then, so that there is something to see.
pub async fn light_traffic(data: SocketAddr, time: Option<Duration>) {
    let until = time.map(|t| Instant::now() + t);
    let mut calls = JoinSet::new();
    let mut n = 0_u64;
    while until.is_none_or(|u| Instant::now() < u) {
        n += 1;
        let body = chat(
            &format!("Question {n}: {}", "why ".repeat((n % 50) as usize)),
            40 + n % 60,
            !n.is_multiple_of(3),
        );
        calls.spawn(async move { call(data, Method::POST, CHAT, Some(&body)).await });
        while calls.try_join_next().is_some() {}
        sleep(Duration::from_millis(300)).await;
    }
    calls.shutdown().await;
}
