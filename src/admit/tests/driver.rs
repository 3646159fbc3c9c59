//! Clients, gate and engine in virtual time.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::engine::{Engine, Run};
use crate::admit::*;
use crate::request::{Priority, Tokens};

#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub prompt: u64,
    pub output: u64,
    pub cap: Option<u64>,
    pub stream: bool,
    pub max_wait: Duration,
}

/// How one client fared, seconds.
#[derive(Debug, Clone, Default)]
pub struct Fate {
    pub arrived: f64,
    pub admitted: Option<f64>,
    pub ended: Option<f64>,
    /// (when it was told, what it was told, the word).
    pub told: Vec<(f64, f64, Rejected)>,
    /// Whether it was told only after it had waited.
    pub waited_for_nothing: f64,
}

pub type Rejected = &'static str;

pub struct World {
    pub admission: Option<Admission>,
    pub engine: Engine,
    pub fates: BTreeMap<u64, Fate>,
    pub step: Duration,
    loads: HashMap<u64, Load>,
    returns: Vec<(f64, u64)>,
    queued_at: HashMap<u64, f64>,
    epoch: Instant,
    pub at: f64,
    scraped: f64,
    last_generated: u64,
    last_preemptions: u64,
    /// Client `id` comes back this much later than told, as a share of it.
    pub late: fn(u64) -> f64,
    pub scrape_every: f64,
    /// Seconds of a step for each token prefilled in it, and share by which steps vary.
    pub prefill: f64,
    pub noise: f64,
    /// Share by which a step is longer with each further sequence that runs.
    pub batch: f64,
    /// Share by which the machine is slower at times, for seconds on end (other work on it).
    pub drift: f64,
    slower: f64,
    /// Tokens by which what we see lags behind the engine.
    pub lag: u64,
    random: fastrand::Rng,
}

impl World {
    pub fn new(gate: bool, engine: Engine) -> Self {
        let admission = gate.then(|| Admission::new(&Settings::default(), 7));
        let mut world = Self {
            admission,
            engine,
            fates: BTreeMap::new(),
            step: Duration::from_millis(35),
            loads: HashMap::new(),
            returns: Vec::new(),
            queued_at: HashMap::new(),
            epoch: Instant::now(),
            at: 0.0,
            scraped: 0.0,
            last_generated: 0,
            last_preemptions: 0,
            late: |_| 0.0,
            scrape_every: 1.0,
            prefill: 0.0,
            noise: 0.0,
            batch: 0.0,
            drift: 0.0,
            slower: 0.0,
            lag: 0,
            random: fastrand::Rng::with_seed(3),
        };
        world.scrape();
        world
    }

    /// Another course of chance.
    pub fn seed(&mut self, seed: u64) {
        self.random = fastrand::Rng::with_seed(seed);
    }

    /// Other settings, before anybody came.
    pub fn with(&mut self, capacity: CapacitySettings, queue: QueueSettings) {
        let settings = Settings { capacity, queue, ..Settings::default() };
        self.admission = Some(Admission::new(&settings, 7));
        self.scrape();
    }

    pub fn now(&self) -> Instant {
        self.epoch + Duration::from_secs_f64(self.at)
    }

    /// A client comes at `at` seconds from now.
    pub fn client(&mut self, id: u64, load: Load, at: f64) {
        self.loads.insert(id, load);
        self.fates.insert(id, Fate { arrived: self.at + at, ..Fate::default() });
        self.returns.push((self.at + at, id));
    }

    fn scrape(&mut self) {
        let (now, elapsed) = (self.now(), self.at - self.scraped);
        let Some(admission) = &mut self.admission else { return };
        let rate = (elapsed > 0.0).then(|| (self.engine.generated - self.last_generated) as f64 / elapsed);
        let signals = Signals {
            pool: Some(Tokens(self.engine.blocks * self.engine.block)),
            block: self.engine.block,
            fresh: true,
            waiting: self.engine.waiting.len() as f64,
            running: self.engine.running.len() as f64,
            kv_usage: Some(self.engine.usage()),
            preempted: self.engine.preemptions > self.last_preemptions,
            taken: Some(now),
            generation_rate: rate,
            ..Signals::default()
        };
        admission.signals(signals, now);
        (self.scraped, self.last_generated) = (self.at, self.engine.generated);
        self.last_preemptions = self.engine.preemptions;
    }

