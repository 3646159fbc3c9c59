use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;
use crate::engine::Verdict;

/// What the scripted engine answers.
#[derive(Clone)]
struct Script {
    health: u16,
    start: f64,
    metrics: Metrics,
}

#[derive(Clone, Copy, PartialEq)]
enum Metrics {
    Page,
    Missing,
    Hang,
}

/// A scripted engine on a real socket; gone when dropped.
struct Engine {
    port: u16,
    script: Arc<Mutex<Script>>,
    task: Option<JoinHandle<()>>,
}

impl Engine {
    async fn up() -> Self {
        let script = Script { health: 200, start: 1000.0, metrics: Metrics::Page };
        let mut engine = Self { port: 0, script: Arc::new(Mutex::new(script)), task: None };
        engine.listen().await;
        engine
    }

    async fn listen(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.port = listener.local_addr().unwrap().port();
        let script = self.script.clone();
        self.task = Some(tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(answer(stream, script.clone()));
            }
        }));
    }

    fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }

    async fn kill(&mut self) {
        let task = self.task.take().unwrap();
        task.abort();
        let _ = task.await;
    }

    fn settings(&self) -> Settings {
        Settings {
            url: format!("http://127.0.0.1:{}", self.port),
            scrape_interval_seconds: 0.05,
            scrape_timeout_seconds: 0.3,
            ..Settings::default()
        }
    }

    fn watched(&self) -> Watched {
        let client = Client::new(&self.settings()).unwrap();
        let (picture, hints, changes, run) = start(&self.settings(), client.clone());
        Watched { picture, hints, changes, client, run: tokio::spawn(run) }
    }
}

