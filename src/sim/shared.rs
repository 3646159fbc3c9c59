//! What outlives a single life of the simulated engine: settings, faults, totals.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::core::Core;
use super::counting::Counting;
use super::fault::{Death, Deed, Fault, Switches};
use super::settings::Settings;

/// Ids of requests kept for [`Stats::prompts_seen`].
const IDS_KEPT: usize = 10_000;

/// What the simulated engine has done and does, over all of its lives.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Sequences that hold KV-cache blocks now.
    pub running: usize,
    /// Sequences that wait now.
    pub waiting: usize,
    /// KV-cache usage now, 0 to 1.
    pub kv_usage: f64,
    /// Preemptions so far.
    pub preemptions: u64,
    /// Requests whose client left before the end.
    pub aborted: u64,
    /// Requests answered to the end.
    pub served: u64,
    /// Lives begun.
    pub starts: u64,
    /// Whether it is dead or loading now.
    pub down: bool,
    /// Ids of the generation requests it scheduled, oldest first: `X-Request-Id` as it came, else
    /// its own. The last 10,000.
    pub prompts_seen: Vec<String>,
}

#[derive(Debug, Default)]
struct Totals {
    preemptions: u64,
    aborted: u64,
    served: u64,
    starts: u64,
    ids: VecDeque<String>,
}

/// Counted when a request is over or seen.
#[derive(Debug)]
pub(super) enum Tally {
    Seen(String),
    Served,
    Aborted,
    Preempted(u64),
    Started,
}

/// Shared by everything of one simulated engine.
pub(super) struct Shared {
    pub settings: Settings,
    pub counting: Counting,
    pub rng: Mutex<fastrand::Rng>,
    switches: Mutex<Switches>,
    totals: Mutex<Totals>,
    core: Mutex<Option<Arc<Core>>>,
    changed: watch::Sender<()>,
    restart: Mutex<Option<f64>>,
    restart_asked: Notify,
    log: Mutex<Box<dyn Write + Send>>,
}

/// Takes a lock that no panic can have left in a bad state.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(settings: Settings, counting: Counting, log: Box<dyn Write + Send>) -> Self {
        Self {
            rng: Mutex::new(fastrand::Rng::with_seed(settings.seed)),
            settings,
            counting,
            switches: Mutex::default(),
            totals: Mutex::default(),
            core: Mutex::default(),
            changed: watch::Sender::new(()),
            restart: Mutex::default(),
            restart_asked: Notify::new(),
            log: Mutex::new(log),
        }
    }

    /// The lasting faults in force.
    pub fn switches(&self) -> Switches {
        lock(&self.switches).clone()
    }

    /// Brings a fault about.
    pub fn fault(&self, fault: Fault) {
        let deed = lock(&self.switches).apply(fault);
        let core = self.core();
        match (deed, core) {
            (Deed::Switched, Some(core)) => core.nudge(),
            (Deed::Die(death), Some(core)) => core.die(death),
            (Deed::Stall(id), Some(core)) => core.stall(id.as_deref()),
            (Deed::Restart(seconds), Some(core)) => {
                core.die(Death { hard: true, load_seconds: Some(seconds) });
            }
            (Deed::Restart(seconds), None) => {
                *lock(&self.restart) = Some(seconds);
                self.restart_asked.notify_one();
            }
            (_, None) => {}
        }
    }

    /// Waits until a dead engine is told to load; seconds of loading. Cancel-safe.
    pub async fn restart(&self) -> f64 {
        loop {
            if let Some(seconds) = lock(&self.restart).take() {
                return seconds;
            }
            self.restart_asked.notified().await;
        }
    }

    /// The living engine, if one lives.
    pub fn core(&self) -> Option<Arc<Core>> {
        lock(&self.core).clone()
    }

    /// Says which engine lives now. A hang ends with the process that hung.
    pub fn set_core(&self, core: Option<Arc<Core>>) {
        lock(&self.switches).hang &= core.is_some();
        if core.is_some() {
            *lock(&self.restart) = None;
        }
        *lock(&self.core) = core;
        self.say_changed();
    }

    /// Counts what happened.
    pub fn tally(&self, what: Tally) {
        {
            let mut totals = lock(&self.totals);
            match what {
                Tally::Seen(id) => {
                    if totals.ids.len() == IDS_KEPT {
                        totals.ids.pop_front();
                    }
                    totals.ids.push_back(id);
                }
                Tally::Served => totals.served += 1,
                Tally::Aborted => totals.aborted += 1,
                Tally::Preempted(n) => totals.preemptions += n,
                Tally::Started => totals.starts += 1,
            }
        }
        self.say_changed();
    }

    /// Wakes whoever waits for [`Stats`] to change.
    pub fn say_changed(&self) {
        self.changed.send_replace(());
    }

    /// Ticks at each change of [`Stats`].
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// How it stands now.
    pub fn stats(&self) -> Stats {
        let core = self.core();
        let (running, waiting, kv_usage) = core.as_ref().map(|c| c.load_now()).unwrap_or_default();
        let totals = lock(&self.totals);
        Stats {
            running,
            waiting,
            kv_usage,
            preemptions: totals.preemptions,
            aborted: totals.aborted,
            served: totals.served,
            starts: totals.starts,
            down: core.is_none_or(|c| c.is_dead()),
            prompts_seen: totals.ids.iter().cloned().collect(),
        }
    }

    /// Writes to the engine's log; a log that cannot be written is given up silently, as a closed
    /// stderr is.
    pub fn log(&self, text: &str) {
        let mut log = lock(&self.log);
        let _ = log.write_all(text.as_bytes()).and_then(|()| log.flush());
    }
}
