//! Builds every room once, wires them, runs, drains.
//!
//! Nothing here decides: it hands receivers and handles to the rooms and keeps their tasks.

use std::fs;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admit::{Gate, Modes, Profile, Rule, Shadow, Signals, Terms};
use crate::config::Config;
use crate::crash::Reports;
use crate::engine::{self, Sample, Snapshot, State};
use crate::ledger::{self, Ledger, Recovered};
use crate::operate::{self, AdminError, Handles, Heart};
use crate::proxy::{self, Bodies, Forward, Parts, Pipeline};
use crate::request::Shape;
use crate::telemetry::{self, Event, Exporter};

mod death;
mod learned;
mod reload;
mod tokenizer;

use death::Mourner;
pub use reload::{Reload, Reloaded, Reread};

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data port's address cannot be had.
    #[error("proxy.listen = {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's words.
        error: std::io::Error,
    },
    /// The admin port cannot start.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The engine's settings are wrong.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The profile file is wrong.
    #[error("admit.length.profile = {file}: {error}")]
    Profile {
        /// Which.
        file: String,
        /// What is wrong with it.
        error: String,
    },
    /// The configured tokenizer or chat template cannot be used: key, path and why.
    #[error("{0}")]
    Tokenizer(String),
    /// Metrics cannot be kept.
    #[error("metrics cannot be recorded: {0}")]
    Metrics(String),
}

impl StartError {
    /// Whether the configuration is at fault, not the machine.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        matches!(self, Self::Engine(_) | Self::Profile { .. } | Self::Tokenizer(_))
    }
}

