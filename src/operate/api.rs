//! What the admin port answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::server::{json_answer, typed};
use super::{Heart, Readiness, Settings};
use crate::admit::{Gate, Mode, Modes, Rule, Shadow, Tally, Terms};
use crate::crash::{Report, ReportError, Reports};
use crate::engine::Snapshot;
use crate::ledger::Ledger;
use crate::telemetry::Exporter;
use crate::tokens::{Counter, Truth};

/// What the admin port looks at.
pub struct Handles {
    /// Its settings.
    pub settings: Settings,
    /// The metrics.
    pub exporter: Exporter,
    /// The gateway's own loop.
    pub heart: Heart,
    /// The engine.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// Who is in flight.
    pub ledger: Ledger,
    /// Queue and capacity.
    pub gate: Gate,
    /// Modes of the rules.
    pub modes: Modes,
    /// Counting.
    pub counter: Counter,
    /// What the rules in shadow would have done.
    pub shadow: Shadow,
    /// Whether counts agree with the engine's.
    pub truth: Arc<Truth>,
    /// Whether a tokenizer was looked for in what the engine says.
    pub settled: Arc<AtomicBool>,
    /// Crash reports.
    pub reports: Reports,
    /// Limits, queue and rates in force.
    pub terms: watch::Receiver<Arc<Terms>>,
    /// Reads the configuration anew; what changed, or why nothing did; none where that is under way. Waits for the disk.
    pub reload: Box<dyn Fn() -> Option<Result<Value, String>> + Send + Sync>,
    /// Cancelled to drain and end.
    pub drain: CancellationToken,
    /// What the journal held at start.
    pub journal: Value,
    /// One at a time reads the token.
    pub reading_token: Arc<Semaphore>,
}

/// One request to the admin port.
pub(super) struct Call<'a> {
    pub method: &'a Method,
    pub path: &'a str,
    pub authorization: Option<&'a str>,
    pub body: &'a Bytes,
}

type Answer = Response<Full<Bytes>>;

/// Time that the token's file has.
const TOKEN_TIME: Duration = Duration::from_secs(2);
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PATHS: [&str; 12] = [
    "/metrics",
    "/livez",
    "/readyz",
    "/startupz",
    "/engine/livez",
    "/api/v1/state",
    "/api/v1/inflight",
    "/api/v1/reports",
    "/api/v1/reports/ID",
    "/api/v1/limits",
    "/-/reload",
    "/-/drain",
];

impl Handles {
    pub(super) async fn answer(self: &Arc<Self>, call: &Call<'_>) -> Answer {
        let get = call.method == Method::GET || call.method == Method::HEAD;
        match call.path {
            "/metrics" if get => typed(StatusCode::OK, METRICS, self.exporter.render()),
            "/livez" if get => self.livez(),
            "/readyz" if get => self.readyz(),
            "/startupz" if get => json_answer(StatusCode::OK, &json!({"started": true})),
            "/engine/livez" if get => self.engine_livez(),
            "/api/v1/limits" if call.method == Method::PATCH => self.patch_limits(call).await,
            "/-/reload" if call.method == Method::POST => self.reloaded(call).await,
            "/-/drain" if call.method == Method::POST => self.drained(call).await,
            path if get && path.starts_with("/api/v1/") => self.pages(call).await,
            _ => json_answer(StatusCode::NOT_FOUND, &json!({"error": "no such page", "paths": PATHS})),
        }
    }

    fn livez(&self) -> Answer {
        let alive = self.heart.alive();
        let status = if alive { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        json_answer(status, &json!({ "alive": alive }))
    }

    fn readyz(&self) -> Answer {
        let settled = self.settled.load(Ordering::Relaxed);
        let readiness =
            Readiness::of(&self.snapshot.borrow(), self.heart.draining(), settled, Instant::now());
        let status = readiness.status(self.settings.ready_policy);
        let mut body = json!(readiness);
        body["tokenizer"] = json!(self.counter.source());
        json_answer(StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE), &body)
    }

    fn engine_livez(&self) -> Answer {
        let now = Instant::now();
        let verdict = self.snapshot.borrow().livez(self.ledger.busy_since(), now);
        let status = if verdict.is_live() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        json_answer(status, &json!({"alive": verdict.is_live(), "because": verdict.reason()}))
    }