async fn answer(mut stream: TcpStream, script: Arc<Mutex<Script>>) {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(n) if n > 0 => head.extend_from_slice(&buffer[..n]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let script = script.lock().unwrap().clone();
    let (status, body) = match head.split(' ').nth(1).unwrap_or_default() {
        "/health" => (script.health, String::new()),
        "/metrics" => match script.metrics {
            Metrics::Page => (200, page(script.start)),
            Metrics::Missing => (404, String::new()),
            Metrics::Hang => return std::future::pending().await,
        },
        "/v1/models" => (200, include_str!("../../../tests/data/engine/v1_models.json").to_owned()),
        "/version" => (200, include_str!("../../../tests/data/engine/version.json").to_owned()),
        _ => (404, String::new()),
    };
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = stream.write_all((head + &body).as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn page(start: f64) -> String {
    let page = include_str!("../../../tests/data/engine/saturated_metrics.prom");
    page.replace("1.79604891183e+09", &start.to_string())
}

struct Watched {
    picture: watch::Receiver<Arc<Snapshot>>,
    hints: Hints,
    changes: mpsc::Receiver<Change>,
    client: Client,
    run: JoinHandle<()>,
}

impl Watched {
    async fn change(&mut self) -> Change {
        timeout(Duration::from_secs(30), self.changes.recv()).await.expect("a change comes").unwrap()
    }

    async fn words(&mut self, count: usize) -> Vec<&'static str> {
        let mut words = Vec::new();
        for _ in 0..count {
            words.push(match self.change().await {
                Change::Started { .. } => "started",
                Change::Ready { .. } => "ready",
                Change::Suspected { .. } => "suspected",
                Change::Cleared => "cleared",
                Change::Died { .. } => "died",
            });
        }
        words
    }

    async fn until(&mut self, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        let wait = self.picture.wait_for(|s| wanted(s));
        timeout(Duration::from_secs(30), wait).await.expect("the picture comes").unwrap().clone()
    }
}

#[tokio::test]
async fn a_running_engine_becomes_ready_with_its_facts_and_load() {
    let engine = Engine::up().await;
    let mut watched = engine.watched();
    assert_eq!(watched.words(2).await, ["started", "ready"]);
    let seen = watched.until(|s| s.sample.is_some() && !s.facts.models.is_empty()).await;
    assert_eq!((seen.state, seen.incarnation, seen.start_time), (State::Ready, 1, Some(1000.0)));
    assert_eq!(seen.facts.kind, Kind::Vllm);
    assert_eq!(seen.facts.version.as_deref(), Some("0.32.0"));
    assert_eq!(seen.facts.context_length(), Some(crate::request::Tokens(2048)));
    let now = Instant::now();
    assert!(seen.ready() && seen.fresh(now) && seen.unavailable_for(now).is_none());
    assert_eq!(seen.fresh_sample(now).unwrap().waiting, 5.0);
    assert_eq!(seen.livez(Some(now), now), Verdict::Live("serving"));
    assert_eq!(same_start(&watched.client, &seen).await, Some(true));
    engine.set(|s| s.start = 2000.0);
    assert_eq!(same_start(&watched.client, &seen).await, Some(false));
    engine.set(|s| s.metrics = Metrics::Hang);
    assert_eq!(same_start(&watched.client, &seen).await, None);
}

#[tokio::test]
async fn a_reset_of_an_idle_connection_is_cleared() {
    let engine = Engine::up().await;
    let mut watched = engine.watched();
    watched.words(2).await;
    watched.until(|s| s.sample.is_some()).await;
    watched.hints.say(Hint::Reset { reused: true });
    assert_eq!(watched.words(2).await, ["suspected", "cleared"]);
}

#[tokio::test]
async fn a_killed_process_dies_once_and_comes_back() {
    let mut engine = Engine::up().await;
    let mut watched = engine.watched();
    watched.words(2).await;
    watched.until(|s| s.sample.is_some()).await;
    engine.kill().await;
    watched.hints.say(Hint::Reset { reused: false });
    assert!(matches!(watched.change().await, Change::Suspected { .. }));
    let Change::Died { confirmed_by, incarnation, .. } = watched.change().await else { panic!("a death") };
    assert!(confirmed_by.len() >= 2 && confirmed_by.contains(&"connect_refused"), "{confirmed_by:?}");
    assert_eq!(incarnation, 1);
    let seen = watched.until(|s| s.state == State::Down && s.refused_since.is_some()).await;
    assert!(!seen.ready() && seen.died_at.is_some());
    assert_eq!(seen.livez(None, Instant::now()), Verdict::Dead("refuses_connections"));
    assert_eq!(same_start(&watched.client, &seen).await, Some(false));
    engine.set(|s| (s.start, s.health) = (2000.0, 503));
    engine.listen().await;
    assert_eq!(watched.words(1).await, ["started"]);
    watched.until(|s| s.state == State::Loading).await;
    engine.set(|s| s.health = 200);
    let Change::Ready { load: Some(_), away: Some(_) } = watched.change().await else {
        panic!("a load time")
    };
    let seen = watched.until(|s| s.start_time == Some(2000.0)).await;
    assert_eq!((seen.incarnation, seen.state), (2, State::Ready));
}

#[tokio::test]
async fn an_idle_engine_that_vanished_dies_without_a_hint() {
    let mut engine = Engine::up().await;
    let mut watched = engine.watched();
    watched.words(2).await;
    engine.kill().await;
    assert_eq!(watched.words(2).await, ["suspected", "died"]);
}

#[tokio::test]
async fn an_api_server_kept_alive_on_engine_death_is_down() {
    let engine = Engine::up().await;
    let mut watched = engine.watched();
    watched.words(2).await;
    engine.set(|s| s.health = 503);
    watched.hints.say(Hint::DeadAnswer);
    watched.hints.say(Hint::DeadAnswer);
    assert_eq!(watched.words(2).await, ["suspected", "died"]);
    let seen = watched.until(|s| s.state == State::Down).await;
    assert_eq!(seen.livez(None, Instant::now()), Verdict::Dead("engine_dead"));
    engine.set(|s| (s.health, s.start) = (200, 2000.0));
    assert_eq!(watched.words(2).await, ["started", "ready"]);
}

#[tokio::test]
async fn a_restart_between_two_scrapes_is_seen() {
    let engine = Engine::up().await;
    let mut watched = engine.watched();
    watched.words(2).await;
    watched.until(|s| s.sample.is_some()).await;
    engine.set(|s| s.start = 2000.0);
    assert_eq!(watched.words(4).await, ["suspected", "died", "started", "ready"]);
}

#[tokio::test]
async fn slow_metrics_are_stale_and_never_a_death() {
    let engine = Engine::up().await;
    let mut watched = engine.watched();
    watched.words(2).await;
    watched.until(|s| s.sample.is_some()).await;
    engine.set(|s| s.metrics = Metrics::Hang);
    let seen = watched.until(|s| !s.fresh(Instant::now())).await;
    assert_eq!(seen.state, State::Ready);
    assert!(seen.sample_age(Instant::now()) > Some(Duration::from_secs(1)));
    assert!(watched.changes.try_recv().is_err());
    engine.set(|s| s.metrics = Metrics::Page);
    watched.until(|s| s.fresh(Instant::now())).await;
}

#[tokio::test]
async fn an_engine_without_metrics_is_served_all_the_same() {
    let engine = Engine::up().await;
    engine.set(|s| (s.metrics, s.health) = (Metrics::Missing, 404));
    let mut watched = engine.watched();
    assert_eq!(watched.words(2).await, ["started", "ready"]);
    let seen = watched.until(|s| s.facts.kind == Kind::OpenAiCompatible && !s.facts.models.is_empty()).await;
    assert!(seen.ready() && seen.sample.is_none());
    assert_eq!(same_start(&watched.client, &seen).await, None);
    watched.hints.say(Hint::Reset { reused: true });
    assert_eq!(watched.words(2).await, ["suspected", "cleared"]);
}

#[tokio::test]
async fn the_loop_ends_with_its_last_reader_and_a_flood_of_hints_is_harmless() {
    let engine = Engine::up().await;
    let mut watched = engine.watched();
    watched.words(2).await;
    for _ in 0..10_000 {
        watched.hints.say(Hint::Served);
        watched.hints.say(Hint::Reset { reused: true });
    }
    assert_eq!(watched.words(1).await, ["suspected"]);
    drop(watched.picture);
    timeout(Duration::from_secs(30), watched.run).await.unwrap().unwrap();
}