/// A gateway that runs.
pub struct Running {
    /// The data port's address.
    pub data: SocketAddr,
    /// The admin port's address.
    pub admin: SocketAddr,
    /// Reads the configuration anew.
    pub reload: Arc<Reload>,
    /// Cancelled where the admin port was told to drain.
    pub drain: CancellationToken,
    tasks: TaskTracker,
    ledger: Ledger,
    admin_stop: CancellationToken,
    admin_thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Waits until everything has ended after `stop` was cancelled.
    pub async fn ended(mut self) {
        self.tasks.wait().await;
        self.ledger.close();
        self.admin_stop.cancel();
        if let Some(thread) = self.admin_thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

/// Starts the gateway by a configuration that is in no file; it drains and ends when `stop` is cancelled, which the
/// admin port does too where it is told to.
///
/// # Errors
/// [`StartError`]; nothing is left running then.
pub async fn start(config: Config, stop: CancellationToken) -> Result<Running, StartError> {
    let read = || Err("this gateway was not started from a configuration that can be read again".to_owned());
    start_rereading(config, Box::new(read), stop).await
}

/// The same, with what a reload reads.
///
/// # Errors
/// [`StartError`]; nothing is left running then.
pub async fn start_rereading(
    config: Config,
    read: Reread,
    stop: CancellationToken,
) -> Result<Running, StartError> {
    let exporter = Exporter::install().map_err(|e| StartError::Metrics(e.to_string()))?;
    let profile = config.admit.length.profile.as_deref().map(profile).transpose()?;
    let client = engine::Client::new(&config.engine)?;
    let counter = tokenizer::counter(&config.tokens)?;
    let data = TcpListener::bind(config.proxy.listen)
        .await
        .map_err(|error| StartError::Bind { address: config.proxy.listen, error })?;
    let address =
        data.local_addr().map_err(|error| StartError::Bind { address: config.proxy.listen, error })?;
    let admin = operate::Server::bind(config.operate.listen)?;
    let (ledger, recovered) = Ledger::open(&config.ledger);
    announce(&recovered);
    let key = ledger::tenant_key(&config.ledger);
    let reports = Reports::open(config.ledger.state_dir.as_deref());

    let (snapshot, hints, changes, watching) = engine::watch::start(&config.engine, client.clone());
    let modes = Modes::new(&config.admit.mode);
    let gate = Gate::new(&config.admit, modes.clone());
    let truth = counter.truth();
    let shadow = Shadow::default();
    let heart = Heart::default();
    let settled = Arc::new(AtomicBool::new(false));
    let tasks = TaskTracker::new();
    // What watches and reports goes on until the last request in flight has ended.
    let drained = CancellationToken::new();
    let until = |task| watched(task, drained.clone(), stop.clone());

    tasks.spawn(until(Box::pin(watching) as BoxTask));
    tasks.spawn(until(Box::pin(gate.clone().run())));
    if let Some(dir) = config.ledger.state_dir.as_deref().filter(|_| recovered.durable) {
        tasks.spawn(until(Box::pin(learned::recall(dir, &gate).run())));
    }
    let (terms_in_force, terms) = watch::channel(Arc::new(Terms::new(config.admit.clone(), profile)));
    let reload = Arc::new(Reload::new(read, config.clone(), terms_in_force, (gate.clone(), modes.clone())));
    let drain = CancellationToken::new();
    let limits = Limits { terms: terms.clone(), body_bytes: config.proxy.max_body_bytes as f64 };
    tasks.spawn(until(Box::pin(signals(snapshot.clone(), gate.clone(), limits))));
    tasks.spawn(until(Box::pin(beat(heart.clone(), exporter.clone(), modes.clone()))));
    tasks.spawn(until(Box::pin(tokenizer::keep(
        config.tokens.clone(),
        counter.clone(),
        client.clone(),
        snapshot.clone(),
        Arc::clone(&settled),
    ))));
    tasks.spawn(until(Box::pin(death::follow(Mourner {
        changes,
        snapshot: snapshot.clone(),
        ledger: ledger.clone(),
        reports: reports.clone(),
        gate: gate.clone(),
    }))));

    let handles = Handles {
        settings: config.operate.clone(),
        exporter,
        heart: heart.clone(),
        snapshot: snapshot.clone(),
        ledger: ledger.clone(),
        gate: gate.clone(),
        modes: modes.clone(),
        counter: counter.clone(),
        shadow: shadow.clone(),
        truth: Arc::clone(&truth),
        settled,
        reports,
        terms: terms.clone(),
        reload: Box::new({
            let reload = Arc::clone(&reload);
            move || Some(reload.try_reload()?.map(|done| json!(done)))
        }),
        drain: drain.clone(),
        journal: ledger_state(&config.ledger, &recovered),
        reading_token: Arc::new(Semaphore::new(1)),
    };
    let admin_stop = CancellationToken::new();
    let admin_address = admin.address();
    let admin_thread = admin.start(Arc::new(handles), admin_stop.clone())?;

    let bodies = Bodies::new(&config.proxy, tasks.clone());
    let forward = Arc::new(Forward::new(&config.proxy, client, snapshot.clone(), hints));
    let drain_time = Duration::from_secs_f64(config.proxy.drain_seconds);
    let connections = affordable(config.proxy.max_connections);
    let parts = Parts {
        settings: config.proxy,
        terms,
        modes,
        counter,
        gate: gate.clone(),
        ledger: ledger.clone(),
        forward,
        snapshot,
        key,
        bodies,
        truth,
        shadow,
    };
    let pipeline = Arc::new(Pipeline::new(parts));
    let serving = Box::pin(proxy::serve(data, pipeline, stop.clone(), connections, drain_time));
    let serving = watched(serving, CancellationToken::new(), stop.clone());
    tasks.spawn(async move {
        serving.await;
        drained.cancel();
    });
    tasks.spawn({
        let drain = drain.clone();
        async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = drain.cancelled() => stop.cancel(),
            }
            heart.drain();
            gate.drain();
        }
    });
    tasks.close();
    tracing::info!(data = %address, admin = %admin_address, engine = config.engine.url, "listening");
    Ok(Running {
        data: address,
        admin: admin_address,
        reload,
        drain,
        tasks,
        ledger,
        admin_stop,
        admin_thread: Some(admin_thread),
    })
}

