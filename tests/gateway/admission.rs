//! Who is let in, who waits, who is refused, and in which words.

use std::process::Command;

use kvgate::admit::Mode;
use kvgate::config::Config;
use kvgate::sim::{self, Sim};
use serde_json::{Value, json};

use crate::support::client::post;
use crate::support::{Answer, Engine, Gate, Raw, completion, request, soon, until};

/// A prompt of so many tokens, exactly.
fn ids(count: usize) -> Value {
    json!(vec![7; count])
}

fn ask(prompt: usize, output: u64) -> Value {
    json!({"prompt": ids(prompt), "max_tokens": output})
}

/// Room for one request of 400 + 400 tokens, and no second.
fn small() -> sim::Settings {
    sim::Settings {
        pool_tokens: 1024,
        max_model_len: 1000,
        step_ms: 2.0,
        prefill_us_per_token: 0.0,
        ..Default::default()
    }
}

async fn simulated(settings: sim::Settings, change: impl FnOnce(&mut Config)) -> (Sim, Gate) {
    let sim = sim::start_with_log(settings, std::io::sink()).await.unwrap();
    let gate = Gate::ready_before(sim.url(), change).await;
    (sim, gate)
}

async fn sent(gate: &Gate, request: impl AsRef<[u8]>) -> Raw {
    let mut client = gate.client().await;
    client.send(request).await;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_is_too_long_is_refused_with_numbers_and_both_phrases() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    let chat = json!({"messages": [{"role": "user", "content": "word and ".repeat(4000)}]});
    let chat = post("/v1/chat/completions", &[("x-request-id", "mine")], &chat);
    for (ask, param) in [(completion(&ask(2048, 1)), "prompt"), (chat, "messages")] {
        let answer = gate.ask(&ask).await;
        assert_eq!(answer.json()["error"]["param"], param);
        assert_eq!((answer.status, answer.code().as_str()), (413, "context_length_exceeded"));
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("This model's maximum context length is 2048 tokens"), "{message}");
        assert!(message.contains("exceeds the context window"), "{message}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        let tokens: u64 = answer.header("x-kvgate-prompt-tokens").unwrap().parse().unwrap();
        assert!(tokens >= 2048, "{tokens}");
        assert_eq!(answer.header("x-kvgate-limit"), Some("2047"));
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        assert_eq!(answer.header("connection"), None);
    }
    assert!(!engine.asked());
    // The longest that runs passes, and output over the context is the engine's to cut.
    let mut client = sent(&gate, completion(&ask(2047, 500))).await;
    engine.next().await.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_and_the_limit_can_be_configured() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| {
        c.admit.length.status = 400;
        c.admit.length.max_prompt_tokens = std::num::NonZeroU64::new(100);
    })
    .await;
    let answer = gate.ask(completion(&ask(101, 1))).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "context_length_exceeded"));
    assert_eq!(
        (answer.header("x-kvgate-prompt-tokens"), answer.header("x-kvgate-limit")),
        (Some("101"), Some("100"))
    );
    assert!(!engine.asked());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_output_refuses_what_would_be_cut() {
    let mut engine = Engine::start().await;
    let gate =
        Gate::ready_before(engine.url(), |c| c.admit.length.output = kvgate::admit::OutputRule::Strict).await;
    let answer = gate.ask(completion(&ask(2000, 49))).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "context_length_exceeded"));
    let mut client = sent(&gate, completion(&ask(2000, 48))).await;
    engine.next().await.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_over_its_rate_is_told_so() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| {
        c.admit.rates.requests_per_minute = std::num::NonZeroU32::new(30);
        c.admit.rates.burst = std::num::NonZeroU32::new(2);
    })
    .await;
    let ask = |tenant: &str| {
        post("/v1/completions", &[("Authorization", &format!("Bearer {tenant}"))], &json!({"prompt": "Hi"}))
    };
    for _ in 0..2 {
        let mut client = sent(&gate, ask("a")).await;
        engine.next().await.json(200, &json!({})).await;
        assert_eq!(client.answer().await.status, 200);
    }
    let answer = gate.ask(ask("a")).await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "rate_limited"));
    assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("30"));
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("0"));
    let reset = answer.header("x-ratelimit-reset-requests").unwrap();
    let seconds: f64 = reset.strip_suffix('s').unwrap().parse().unwrap();
    assert!(seconds > 0.0 && seconds <= 2.0, "{reset}");
    assert!(!engine.asked());
    // Another tenant has its own.
    let mut client = sent(&gate, ask("b")).await;
    engine.next().await.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_waits_and_is_let_in() {
    let (sim, gate) = simulated(small(), |_| {}).await;
    let mut first = sent(&gate, completion(&ask(400, 400))).await;
    gate.loaded(1, 0).await;
    let mut second = sent(&gate, completion(&ask(400, 400))).await;
    gate.loaded(1, 1).await;
    let stats = sim.stats();
    assert_eq!((stats.running, stats.waiting, stats.prompts_seen.len()), (1, 0, 1));
    for client in [&mut first, &mut second] {
        let answer = client.answer().await;
        assert_eq!(answer.json()["usage"]["completion_tokens"], 400, "{answer:?}");
    }
    assert_eq!(sim.stats().preemptions, 0);
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_longer_than_asked() {
    let (sim, gate) = simulated(sim::Settings { step_ms: 50.0, ..small() }, |_| {}).await;
    let _first = sent(&gate, completion(&ask(400, 400))).await;
    gate.loaded(1, 0).await;
    for (name, value) in [("x-kvgate-max-wait", "0.3"), ("x-stainless-read-timeout", "0.6")] {
        let answer = gate.ask(post("/v1/completions", &[(name, value)], &ask(400, 400))).await;
        assert_eq!((answer.status, answer.code().as_str()), (429, "engine_saturated"), "{name}");
        assert_eq!(answer.header("x-should-retry"), None);
    }
    assert_eq!(sim.stats().prompts_seen.len(), 1);
    gate.loaded(1, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses() {
    let (_sim, gate) =
        simulated(sim::Settings { step_ms: 50.0, ..small() }, |c| c.admit.queue.requests = 1).await;
    let _first = sent(&gate, completion(&ask(400, 400))).await;
    gate.loaded(1, 0).await;
    let _second = sent(&gate, completion(&ask(400, 400))).await;
    gate.loaded(1, 1).await;
    let answer = gate.ask(completion(&ask(400, 400))).await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "engine_saturated"));
    assert!(answer.text().contains("queue is full"), "{}", answer.text());
}

/// A counter of the global recorder, over all its labels that hold `with`.
async fn counted(gate: &Gate, name: &str, with: &str) -> f64 {
    let page = gate.admin("/metrics").await;
    let page = kvgate::engine::exposition::read(&page.body, |n| n == name);
    page.series.iter().filter(|s| s.raw_labels.contains(with)).map(|s| s.value).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_shadow_all_passes_and_is_said() {
    let (sim, gate) = simulated(small(), |c| {
        c.admit.mode.capacity = Mode::Shadow;
        c.admit.mode.length = Mode::Shadow;
        c.admit.queue.requests = 1;
    })
    .await;
    let name = "kvgate_shadow_rejections_total";
    let long = "context_length_exceeded";
    let before = counted(&gate, name, long).await;
    // The engine refuses in its own words.
    let answer = gate.ask(completion(&ask(1001, 1))).await;
    assert_eq!((answer.status, answer.header("x-kvgate-reason")), (400, None));
    until("the shadow's count", async || (counted(&gate, name, long).await > before).then_some(())).await;
    let mut clients = Vec::new();
    let full = "engine_saturated";
    let before = counted(&gate, name, full).await;
    for _ in 0..4 {
        clients.push(sent(&gate, completion(&ask(400, 100))).await);
    }
    soon("all at the engine", sim.until(|s| s.prompts_seen.len() == 4)).await;
    for client in &mut clients {
        assert_eq!(client.answer().await.json()["usage"]["completion_tokens"], 100);
    }
    gate.idle().await;
    assert!(counted(&gate, name, full).await > before);
    // The report says the same: one refused by the length, which the engine refused too; those that would have
    // waited in vain, which the engine served.
    let admin = format!("http://{}", gate.admin);
    let report = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvgate"));
        let output = command.args(["shadow-report", "--admin", &admin]).args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let lines: Value = serde_json::from_str(&tokio::task::block_in_place(|| report(&["--json"]))).unwrap();
    let of = |rule: &str| lines.as_array().unwrap().iter().find(|line| line["rule"] == rule).unwrap().clone();
    let length = of("length");
    assert_eq!(
        (&length["requests"], &length["refused"], &length["refused_failed"]),
        (&json!(5), &json!(1), &json!(1))
    );
    let capacity = of("capacity");
    assert_eq!(capacity["requests"], 5);
    assert!(capacity["refused"].as_u64() >= Some(1), "{capacity}");
    assert_eq!(capacity["refused"], capacity["refused_completed"]);
    let text = tokio::task::block_in_place(|| report(&[]));
    assert!(text.contains("The order in which to switch them on:"), "{text}");
}

#[test]
fn a_shadow_report_that_cannot_be_had_says_why() {
    let report = |admin: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvgate"));
        let output = command.args(["shadow-report", "--admin", admin]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (admin, why) in [
        ("http://127.0.0.1:1", "is the gateway running?"),
        ("https://127.0.0.1:1", "speaks http"),
        ("127.0.0.1:1", "http"),
        ("not a url", "not a URL"),
    ] {
        let (code, text) = report(admin);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(admin) && text.contains(why), "{text}");
    }
}

/// An engine with room for one request, and a gateway whose waiting streams hear comments; the one that holds the
/// engine meanwhile.
async fn waiting_aloud() -> (Sim, Gate, Raw) {
    let (sim, gate) = simulated(small(), |c| c.proxy.queue_keep_alive_seconds = 0.05).await;
    let long = json!({"prompt": ids(400), "max_tokens": 400, "stream": true});
    let mut first = sent(&gate, completion(&long)).await;
    assert_eq!(first.head().await.status, 200);
    (sim, gate, first)
}

fn stream(output: u64) -> Value {
    json!({"prompt": ids(400), "max_tokens": output, "stream": true})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_waits_aloud_hears_comments_and_then_the_engine_byte_for_byte() {
    let (sim, gate, _first) = waiting_aloud().await;
    let mut client = sent(&gate, completion(&stream(20))).await;
    let answer = client.answer().await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("text/event-stream; charset=utf-8"))
    );
    assert!(answer.header("x-kvgate-request-id").is_some());
    let comment = ": waiting\n\n";
    let text = answer.text();
    assert!(text.starts_with(comment), "{text}");
    let engine = text.trim_start_matches(comment);
    assert!(engine.starts_with("data: ") && engine.ends_with("data: [DONE]\n\n"), "{engine}");
    assert!(!engine.contains(": waiting"), "none once it has begun");
    assert_eq!(engine.matches("data: ").count(), 21, "{engine}");
    assert_eq!(sim.stats().preemptions, 0);
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_one_that_waited_aloud_is_an_event_and_one_that_leaves_frees_its_place() {
    let (sim, gate, first) = waiting_aloud().await;
    let head = [("x-kvgate-max-wait", "30")];
    let mut gone = sent(&gate, post("/v1/completions", &head, &stream(20))).await;
    assert_eq!(gone.head().await.status, 200);
    assert_eq!(gone.chunk().await, b": waiting\n\n");
    gate.loaded(1, 1).await;
    drop(gone);
    gate.loaded(1, 0).await;
    // Nobody knows the pace yet who has seen no stream end: the deadline itself passes.
    let head = [("x-kvgate-max-wait", "0.3")];
    let mut late = sent(&gate, post("/v1/completions", &head, &stream(20))).await;
    let answer = late.answer().await;
    if answer.status == 200 {
        let (_, event) = answer.text().rsplit_once(": waiting\n\n").unwrap();
        let data =
            event.strip_prefix("event: error\ndata: ").unwrap().strip_suffix("\n\ndata: [DONE]\n\n").unwrap();
        let error: Value = serde_json::from_str(data).unwrap();
        assert_eq!(error["error"]["code"], "engine_saturated");
    } else {
        assert_eq!((answer.status, answer.code().as_str()), (429, "engine_saturated"));
    }
    assert_eq!(sim.stats().prompts_seen.len(), 1);
    drop(first);
    gate.idle().await;
}

/// A gateway with an admin token.
async fn with_token(url: String) -> Gate {
    let gate_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(gate_file.path(), "0123456789abcdef\n").unwrap();
    let (_, path) = gate_file.keep().unwrap();
    Gate::ready_before(url, |c| c.operate.token_file = Some(path)).await
}

async fn patch(gate: &Gate, token: Option<&str>, body: &Value) -> Answer {
    let value = format!("Bearer {}", token.unwrap_or_default());
    let headers = [("Authorization", value.as_str())];
    let headers = if token.is_some() { &headers[..] } else { &[] };
    gate.admin_ask(&request("PATCH", "/api/v1/limits", headers, body.to_string())).await
}

const TOKEN: Option<&str> = Some("0123456789abcdef");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_change_at_once_by_the_token_and_only_by_it() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |_| {}).await;
    assert_eq!(patch(&gate, TOKEN, &json!({"mode": "off"})).await.status, 403, "no token is configured");
    let gate = with_token(engine.url()).await;
    let off = json!({"mode": {"length": "off"}});
    for wrong in [None, Some(""), Some("0123456789abcdee"), Some("0123456789abcde")] {
        assert_eq!(patch(&gate, wrong, &off).await.status, 401, "{wrong:?}");
    }
    for wrong in [
        json!({"mode": {"length": "of"}}),
        json!({"mode": {"length": "off", "nonsense": "off"}}),
        json!({"mode": 1}),
        json!({"limit": 1}),
        json!({}),
        json!([]),
    ] {
        assert_eq!(patch(&gate, TOKEN, &wrong).await.status, 400, "{wrong}");
    }
    let long = completion(&ask(3000, 1));
    assert_eq!(gate.ask(&long).await.status, 413, "nothing was changed so far");
    let answer = patch(&gate, TOKEN, &off).await;
    assert_eq!((answer.status, &answer.json()["mode"]["length"]), (200, &json!("off")));
    let mut client = sent(&gate, &long).await;
    engine.next().await.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(patch(&gate, TOKEN, &json!({"mode": "enforce"})).await.status, 200);
    assert_eq!(gate.ask(&long).await.status, 413);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_off_is_a_plain_proxy_and_frees_all_that_wait() {
    let sim = sim::start_with_log(sim::Settings { step_ms: 20.0, ..small() }, std::io::sink()).await.unwrap();
    let gate = with_token(sim.url()).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(sent(&gate, completion(&ask(600, 60))).await);
    }
    gate.loaded(1, 2).await;
    assert_eq!(patch(&gate, TOKEN, &json!({"mode": "off"})).await.status, 200);
    soon("all at the engine", sim.until(|s| s.prompts_seen.len() == 3)).await;
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
    gate.idle().await;
    // No rule looks: not at lengths, bodies, paths.
    let answer = gate.ask(completion(&ask(1001, 1))).await;
    assert_eq!((answer.status, answer.header("x-kvgate-reason")), (400, None), "the engine's own refusal");
    assert_eq!(gate.ask(request("POST", "/v1/load_lora_adapter", &[], "{}")).await.status, 404);
    assert_eq!(
        gate.ask(request("POST", "/v1/completions", &[], "nonsense")).await.header("x-kvgate-reason"),
        None
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_is_off_says_nothing() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| {
        c.proxy.max_body_bytes = 100;
        c.admit.mode.body = Mode::Off;
    })
    .await;
    let name = "kvgate_shadow_rejections_total";
    let before = counted(&gate, name, "request_too_large").await;
    let mut client = sent(&gate, completion(&ask(300, 1))).await;
    engine.next().await.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
    gate.idle().await;
    assert_eq!(counted(&gate, name, "request_too_large").await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_together_are_bounded() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| {
        c.proxy.max_body_bytes = 60_000;
        c.proxy.held_body_bytes = 64 << 10;
    })
    .await;
    let large = json!({"prompt": "Hi", "user": "u".repeat(50_000)}).to_string();
    let whole = request("POST", "/v1/completions", &[("content-type", "application/json")], &large);
    let (most, end) = whole.split_at(whole.len() - 10);
    let (mut one, mut other) = (sent(&gate, most).await, sent(&gate, most).await);
    // There is room for one of them: whichever comes second is refused before its end.
    let (answer, mut slow) = tokio::select! {
        answer = one.answer() => (answer, other),
        answer = other.answer() => (answer, one),
    };
    assert_eq!((answer.status, answer.code().as_str()), (429, "engine_saturated"));
    slow.send(end).await;
    engine.next().await.json(200, &json!({})).await;
    assert_eq!(slow.answer().await.status, 200);
    let mut client = sent(&gate, &whole).await;
    engine.next().await.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_tokenizer_prompts_are_served_uncounted() {
    let mut engine = Engine::start().await;
    let gate = Gate::ready_before(engine.url(), |c| c.tokens.tokenizer = None).await;
    assert_eq!(gate.admin_json("/readyz").await["tokenizer"]["kind"], "none");
    let text = json!({"prompt": "word and ".repeat(8000), "max_tokens": 1});
    let mut client = sent(&gate, completion(&text)).await;
    let exchange = engine.next().await;
    let inflight = gate.admin_json("/api/v1/inflight").await;
    assert_eq!(inflight["requests"][0]["prompt_tokens"], Value::Null);
    exchange.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
    // A list reserves what its prompts may come to together, and not so much for each of them.
    let list = json!({"prompt": vec!["hello ".repeat(10); 60], "max_tokens": 16});
    let mut client = sent(&gate, completion(&list)).await;
    let exchange = engine.next().await;
    let reserved = gate.admin_json("/api/v1/state").await["admission"]["reserved_tokens"].as_u64().unwrap();
    assert!((60 * 16..=60 * 16 + 4000 / 2).contains(&reserved), "{reserved}");
    exchange.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
    // Ids need no tokenizer.
    assert_eq!(gate.ask(completion(&ask(2048, 1))).await.status, 413);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_are_all_served_without_a_preemption() {
    // The pool is what is scarce here, and not seats: plain answers do not show that they wait for one.
    let engine = sim::Settings { step_ms: 1.0, pool_tokens: 2048, max_num_seqs: 64, ..small() };
    let (sim, gate) = simulated(engine, |_| {}).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..60 {
        let (addr, body) = (gate.data, ask(50 + number * 5, 60));
        tasks.spawn(async move {
            let mut client = Raw::connect(addr).await;
            client.send(completion(&body)).await;
            client.answer().await.status
        });
    }
    let statuses = soon("all answers", tasks.join_all()).await;
    assert!(statuses.iter().all(|s| *s == 200), "{statuses:?}");
    assert_eq!(sim.stats().preemptions, 0);
    gate.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_takes_too_long_to_count_is_refused_and_not_sent() {
    let vast = sim::Settings { pool_tokens: 20_000_000, max_model_len: 2_000_000, ..small() };
    let (sim, gate) = simulated(vast, |c| {
        c.tokens.max_count_seconds = 0.01;
        c.proxy.max_body_bytes = 16 << 20;
    })
    .await;
    let run = completion(&json!({"prompt": "x".repeat(4 << 20), "max_tokens": 1}));
    let answer = gate.ask(&run).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert!(answer.text().contains("tokens.max_count_seconds"), "{}", answer.text());
    assert_eq!(gate.ask(completion(&json!({"prompt": "Hi", "max_tokens": 1}))).await.status, 200);
    assert_eq!(sim.stats().prompts_seen.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_cannot_be_counted_in_time_is_sent_where_its_bytes_are_within_every_limit() {
    let mut engine = Engine::start().await;
    engine.face(|face| (face.context, face.blocks) = (5_000_000, 400_000));
    let gate = Gate::ready_before(engine.url(), |c| {
        c.tokens.max_count_seconds = 0.01;
        c.proxy.max_body_bytes = 16 << 20;
        c.admit.length.max_prompt_tokens = std::num::NonZeroU64::new((4 << 20) + 16);
    })
    .await;
    let prompt = |bytes: usize| completion(&json!({"prompt": "x".repeat(bytes), "max_tokens": 1}));
    let answer = gate.ask(prompt((4 << 20) + 17)).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"));
    let mut client = sent(&gate, prompt(4 << 20)).await;
    let exchange = engine.next().await;
    let inflight = gate.admin_json("/api/v1/inflight").await;
    let request = &inflight["requests"][0];
    assert_eq!(request["prompt_tokens"], Value::Null, "a bound is no count");
    let reserved = request["reserved_tokens"].as_u64().unwrap();
    assert!((1..=(1 << 20) + 100).contains(&reserved), "four bytes a token: {reserved}");
    exchange.json(200, &json!({})).await;
    assert_eq!(client.answer().await.status, 200);
}
