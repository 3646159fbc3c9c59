//! What the engine's death touches: the queue is told at once, a report is written.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::admit::Gate;
use crate::crash::{self, Death, Engine, LastSample, Reports};
use crate::engine::{Change, Snapshot};
use crate::ledger::Ledger;
use crate::telemetry::{self, Event};

/// How long the news of a death waits for its report to be written.
const WRITING: Duration = Duration::from_secs(5);

/// What is needed to answer to a death.
pub(super) struct Mourner {
    pub changes: mpsc::Receiver<Change>,
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    pub ledger: Ledger,
    pub reports: Reports,
    pub gate: Gate,
}

/// Follows the engine's life for as long as it is watched.
pub(super) async fn follow(mut mourner: Mourner) {
    // At a death the picture may already be of the next life: the last one of this life is kept.
    let mut last = Arc::clone(&mourner.snapshot.borrow());
    let mut before = None;
    loop {
        let change = tokio::select! {
            biased;
            change = mourner.changes.recv() => change,
            changed = mourner.snapshot.changed() => {
                let now = Arc::clone(&mourner.snapshot.borrow_and_update());
                if now.sample.is_some() || now.incarnation != last.incarnation {
                    last = now;
                }
                if changed.is_err() {
                    return;
                }
                continue;
            }
        };
        match change {
            None => return,
            Some(Change::Died { at, suspected_at, confirmed_by, incarnation }) => {
                let death = Death {
                    at,
                    time: SystemTime::now(),
                    suspected_at,
                    before: before.replace(at),
                    confirmed_by,
                    engine: described(&last, incarnation, at),
                    verdict: None,
                };
                mourner.died(&death).await;
            }
            Some(_) => {}
        }
    }
}

impl Mourner {
    async fn died(&self, death: &Death) {
        let retry_after = self.snapshot.borrow().retry_after(Instant::now());
        // First those that wait: they never were with the engine, and the report lists them as queued.
        let report = crash::compose(death, &self.ledger);
        self.gate.engine_gone(Some(retry_after));
        let (cause, inflight) = (report.cause.label(), report.in_flight.len());
        let confirmed_by = report.confirmed_by.join(", ");
        // A disk that hangs keeps neither the news of this death nor the next one.
        let reports = self.reports.clone();
        let writing = tokio::task::spawn_blocking(move || reports.write(report));
        let id = timeout(WRITING, writing).await.ok().and_then(Result::ok);
        telemetry::emit(Event::EngineDied {
            cause,
            confirmed_by: &confirmed_by,
            inflight,
            report: id.as_deref(),
        });
    }
}

fn described(snapshot: &Snapshot, incarnation: u64, at: Instant) -> Engine {
    let sample = snapshot.sample.as_deref();
    Engine {
        kind: Some(snapshot.facts.kind.label().to_owned()),
        version: snapshot.facts.version.clone(),
        models: snapshot.facts.models.iter().map(|m| m.id.clone()).collect(),
        context_length: snapshot.facts.context_length().map(|t| t.get()),
        pool_tokens: sample.and_then(|s| s.pool).map(|p| p.total().get()),
        incarnation,
        start_time: sample.and_then(|s| s.start_time).or(snapshot.start_time),
        last_sample: sample.map(|s| LastSample {
            age_seconds: at.saturating_duration_since(s.taken).as_secs_f64(),
            kv_cache_usage: s.kv_usage,
            running: Some(s.running),
            waiting: Some(s.waiting),
            preemptions: s.preemptions_total,
        }),
    }
}