    /// State pages: open where the port is on loopback, else with the token.
    async fn pages(self: &Arc<Self>, call: &Call<'_>) -> Answer {
        if !self.settings.listen.ip().is_loopback()
            && let Some(refusal) = self.unauthorized(call).await
        {
            return refusal;
        }
        match call.path {
            "/api/v1/state" => json_answer(StatusCode::OK, &self.state()),
            "/api/v1/inflight" => {
                let records = self.ledger.in_flight();
                json_answer(StatusCode::OK, &json!({"count": records.len(), "requests": records}))
            }
            "/api/v1/limits" => json_answer(StatusCode::OK, &self.limits()),
            "/api/v1/reports" => {
                let reports = self.reports.clone();
                let listing = spawn_blocking(move || reports.list()).await.unwrap_or_default();
                json_answer(StatusCode::OK, &json!(listing))
            }
            path => match self.report(path).await {
                Some(Ok(report)) => json_answer(StatusCode::OK, &json!(report)),
                Some(Err(error)) => json_answer(StatusCode::NOT_FOUND, &json!({"error": error.to_string()})),
                None => json_answer(StatusCode::NOT_FOUND, &json!({"error": "no such page", "paths": PATHS})),
            },
        }
    }

    /// The report that a path names. A disk that hangs holds up nobody else: `/livez` least of all.
    async fn report(&self, path: &str) -> Option<Result<Report, ReportError>> {
        let id = path.strip_prefix("/api/v1/reports/")?.to_owned();
        let reports = self.reports.clone();
        spawn_blocking(move || reports.get(&id)).await.ok()
    }

    /// The refusal of a call without the right token; with no token configured nobody has it. A token file whose disk
    /// hangs holds up nobody else, and one thread.
    async fn unauthorized(self: &Arc<Self>, call: &Call<'_>) -> Option<Answer> {
        let refuse = |status, text: &str| Some(json_answer(status, &json!({ "error": text })));
        let this = Arc::clone(self);
        let read = async {
            let turn = Arc::clone(&self.reading_token).acquire_owned().await.ok()?;
            spawn_blocking(move || (this.settings.token(), turn).0).await.ok()
        };
        let token = match timeout(TOKEN_TIME, read).await {
            Ok(Some(Ok(Some(token)))) => token,
            Ok(Some(Ok(None))) => {
                return refuse(StatusCode::FORBIDDEN, "no admin token is configured: set operate.token_file");
            }
            Ok(Some(Err(error))) => {
                return refuse(StatusCode::FORBIDDEN, &format!("operate.token_file cannot be read: {error}"));
            }
            Ok(None) | Err(_) => {
                return refuse(StatusCode::SERVICE_UNAVAILABLE, "operate.token_file cannot be read in time");
            }
        };
        let given = call.authorization.and_then(|v| v.strip_prefix("Bearer ")).unwrap_or_default();
        if same(given.as_bytes(), token.as_bytes()) {
            return None;
        }
        refuse(
            StatusCode::UNAUTHORIZED,
            "the admin token is missing or wrong: send Authorization: Bearer TOKEN",
        )
    }

    async fn patch_limits(self: &Arc<Self>, call: &Call<'_>) -> Answer {
        if let Some(refusal) = self.unauthorized(call).await {
            return refusal;
        }
        match self.change(call.body) {
            Ok(()) => json_answer(StatusCode::OK, &self.limits()),
            Err(text) => json_answer(StatusCode::BAD_REQUEST, &json!({ "error": text })),
        }
    }

    /// Reads the configuration anew.
    async fn reloaded(self: &Arc<Self>, call: &Call<'_>) -> Answer {
        if let Some(refusal) = self.unauthorized(call).await {
            return refusal;
        }
        let this = Arc::clone(self);
        match spawn_blocking(move || (this.reload)()).await {
            Ok(Some(Ok(done))) => json_answer(StatusCode::OK, &done),
            Ok(None) => {
                json_answer(StatusCode::CONFLICT, &json!({"error": "another reload is under way: try again"}))
            }
            Ok(Some(Err(text))) => json_answer(StatusCode::BAD_REQUEST, &json!({ "error": text })),
            Err(_) => json_answer(StatusCode::INTERNAL_SERVER_ERROR, &json!({"error": "the reload failed"})),
        }
    }

    /// Begins to drain, as SIGTERM does; what is in flight goes on to its end.
    async fn drained(self: &Arc<Self>, call: &Call<'_>) -> Answer {
        if let Some(refusal) = self.unauthorized(call).await {
            return refusal;
        }
        self.drain.cancel();
        let in_flight = self.ledger.in_flight().len();
        json_answer(StatusCode::ACCEPTED, &json!({"draining": true, "in_flight": in_flight}))
    }

