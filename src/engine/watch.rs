//! The loop that watches the engine: reads it, folds what it sees, publishes a [`Snapshot`].
//!
//! `/metrics` and `/health` are read every interval, `/v1/models` and `/version` at each start and now
//! and then. A [`Hint`] from the proxy, and every suspicion, makes it look at once. A read that times
//! out says nothing: a slow engine is stale, never dead.

mod calls;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

pub use self::calls::same_start;
use self::calls::{Scrape, Seen};
use super::{
    Change, Client, Error, Facts, Kind, Life, Observation, Progress, Sample, Settings, Snapshot, State,
};
use crate::telemetry::{self, Alarm, Event};

/// Hints that wait to be folded; more say nothing new.
const HINTS: usize = 256;
/// Changes that wait for their reader.
const CHANGES: usize = 64;
/// How long the loop waits for a reader that is behind before it lets a change go.
const PATIENCE: Duration = Duration::from_millis(250);
/// Least time between two looks that hints ask for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Time between two looks while the engine is suspected.
const SUSPICIOUS: Duration = Duration::from_millis(200);

/// What the proxy noticed about the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// A new connection was refused.
    ConnectRefused,
    /// A connection ended before the answer did.
    Reset {
        /// On a connection used before, with no byte of the answer: perhaps only an idle close.
        reused: bool,
    },
    /// An answer said that the engine is dead ([`super::Said::Dead`]).
    DeadAnswer,
    /// The engine made something.
    Served,
}

/// Tells the loop; cheap to clone, never blocks.
#[derive(Debug, Clone)]
pub struct Hints {
    to: mpsc::Sender<(Hint, Instant)>,
    served: Arc<AtomicBool>,
}

impl Hints {
    /// Says what was noticed. Where many wait already, one more is let go.
    pub fn say(&self, hint: Hint) {
        if hint == Hint::Served {
            self.served.store(true, Ordering::Relaxed);
        } else {
            // With its time: a request let in meanwhile was not with the engine when it fell.
            let _ = self.to.try_send((hint, Instant::now()));
        }
    }
}

/// Makes the loop and its ends: the picture, the hints, the changes, and the loop itself, which runs
/// until it is dropped or nobody holds the picture any more. Dropping it ends its calls.
pub fn start(
    settings: &Settings,
    client: Client,
) -> (watch::Receiver<Arc<Snapshot>>, Hints, mpsc::Receiver<Change>, impl Future<Output = ()> + Send + use<>)
{
    let now = Instant::now();
    let snapshot = Snapshot::unseen(settings, now);
    let (publish, picture) = watch::channel(Arc::new(snapshot.clone()));
    let (to, hints) = mpsc::channel(HINTS);
    let (changes, changed) = mpsc::channel(CHANGES);
    let served = Arc::new(AtomicBool::new(false));
    let watcher = Watcher {
        settings: settings.clone(),
        client,
        life: Life::new(now),
        snapshot,
        publish,
        changes,
        unsent: Vec::new(),
        calls: JoinSet::new(),
        open: Open::default(),
        look: false,
        looked_at: None,
        asked: None,
        downtime: 0,
        stale: false,
        served: served.clone(),
    };
    (picture, Hints { to, served }, changed, watcher.run(hints))
}

/// Which calls are under way.
#[derive(Debug, Default)]
struct Open {
    scrape: bool,
    health: bool,
    facts: bool,
}

struct Watcher {
    settings: Settings,
    client: Client,
    life: Life,
    snapshot: Snapshot,
    publish: watch::Sender<Arc<Snapshot>>,
    changes: mpsc::Sender<Change>,
    /// Changes folded and not yet handed over.
    unsent: Vec<Change>,
    calls: JoinSet<Seen>,
    open: Open,
    /// Somebody wants a look now.
    look: bool,
    looked_at: Option<Instant>,
    /// When and in which life the facts were last read.
    asked: Option<(u64, Instant)>,
    /// Whole seconds of downtime already counted.
    downtime: u64,
    stale: bool,
    served: Arc<AtomicBool>,
}

impl Watcher {
    async fn run(mut self, mut hints: mpsc::Receiver<(Hint, Instant)>) {
        let mut tick = interval(self.settings.scrape_interval());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        telemetry::emit(Event::EngineState { state: self.life.state().label(), all: State::LABELS });
        let publish = self.publish.clone();
        loop {
            let next_look = self.next_look();
            tokio::select! {
                _ = tick.tick() => self.tick(),
                Some((hint, at)) = hints.recv() => self.hint(hint, at),
                Some(seen) = self.calls.join_next() => self.seen(seen),
                () = sleep_until(next_look.unwrap_or_else(Instant::now)), if next_look.is_some() => self.look(),
                () = publish.closed() => return,
            }
            self.flush().await;
        }
    }