/// Files kept for everything but connections: journal, reports, the admin port, scrapes.
const OTHER_FILES: u64 = 600;

/// The connections that the process may have open: each takes two files, its own and the engine's. The soft
/// limit is raised to the hard one first.
fn affordable(wanted: usize) -> usize {
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(1024);
    let most =
        usize::try_from(files.saturating_sub(OTHER_FILES.min(files / 2)) / 2).unwrap_or(usize::MAX).max(1);
    if most < wanted {
        tracing::warn!(
            files,
            connections = most,
            wanted,
            "the limit on open files allows fewer connections than proxy.max_connections: raise ulimit -n"
        );
    }
    wanted.min(most)
}

/// What the last run left in the journal, for the log: requests that were with the engine when it stopped.
fn announce(recovered: &Recovered) {
    let unfinished = recovered.unfinished.len();
    if let Some(note) = &recovered.note {
        tracing::warn!(note, "journal");
    }
    if unfinished > 0 {
        tracing::warn!(
            unfinished,
            "the last run stopped with requests in flight: see ledger in /api/v1/state"
        );
    }
}

fn ledger_state(settings: &ledger::Settings, recovered: &Recovered) -> Value {
    json!({
        "state_dir": settings.state_dir,
        "durable": recovered.durable,
        "note": recovered.note,
        "recovered": recovered.unfinished,
        "skipped": recovered.skipped,
    })
}

fn profile(file: &Path) -> Result<Profile, StartError> {
    let wrong = |error: String| StartError::Profile { file: file.display().to_string(), error };
    let text = small_file(file).map_err(|e| wrong(e.to_string()))?;
    Profile::parse(&text).map_err(|e| wrong(e.to_string()))
}

/// A larger profile, or file of what was learned, is none.
const SMALL: u64 = 1 << 20;