    /// `{"mode":"off"}` sets all rules, `{"mode":{"length":"shadow"}}` those named; `null` for `guard_tokens` or
    /// `cut_to` forgets what deaths have taught. All or none.
    fn change(&self, body: &[u8]) -> Result<(), String> {
        let value: Value = serde_json::from_slice(body).map_err(|e| format!("the body is not JSON: {e}"))?;
        let object = value.as_object().ok_or("the body must be an object such as {\"mode\":\"off\"}")?;
        if object.is_empty() {
            return Err("nothing to change: name `mode`, `guard_tokens` or `cut_to`".to_owned());
        }
        let mut modes = Vec::new();
        for (key, value) in object {
            match key.as_str() {
                "mode" => modes = modes_of(value)?,
                "guard_tokens" | "cut_to" if value.is_null() => {}
                "guard_tokens" | "cut_to" => {
                    return Err(format!(
                        "`{key}` is learned: it can only be forgotten, by null, not set to {value}"
                    ));
                }
                _ => {
                    return Err(format!(
                        "`{key}` cannot be changed by this call: `mode`, `guard_tokens` and `cut_to` can, and \
                         the configuration by POST /-/reload"
                    ));
                }
            }
        }
        modes.into_iter().for_each(|(rule, mode)| self.modes.set(rule, mode));
        if object.contains_key("guard_tokens") {
            self.gate.forget_guard();
        }
        if object.contains_key("cut_to") {
            self.gate.forget_cut();
        }
        Ok(())
    }

    fn limits(&self) -> Value {
        let snapshot = self.snapshot.borrow();
        let terms = Arc::clone(&self.terms.borrow());
        let books = self.gate.state();
        let profile: Option<serde_json::Map<String, Value>> = terms
            .profile
            .as_ref()
            .map(|p| p.limits().map(|(class, limit)| (class.label().to_owned(), json!(limit))).collect());
        let modes: serde_json::Map<String, Value> =
            Rule::ALL.into_iter().map(|r| (r.label().to_owned(), json!(self.modes.get(r).label()))).collect();
        let pool = snapshot.sample.as_ref().and_then(|s| s.pool);
        json!({
            "mode": modes,
            "engine": {
                "context_length": snapshot.facts.context_length(),
                "pool_tokens": pool.map(|p| p.total()),
                "block_size": pool.map(|p| p.block_size),
            },
            "configured": {
                "max_prompt_tokens": terms.settings.length.max_prompt_tokens,
                "profile": profile,
                "requests_per_minute": terms.settings.rates.requests_per_minute,
                "queue_requests": terms.settings.queue.requests,
            },
            "learned": {"guard_tokens": books.guard_tokens, "cut_to": books.cut_to},
        })
    }

    fn state(&self) -> Value {
        let now = Instant::now();
        let snapshot = Arc::clone(&self.snapshot.borrow());
        let models: Vec<&str> = snapshot.facts.models.iter().map(|m| m.id.as_str()).collect();
        let counts = self.truth.summary();
        let books = self.gate.state();
        let shadow: BTreeMap<&str, Tally> =
            self.shadow.tallies().into_iter().map(|(rule, tally)| (rule.label(), tally)).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "t": SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64()),
            "engine": {
                "state": snapshot.state.label(),
                "for_seconds": now.saturating_duration_since(snapshot.since).as_secs_f64(),
                "starts_seen": snapshot.incarnation,
                "kind": snapshot.facts.kind.label(),
                "version": snapshot.facts.version,
                "models": models,
                "load_seconds": snapshot.load_seconds,
                "scrape_age_seconds": snapshot.sample_age(now).map(|d| d.as_secs_f64()),
                "kv_cache_usage_ratio": snapshot.sample.as_ref().and_then(|s| s.kv_usage),
                "running_requests": snapshot.sample.as_ref().map(|s| s.running),
                "waiting_requests": snapshot.sample.as_ref().map(|s| s.waiting),
            },
            "admission": books,
            "shadow": shadow,
            "limits": self.limits(),
            "tokenizer": self.counter.source(),
            "counts": counts,
            "ledger": self.journal,
        })
    }
}

/// The modes that a call sets.
fn modes_of(value: &Value) -> Result<Vec<(Rule, Mode)>, String> {
    let mode = |v: &Value| {
        let word = v.as_str().unwrap_or_default();
        let found = Mode::ALL.into_iter().find(|m| m.label() == word);
        found.ok_or(format!("{v} is no mode: {}", Mode::LABELS.join(", ")))
    };
    let Value::Object(rules) = value else {
        let mode = mode(value)?;
        return Ok(Rule::ALL.map(|rule| (rule, mode)).to_vec());
    };
    let mut set = Vec::new();
    for (name, value) in rules {
        let rule = Rule::ALL.into_iter().find(|r| r.label() == name);
        let names = Rule::ALL.map(Rule::label).join(", ");
        set.push((rule.ok_or(format!("`{name}` is no rule: {names}"))?, mode(value)?));
    }
    Ok(set)
}

/// Compares in time that depends on the lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}