    fn go(&mut self, id: u64) {
        let load = self.loads[&id];
        self.queued_at.remove(&id);
        self.fates.get_mut(&id).unwrap().admitted = Some(self.at);
        self.engine.push(Run { id, prompt: load.prompt, generated: 0, output: load.output });
    }

    fn refused(&mut self, id: u64, why: &Rejection) {
        let told = why.retry_after().unwrap().as_secs_f64();
        let fate = self.fates.get_mut(&id).unwrap();
        fate.told.push((self.at, told, why.reason()));
        if let Some(since) = self.queued_at.remove(&id) {
            fate.waited_for_nothing = fate.waited_for_nothing.max(self.at - since);
        }
        self.returns.push((self.at + told * (1.0 + (self.late)(id)), id));
    }

    fn arrivals(&mut self) {
        let mut due: Vec<_> = self.returns.iter().copied().filter(|(at, _)| *at <= self.at).collect();
        self.returns.retain(|(at, _)| *at > self.at);
        due.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for (_, id) in due {
            let (load, now) = (self.loads[&id], self.now());
            let ask = Ask {
                prompt: Tokens(load.prompt),
                longest: Tokens(load.prompt),
                max_output: load.cap.map(Tokens),
                sequences: 1,
                stream: load.stream,
                body_bytes: 1000,
                max_wait: load.max_wait,
                ttft: None,
                tenant: 0,
                priority: Priority::Interactive,
                trail: None,
            };
            match self.admission.as_mut().map(|a| a.arrive(id, &ask, now)) {
                None | Some(Arrival::Admitted) => self.go(id),
                Some(Arrival::Queued) => _ = self.queued_at.insert(id, self.at),
                Some(Arrival::Refused(why)) => self.refused(id, &why),
            }
        }
    }

    fn advance(&mut self) {
        let now = self.now();
        for action in self.admission.as_mut().map(|a| a.advance(now)).unwrap_or_default() {
            match action {
                Action::Admit { id, .. } => self.go(id),
                Action::Evict { id, why } => self.refused(id, &why),
            }
        }
    }

    /// One engine step, and the ticks around it.
    pub fn turn(&mut self) {
        if self.at - self.scraped >= self.scrape_every {
            self.scrape();
        }
        self.arrivals();
        self.advance();
        let out = self.engine.step();
        let noise = 1.0 + self.noise * (2.0 * self.random.f64() - 1.0);
        if self.random.f64() < 0.01 {
            self.slower = self.drift * self.random.f64();
        }
        let batch = 1.0 + self.batch * out.len().saturating_sub(1) as f64;
        let step = self.step.as_secs_f64() * noise * batch + self.prefill * self.engine.prefilled as f64;
        self.at += step * (1.0 + self.slower);
        let now = self.now();
        for (id, total, ended) in out {
            let load = self.loads[&id];
            if let Some(admission) = &mut self.admission {
                if load.stream && total > self.lag {
                    admission.books.tokens(id, total - self.lag, now);
                }
                if ended {
                    // A plain answer shows all its tokens with its end.
                    admission.first_token(id, now);
                    admission.books.tokens(id, total, now);
                    let kind = Kind { tenant: 0, prompt: load.prompt, cap: load.cap.map(Tokens) };
                    admission.completed(Some(id), (kind, 1), Tokens(total), now);
                    admission.leave(id, now);
                }
            }
            if ended {
                self.fates.get_mut(&id).unwrap().ended = Some(self.at);
            }
        }
    }

    /// Until every client has its answer, or `limit` seconds.
    pub fn run(&mut self, limit: f64) -> f64 {
        let begin = self.at;
        while self.fates.values().any(|fate| fate.ended.is_none()) && self.at - begin < limit {
            self.turn();
        }
        self.at - begin
    }
}