/// The text of a small file; nothing that is no file, and may not end.
fn small_file(file: &Path) -> io::Result<String> {
    let about = fs::metadata(file)?;
    if !about.is_file() || about.len() > SMALL {
        let text = format!("not a regular file of at most {SMALL} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut text = String::new();
    fs::File::open(file)?.take(SMALL).read_to_string(&mut text)?;
    Ok(text)
}

/// Runs a task until `end`. One that ends before, by a panic, takes the gateway with it: half a gateway
/// would be worse than a restart.
async fn watched(task: BoxTask, end: CancellationToken, stop: CancellationToken) {
    let mut running = tokio::spawn(task);
    tokio::select! {
        ended = &mut running => {
            if ended.is_err() {
                tracing::error!("a task of the gateway failed: it drains and ends");
                stop.cancel();
            }
        }
        () = end.cancelled() => running.abort(),
    }
}

type BoxTask = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tells the gate what each scrape says.
async fn signals(mut snapshot: watch::Receiver<Arc<Snapshot>>, gate: Gate, limits: Limits) {
    let mut before: Option<Arc<Sample>> = None;
    let mut news = News::default();
    loop {
        let current = Arc::clone(&snapshot.borrow_and_update());
        if let Some(sample) = &current.sample
            && before.as_ref().is_none_or(|b| b.taken != sample.taken)
        {
            news = before.as_deref().map_or_else(News::default, |b| News::between(b, sample));
            before = Some(Arc::clone(sample));
        }
        gate.signals(signals_of(&current, news, Instant::now()));
        limits.tell(&current);
        if snapshot.changed().await.is_err() {
            return;
        }
    }
}

/// The limits that do not come from the engine, for the metric that shows which are in force.
struct Limits {
    terms: watch::Receiver<Arc<Terms>>,
    body_bytes: f64,
}

impl Limits {
    fn tell(&self, snapshot: &Snapshot) {
        let terms = Arc::clone(&self.terms.borrow());
        let plain = Shape::default();
        let profiled = terms.profile.as_ref().and_then(|p| p.limit_for(&plain)).map(|limit| limit.get());
        let configured = terms.settings.length.max_prompt_tokens.map(NonZeroU64::get);
        let requests_per_minute = terms.settings.rates.requests_per_minute;
        let engine = snapshot.facts.context_length().map(|context| context.get().saturating_sub(1));
        let prompt = [configured, profiled, engine].into_iter().flatten().min().unwrap_or(0);
        let pool = snapshot.sample.as_ref().and_then(|s| s.pool).map_or(0, |p| p.total().get());
        for (rule, value) in [
            (Rule::Length, prompt as f64),
            (Rule::Capacity, pool as f64),
            (Rule::Rates, requests_per_minute.map_or(0.0, |n| f64::from(n.get()))),
            (Rule::Body, self.body_bytes),
        ] {
            telemetry::emit(Event::Limit { rule: rule.label(), value });
        }
    }
}

/// What counters say between two scrapes.
#[derive(Debug, Clone, Copy, Default)]
struct News {
    /// Output tokens per second of all running requests; none where the counter fell.
    generation_rate: Option<f64>,
    /// Prompt tokens found in the prefix cache; 0 where the counter fell, or there is none.
    prefix_hits: f64,
}

impl News {
    fn between(before: &Sample, after: &Sample) -> Self {
        let more = |of: fn(&Sample) -> Option<f64>| {
            of(after).zip(of(before)).map(|(after, before)| after - before).filter(|more| *more >= 0.0)
        };
        let seconds = after.taken.saturating_duration_since(before.taken).as_secs_f64();
        let tokens = more(|sample| sample.generation_tokens_total).filter(|_| seconds > 0.0);
        Self {
            generation_rate: tokens.map(|tokens| tokens / seconds),
            prefix_hits: more(|sample| sample.prefix_hits_total).unwrap_or(0.0),
        }
    }
}

/// The engine's words in the gate's.
fn signals_of(snapshot: &Snapshot, news: News, now: Instant) -> Signals {
    let sample = snapshot.sample.as_deref();
    let pool = sample.and_then(|s| s.pool);
    Signals {
        state_ready: snapshot.ready(),
        // Nothing is known of when it comes back from a death, unless it was seen to load.
        retry_after: (snapshot.state != State::Down || snapshot.load_seconds.is_some())
            .then(|| snapshot.retry_after(now)),
        pool: pool.map(|p| p.total()),
        block: pool.map_or(1, |p| p.block_size),
        ranks: pool.map_or(1, |p| u32::try_from(p.ranks).unwrap_or(1)),
        fresh: snapshot.fresh(now),
        waiting: sample.map_or(0.0, |s| s.waiting),
        running: sample.map_or(0.0, |s| s.running),
        kv_usage: sample.and_then(|s| s.kv_usage),
        preempted: snapshot.new_preemptions > 0,
        taken: sample.map(|s| s.taken),
        prefix_hits: news.prefix_hits,
        generation_rate: news.generation_rate,
        incarnation: snapshot.incarnation,
    }
}

/// The gateway's pulse.
const BEAT: Duration = Duration::from_millis(500);
/// A beat that is so much late is said.
const LATE: Duration = Duration::from_secs(1);

/// The gateway's pulse, and the upkeep that goes with it.
async fn beat(heart: Heart, exporter: Exporter, modes: Modes) {
    let mut turns = interval(BEAT);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        let now = turns.tick().await.max(Instant::now());
        let late = now.saturating_duration_since(last).saturating_sub(BEAT);
        last = now;
        if late >= LATE {
            telemetry::emit(Event::StoodStill { late });
        }
        heart.beat();
        exporter.upkeep();
        for rule in Rule::ALL {
            telemetry::emit(Event::Mode {
                rule: rule.label(),
                mode: modes.get(rule).label(),
                all: &crate::admit::Mode::LABELS,
            });
        }
    }
}
