//! From a death and the ledger to a report.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::report::{Cause, Engine, Evidence, Report};
use super::suspects::suspects;
use crate::ledger::{Flight, Ledger, Record};
use crate::request::Outcome;

/// How long before the first suspicion a request may have ended as crashed and still belong to the
/// death: the first reset that a client's answer got is what raised the suspicion.
const EARLIER: Duration = Duration::from_secs(5);

/// How many queued requests a report lists.
const QUEUED_LISTED: usize = 256;

/// A confirmed death of the engine.
#[derive(Debug, Clone)]
pub struct Death {
    /// When it was confirmed.
    pub at: Instant,
    /// The same on the wall clock.
    pub time: SystemTime,
    /// When it was first suspected.
    pub suspected_at: Instant,
    /// When the death before this one was confirmed: what was sent until then belongs to that one.
    pub before: Option<Instant>,
    /// What confirmed it, in words of the engine's lifecycle.
    pub confirmed_by: Vec<&'static str>,
    /// The engine.
    pub engine: Engine,
    /// Cause and evidence, where there is any.
    pub verdict: Option<(Cause, f64, Vec<Evidence>)>,
}

/// Composes the report of a death from what the ledger holds now: call it soon after the death, while
/// the ledger still remembers those that ended by it.
#[must_use]
pub fn compose(death: &Death, ledger: &Ledger) -> Report {
    compose_from(death, ledger.flights())
}

/// Where a request was when the death was first suspected.
enum Place {
    WithTheEngine,
    SentAfterwards,
    InTheQueue,
    Elsewhere,
}

fn place(flight: &Flight, death: &Death) -> Place {
    let suspected = death.suspected_at;
    let outcome = flight.record.outcome;
    let affected = match (flight.ended, outcome) {
        (None, _) | (_, None) => true,
        (Some(at), Some(Outcome::EngineCrashed)) => at + EARLIER >= suspected,
        // An answer that was whole all the same tells of no harm.
        (Some(_), Some(Outcome::Completed | Outcome::Rejected)) => false,
        (Some(at), Some(_)) => at >= suspected,
    };
    match flight.admitted {
        _ if !affected => Place::Elsewhere,
        Some(at) if death.before.is_some_and(|before| at <= before) => Place::Elsewhere,
        // It had left the queue, but the engine could not be reached: no byte of it was sent.
        Some(_) if outcome == Some(Outcome::EngineUnavailable) => Place::InTheQueue,
        Some(at) if at <= suspected => Place::WithTheEngine,
        Some(_) => Place::SentAfterwards,
        // Out of the queue for want of an engine, or because its client left: it was there.
        None => Place::InTheQueue,
    }
}

pub(super) fn compose_from(death: &Death, flights: Vec<Flight>) -> Report {
    let (mut with, mut after, mut queued, mut others) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for flight in flights {
        match place(&flight, death) {
            Place::WithTheEngine => with.push(flight),
            Place::SentAfterwards => after.push(flight),
            Place::InTheQueue => queued.push(flight),
            Place::Elsewhere => others.push(flight),
        }
    }
    let unix = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let doubt = death.at.saturating_duration_since(death.suspected_at);
    let t = unix(death.time);
    let life = life(death.engine.start_time, &others);
    let (cause, confidence, evidence) = death.verdict.clone().unwrap_or_default();
    with.sort_by_key(|f| f.arrived);
    Report {
        id: format!("crash-{}-1", t as u64),
        t,
        t_suspected: t - doubt.as_secs_f64(),
        cause,
        chain: vec![cause],
        confidence,
        evidence,
        confirmed_by: death.confirmed_by.iter().map(|&by| by.to_owned()).collect(),
        engine: death.engine.clone(),
        suspects: suspects(&with, &life, death.at),
        suspects_are: "an order by circumstances (see each one's reasons), not proof".to_owned(),
        advice: advice(cause),
        in_flight: records(with),
        sent_while_suspected: records(after),
        queued_total: queued.len(),
        queued: records(queued.into_iter().take(QUEUED_LISTED)),
    }
}

fn records(flights: impl IntoIterator<Item = Flight>) -> Vec<Record> {
    flights.into_iter().map(|f| f.record).collect()
}

/// The requests that this life of the engine served before: all that are known, where it does not say
/// when it started.
fn life(start_time: Option<f64>, others: &[Flight]) -> Vec<&Flight> {
    let since = start_time.unwrap_or(0.0);
    others.iter().filter(|f| f.record.t_admitted.is_some_and(|t| t >= since)).collect()
}

fn advice(cause: Cause) -> Vec<String> {
    if cause != Cause::Unknown {
        return Vec::new();
    }
    [
        "no cause is known: collect the engine's log from a minute before the death to its next start",
        "collect its exit code or signal, and the kernel's log (out-of-memory kills, Xid lines)",
        "collect GPU memory over time (nvidia-smi) and the other processes on the card",
    ]
    .map(str::to_owned)
    .to_vec()
}
