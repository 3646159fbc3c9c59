//! What changes while the gateway runs: the configuration read anew, what a death taught forgotten, the drain.

use std::ffi::OsStr;
use std::path::PathBuf;

use kvgate::sim;
use serde_json::{Value, json};

use crate::support::{Answer, Process, Raw, completion, get, request, soon, until};

const TOKEN: &str = "0123456789abcdef";

/// A gateway as a process, its configuration file, and the folder that holds it.
struct Configured {
    gate: Process,
    file: PathBuf,
    token_file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Configured {
    async fn start(engine: &str, text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, token_file) = (folder.path().join("kvgate.toml"), folder.path().join("token"));
        std::fs::write(&token_file, TOKEN).unwrap();
        let start = |file: &PathBuf| Process::start(engine, &[OsStr::new("--config"), file.as_os_str()]);
        write(&file, &token_file, text);
        let gate = tokio::task::block_in_place(|| start(&file));
        until("readiness", async || (gate.admin(get("/readyz")).await.status == 200).then_some(())).await;
        Self { gate, file, token_file, _folder: folder }
    }

    fn write(&self, text: &str) {
        write(&self.file, &self.token_file, text);
    }

    async fn post(&self, path: &str, token: Option<&str>) -> Answer {
        self.call("POST", path, token, "").await
    }

    async fn call(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
        let value = format!("Bearer {}", token.unwrap_or_default());
        let headers = [("Authorization", value.as_str())];
        let headers = if token.is_some() { &headers[..] } else { &[] };
        self.gate.admin(request(method, path, headers, body)).await
    }

    async fn limits(&self) -> Value {
        self.gate.admin(get("/api/v1/limits")).await.json()
    }

    async fn ask(&self, prompt: usize) -> u16 {
        let ask = json!({"prompt": vec![7; prompt], "max_tokens": 1});
        soon("an answer", self.gate.ask(completion(&ask))).await.status
    }
}

fn write(file: &PathBuf, token_file: &PathBuf, text: &str) {
    let token = format!("[operate]\ntoken_file = {token_file:?}\n");
    std::fs::write(file, token + "[engine]\nscrape_interval_seconds = 0.05\n" + text).unwrap();
}