    /// When to look at the engine again, other than at the next tick.
    fn next_look(&self) -> Option<Instant> {
        if self.open.health {
            return None;
        }
        let after = |wait| self.looked_at.map_or_else(Instant::now, |at| at + wait);
        if self.look {
            Some(after(LOOK_AGAIN))
        } else if self.life.state() == State::Suspect {
            Some(after(SUSPICIOUS))
        } else {
            None
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.fold(Observation::Tick, now);
        if self.served.swap(false, Ordering::Relaxed) {
            self.snapshot.progress = self.snapshot.progress.served(now);
        }
        let facts_due = match self.asked {
            Some((life, at)) => {
                life != self.life.incarnation() || now.duration_since(at) >= self.settings.facts_interval()
            }
            None => true,
        };
        let away = !self.life.state().serves();
        // Where there are no metrics, asking for them every second only fills the engine's log.
        if self.snapshot.facts.kind != Kind::OpenAiCompatible || facts_due || away {
            self.scrape();
        }
        self.health();
        if facts_due || away {
            self.ask();
        }
        self.account(now);
    }

    /// What the metrics say about the passing of time.
    fn account(&mut self, now: Instant) {
        if let Some(age) = self.snapshot.sample_age(now) {
            telemetry::emit(Event::ScrapeAge(age));
        }
        let downtime = self.life.downtime(now).as_secs();
        if downtime > self.downtime {
            telemetry::emit(Event::Downtime(Duration::from_secs(downtime - self.downtime)));
            self.downtime = downtime;
        }
        // Before the first scrape the engine has the same time to give one as between two.
        let stale =
            self.snapshot.stale(now) && now.duration_since(self.snapshot.since) > self.snapshot.stale_after();
        if stale != self.stale {
            self.stale = stale;
            let detail = if stale {
                "the engine's /metrics does not answer in time; capacity is decided without it"
            } else {
                "the engine's /metrics answers again"
            };
            telemetry::emit(Event::Alarm { alarm: Alarm::StaleMetrics, active: stale, detail });
        }
    }

    /// Looks at the engine now: is it healthy, and is it the same process?
    fn look(&mut self) {
        self.look = false;
        self.health();
        self.scrape();
    }

    fn scrape(&mut self) {
        if !std::mem::replace(&mut self.open.scrape, true) {
            self.calls.spawn(calls::scrape(self.client.clone(), self.settings.scrape_timeout()));
        }
    }

    fn health(&mut self) {
        if !std::mem::replace(&mut self.open.health, true) {
            self.looked_at = Some(Instant::now());
            self.calls.spawn(calls::health(self.client.clone(), self.settings.scrape_timeout()));
        }
    }

    fn ask(&mut self) {
        if !std::mem::replace(&mut self.open.facts, true) {
            self.calls.spawn(calls::facts(self.client.clone(), self.settings.scrape_timeout()));
        }
    }

    fn hint(&mut self, hint: Hint, at: Instant) {
        let seen = match hint {
            Hint::ConnectRefused => Observation::ConnectRefused,
            Hint::Reset { .. } => Observation::Reset,
            Hint::DeadAnswer => Observation::DeadAnswer,
            Hint::Served => return,
        };
        self.fold(seen, at);
        self.look = true;
    }

    fn seen(&mut self, seen: Result<Seen, JoinError>) {
        let now = Instant::now();
        match seen {
            Ok(Seen::Scrape(scrape)) => {
                self.open.scrape = false;
                self.scraped(scrape, now);
            }
            Ok(Seen::Health(health)) => {
                self.open.health = false;
                match health {
                    Ok(status) => self.fold(Observation::Health { ok: status < 500 }, now),
                    Err(error) => self.failed(&error, now),
                }
            }
            Ok(Seen::Facts(facts)) => {
                self.open.facts = false;
                match facts {
                    Ok(facts) => self.learned(facts, now),
                    Err(error) => self.failed(&error, now),
                }
            }
            // A call that panicked said nothing; the next tick calls again.
            Err(_) => self.open = Open::default(),
        }
    }

    fn failed(&mut self, error: &Error, now: Instant) {
        match error {
            Error::Refused => self.fold(Observation::ConnectRefused, now),
            Error::Reset => self.fold(Observation::Reset, now),
            _ => {}
        }
    }

    fn scraped(&mut self, scrape: Result<Scrape, Error>, now: Instant) {
        match scrape {
            Ok(Scrape::Sample(sample)) => {
                let seen = Observation::Scraped {
                    start_time: sample.start_time,
                    generation_tokens: sample.generation_tokens_total,
                    steps: sample.steps_total,
                };
                self.fold(seen, now);
                self.kind(Kind::Vllm);
                self.sampled(*sample);
            }
            Ok(Scrape::None(start_time)) => {
                self.fold(Observation::Scraped { start_time, generation_tokens: None, steps: None }, now);
                // One that had metrics in this life and now has none is stale, not another kind: it is asked
                // again at the usual pace.
                if self.snapshot.sample.is_none() {
                    self.kind(Kind::OpenAiCompatible);
                }
            }
            Ok(Scrape::Unknown) => {}
            Err(error) => {
                self.failed(&error, now);
                // Slow metrics alone say nothing: ask what is cheap to answer.
                self.look |= matches!(error, Error::Timeout { .. });
            }
        }
    }

    fn kind(&mut self, kind: Kind) {
        if self.snapshot.facts.kind != kind {
            Arc::make_mut(&mut self.snapshot.facts).kind = kind;
        }
    }

    fn sampled(&mut self, sample: Sample) {
        let before = self.snapshot.sample.as_ref();
        let total = |s: &Sample| s.preemptions_total.unwrap_or(0.0);
        let preemptions = before.map_or(0.0, |before| (total(&sample) - total(before)).max(0.0)) as u64;
        if sample.pool.is_some() && before.and_then(|b| b.pool) != sample.pool {
            let tokens = sample.pool.map_or(0, |pool| pool.total().get());
            telemetry::emit(Event::Pool { tokens });
        }
        telemetry::emit(Event::Scraped {
            kv_usage: sample.kv_usage,
            running: Some(sample.running),
            waiting: Some(sample.waiting),
            preemptions,
        });
        self.snapshot.progress = self.snapshot.progress.next(&sample);
        self.snapshot.new_preemptions = preemptions;
        self.snapshot.sample = Some(Arc::new(sample));
    }

    fn learned(&mut self, said: calls::Said, now: Instant) {
        self.fold(Observation::Models { served: said.served }, now);
        if !said.served {
            return;
        }
        self.asked = Some((self.life.incarnation(), now));
        let kind = self.snapshot.facts.kind;
        let facts = Facts { kind, version: said.version, models: said.models };
        if *self.snapshot.facts != facts {
            self.snapshot.facts = Arc::new(facts);
        }
    }

    fn fold(&mut self, seen: Observation, now: Instant) {
        let state = self.life.state();
        let (life, changes) = self.life.clone().next(seen, now);
        self.life = life;
        if state != self.life.state() {
            telemetry::emit(Event::EngineState { state: self.life.state().label(), all: State::LABELS });
        }
        for change in &changes {
            match change {
                Change::Started { .. } => self.started(),
                Change::Ready { load, .. } => telemetry::emit(Event::EngineReady { load: *load }),
                Change::Suspected { .. } => self.look = true,
                Change::Cleared | Change::Died { .. } => {}
            }
        }
        self.unsent.extend(changes);
    }

    /// A new process: what was known of the old one's load is worth nothing.
    fn started(&mut self) {
        telemetry::emit(Event::EngineStarted);
        self.snapshot.sample = None;
        self.snapshot.new_preemptions = 0;
        self.snapshot.progress = Progress::default();
        if let Err(error) = self.client.reload_key() {
            tracing::warn!(%error, "engine_key_not_reloaded");
        }
        self.look = true;
        self.ask();
    }

    /// Publishes the picture, then the changes that led to it. The newest change is never the one
    /// that is let go without waiting for its reader.
    async fn flush(&mut self) {
        self.snapshot = self.snapshot.clone().with_life(&self.life);
        self.publish.send_replace(Arc::new(self.snapshot.clone()));
        for change in self.unsent.drain(..) {
            let lost = match self.changes.try_send(change) {
                Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => false,
                Err(mpsc::error::TrySendError::Full(change)) => {
                    timeout(PATIENCE, self.changes.send(change)).await.is_err()
                }
            };
            if lost {
                tracing::warn!(limit = CHANGES, "engine_change_not_read");
            }
        }
    }
}

#[cfg(test)]
mod tests;