async fn engine() -> sim::Sim {
    let engine = sim::Settings { step_ms: 0.1, ..sim::Settings::default() };
    sim::start_with_log(engine, std::io::sink()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_puts_other_limits_in_force_and_says_what_needs_a_restart() {
    let sim = engine().await;
    let mut gate = Configured::start(&sim.url(), "[admit.length]\nmax_prompt_tokens = 50\n").await;
    assert_eq!((gate.ask(60).await, gate.ask(50).await), (413, 200));
    for wrong in [None, Some("0123456789abcdee")] {
        assert_eq!(gate.post("/-/reload", wrong).await.status, 401, "{wrong:?}");
    }
    assert_eq!(gate.gate.admin(get("/-/reload")).await.status, 404, "GET changes nothing");
    gate.write("[admit.length]\nmax_prompt_tokens = 60\n[admit.queue]\nrequests = 7\n[proxy]\nlinger_seconds = 2.5\n");
    assert_eq!(gate.ask(60).await, 413, "nobody has asked for it yet");
    let answer = gate.post("/-/reload", Some(TOKEN)).await;
    let done = json!({
        "applied": ["admit.length.max_prompt_tokens", "admit.queue.requests"],
        "needs_restart": ["proxy.linger_seconds"],
    });
    assert_eq!((answer.status, answer.json()), (200, done));
    assert_eq!((gate.ask(60).await, gate.ask(61).await), (200, 413));
    let configured = gate.limits().await["configured"].clone();
    assert_eq!((&configured["max_prompt_tokens"], &configured["queue_requests"]), (&json!(60), &json!(7)));
    // The same by a signal; what still needs a restart is said again.
    gate.write("[admit.length]\nmax_prompt_tokens = 70\n[proxy]\nlinger_seconds = 2.5\n");
    gate.gate.signal("HUP");
    let reloaded = |said: &Value| said["message"] == "configuration reloaded";
    let said =
        tokio::task::block_in_place(|| [gate.gate.line(reloaded), gate.gate.line(reloaded)])[1].clone();
    assert_eq!(said["applied"], "admit.length.max_prompt_tokens, admit.queue.requests");
    assert_eq!(said["needs_restart"], "proxy.linger_seconds");
    assert_eq!((gate.ask(70).await, gate.ask(71).await), (200, 413));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_configuration_changes_nothing_and_the_panic_button_outlives_a_reload() {
    let sim = engine().await;
    let gate = Configured::start(&sim.url(), "[admit.length]\nmax_prompt_tokens = 50\n").await;
    for (text, what) in [
        ("[admit.length]\nmax_prompt_tokens = 0\n", "max_prompt_tokens"),
        ("[admit.length]\nmax_prompt_tokens = 70\nstatus = 200\n", "admit.length.status = 200"),
        ("[admit.length]\nmax_prompt_tokens = 70\nprofile = \"/no/such/file\"\n", "/no/such/file"),
        ("[admit.lenght]\n", "lenght"),
        ("[[[", "kvgate.toml"),
    ] {
        gate.write(text);
        let answer = gate.post("/-/reload", Some(TOKEN)).await;
        assert_eq!(answer.status, 400, "{text}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(what), "{error}");
        assert_eq!((gate.ask(51).await, gate.ask(50).await), (413, 200), "{text}");
    }
    assert_eq!(gate.call("PATCH", "/api/v1/limits", Some(TOKEN), r#"{"mode":"off"}"#).await.status, 200);
    gate.write("[admit.length]\nmax_prompt_tokens = 40\n[admit.mode]\nrates = \"shadow\"\n");
    let done = gate.post("/-/reload", Some(TOKEN)).await.json();
    assert_eq!(done["applied"], json!(["admit.length.max_prompt_tokens", "admit.mode.rates"]));
    let mode = gate.limits().await["mode"].clone();
    assert_eq!((&mode["length"], &mode["rates"]), (&json!("off"), &json!("shadow")));
    assert_eq!(gate.ask(60).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_learned_is_forgotten_by_null_and_not_set() {
    let sim = engine().await;
    let gate = Configured::start(&sim.url(), "").await;
    for (body, what) in [
        (r#"{"guard_tokens":5}"#, "it can only be forgotten"),
        (r#"{"cut_to":"x"}"#, "it can only be forgotten"),
        (r#"{"mode":"off","queue":null}"#, "POST /-/reload"),
        ("{}", "nothing to change"),
    ] {
        let answer = gate.call("PATCH", "/api/v1/limits", Some(TOKEN), body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.text().contains(what), "{}", answer.text());
    }
    assert_eq!(gate.limits().await["mode"]["length"], "enforce", "all or none");
    let both = r#"{"guard_tokens":null,"cut_to":null}"#;
    let answer = gate.call("PATCH", "/api/v1/limits", Some(TOKEN), both).await;
    assert_eq!(
        (answer.status, &answer.json()["learned"]),
        (200, &json!({"guard_tokens": null, "cut_to": null}))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_to_drain_it_ends_in_order_after_what_is_in_flight() {
    let sim =
        sim::start_with_log(sim::Settings { step_ms: 20.0, ..sim::Settings::default() }, std::io::sink())
            .await
            .unwrap();
    let mut gate = Configured::start(&sim.url(), "").await;
    assert_eq!(gate.post("/-/drain", None).await.status, 401);
    let mut client = Raw::connect(gate.gate.data).await;
    client.send(completion(&json!({"prompt": [7, 7, 7], "max_tokens": 50, "stream": true}))).await;
    assert_eq!(client.head().await.status, 200);
    let answer = gate.post("/-/drain", Some(TOKEN)).await;
    assert_eq!((answer.status, answer.json()), (202, json!({"draining": true, "in_flight": 1})));
    until("no readiness", async || (gate.gate.admin(get("/readyz")).await.status == 503).then_some(())).await;
    let (rest, _) = soon("the end of the stream", client.rest()).await;
    assert!(String::from_utf8_lossy(&rest).contains("data: [DONE]"));
    assert!(tokio::task::block_in_place(|| gate.gate.ended()).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_whose_disk_hangs_holds_up_no_other_call() {
    let sim = engine().await;
    let mut gate = Configured::start(&sim.url(), "").await;
    std::fs::remove_file(&gate.file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&gate.file).status().unwrap();
    assert!(made.success());
    // Of two one waits for the disk, and the other is told so.
    let answer = soon("a refusal", async {
        tokio::select! {
            answer = gate.post("/-/reload", Some(TOKEN)) => answer,
            answer = gate.post("/-/reload", Some(TOKEN)) => answer,
        }
    });
    assert_eq!(answer.await.status, 409);
    assert_eq!(gate.ask(3).await, 200);
    assert_eq!(gate.gate.admin(get("/livez")).await.status, 200);
    gate.gate.signal("TERM");
    assert!(tokio::task::block_in_place(|| gate.gate.ended()).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_file_that_is_no_file_opens_nothing_and_holds_up_nobody() {
    let sim = engine().await;
    let mut gate = Configured::start(&sim.url(), "").await;
    for make in ["mkfifo", "ln -s /dev/zero", "mkdir"] {
        let file = gate.token_file.display();
        let command = format!("rm -rf {file} && {make} {file}");
        assert!(std::process::Command::new("sh").args(["-c", &command]).status().unwrap().success());
        let answer = soon("an answer", gate.post("/-/reload", Some(TOKEN))).await;
        assert_eq!(answer.status, 403, "{make}");
        assert!(answer.text().contains("not a regular file"), "{}", answer.text());
        assert_eq!(gate.gate.admin(get("/livez")).await.status, 200);
    }
    gate.gate.signal("TERM");
    assert!(tokio::task::block_in_place(|| gate.gate.ended()).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_profile_that_changes_under_its_name_is_named_and_one_that_is_none_is_refused() {
    let sim = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profile.toml");
    let limits = |text: usize| format!("[max_prompt_tokens]\ntext = {text}\n");
    std::fs::write(&file, limits(50)).unwrap();
    let gate = Configured::start(&sim.url(), &format!("[admit.length]\nprofile = {file:?}\n")).await;
    assert_eq!((gate.ask(51).await, gate.ask(50).await), (413, 200));
    std::fs::write(&file, limits(40)).unwrap();
    let done = gate.post("/-/reload", Some(TOKEN)).await;
    assert_eq!((done.status, &done.json()["applied"]), (200, &json!(["admit.length.profile"])));
    for wrong in ["[max_promt_tokens]\ntext = 30\n".to_owned(), " ".repeat(2 << 20)] {
        std::fs::write(&file, wrong).unwrap();
        let answer = gate.post("/-/reload", Some(TOKEN)).await;
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("profile.toml"), "{}", answer.text());
        assert_eq!((gate.ask(41).await, gate.ask(40).await), (413, 200));
    }
}
