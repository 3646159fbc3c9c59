//! Clients, gateway and engine in virtual time: one course of traffic, event by event.

use std::collections::HashMap;

use kvgate::admit::{Action, Signals};
use kvgate::request::Tokens;
use kvgate::sim::{Batch, Scheduler, SeqId};
use tokio::time::Instant;

use super::agenda::{Agenda, Event};
use super::engine::{Engine, RELOAD, add};
use super::gateway::{Gateway, Word};
use super::outcome::{Attempt, End, Manner, Outcome};
use super::policy::{Rule, Sight};
use super::random::Random;
use super::workload::Request;

/// Seconds from the gateway's word until the engine has the request.
const DISPATCH: f64 = 0.002;
/// Seconds between two ticks of the gateway.
const TICK: f64 = 0.02;
/// Seconds after the last arrival at which all ends.
const OVERTIME: f64 = 900.0;
/// Seconds after which a client comes back that nobody told when: one whose engine died, one that left.
const UNTOLD: (f64, f64) = (1.0, 0.5);
/// Retry-After that a client obeys at most, where the engine is away.
const AWAY: f64 = 5.0;

struct World<'a> {
    engine: &'a Engine,
    rule: &'a Rule,
    manner: Manner,
    requests: Vec<Request>,
    attempts: Vec<Attempt>,
    owners: HashMap<SeqId, usize>,
    scheduler: Scheduler,
    gateway: Option<Gateway>,
    agenda: Agenda,
    now: f64,
    horizon: f64,
    open: usize,
    step: Option<Batch>,
    /// When the engine will have loaded, where it is dead.
    dead_until: Option<f64>,
    deaths: u32,
    random: Random,
    gaps: Vec<f64>,
    scraped: Scraped,
}

/// What the scrape before showed.
#[derive(Default)]
struct Scraped {
    at: Option<f64>,
    generated: u64,
    preemptions: u64,
    now_generated: u64,
    cached: u64,
}

/// Lets the requests come, until all have ended.
pub fn run(engine: &Engine, rule: &Rule, requests: Vec<Request>, manner: Manner, seed: u64) -> Outcome {
    let horizon = requests.last().map_or(0.0, |r| r.arrival);
    let gateway = rule.settings.as_ref().map(|s| Gateway::new(s, engine, Instant::now()));
    let mut world = World {
        engine,
        rule,
        manner,
        requests,
        attempts: Vec::new(),
        owners: HashMap::new(),
        scheduler: Scheduler::new(engine.settings.limits()),
        gateway,
        agenda: Agenda::default(),
        now: 0.0,
        horizon,
        open: 0,
        step: None,
        dead_until: None,
        deaths: 0,
        random: Random::new(seed ^ 0x0b5e),
        gaps: Vec::new(),
        scraped: Scraped::default(),
    };
    world.begin();
    world.live();
    world.outcome()
}

impl World<'_> {
    fn begin(&mut self) {
        for client in 0..self.requests.len() {
            let bypass = self.random.share() < self.manner.bypass;
            self.attempt(client, 0, self.requests[client].arrival, bypass);
        }
        if self.gateway.is_some() {
            self.at(0.0, Event::Scrape);
            self.at(0.0, Event::Tick);
        }
    }

    fn at(&mut self, when: f64, event: Event) {
        self.agenda.note(when, event);
    }

    fn attempt(&mut self, client: usize, attempt: u32, arrival: f64, bypass: bool) {
        let bypass = bypass || self.gateway.is_none();
        self.attempts.push(Attempt::new(client, attempt, arrival, bypass));
        self.at(arrival, Event::Arrive(self.attempts.len() - 1));
    }

    fn live(&mut self) {
        while let Some((now, event)) = self.agenda.next() {
            if now > self.horizon && self.open == 0 || now > self.horizon + OVERTIME {
                return;
            }
            self.now = now;
            let actions = self.happens(event);
            self.obey(actions);
            self.next_step();
        }
    }

    fn happens(&mut self, event: Event) -> Vec<Action> {
        let now = self.now;
        let goes_on = now <= self.horizon || self.open > 0;
        match event {
            Event::Arrive(id) => return self.arrives(id),
            Event::Send(id) => return self.sends(id),
            Event::Patience(id) => return self.runs_out(id),
            Event::StepDone => return self.step_done(),
            Event::Scrape => {
                if goes_on {
                    self.at(now + self.rule.scrape, Event::Scrape);
                }
                return self.scrape();
            }
            Event::Tick => {
                if goes_on {
                    self.at(now + TICK, Event::Tick);
                }
                return self.gateway.as_mut().map(|g| g.tick(now)).unwrap_or_default();
            }
            Event::Loaded => self.dead_until = None,
        }
        // It is seen to be back at once, as a connection is.
        self.scrape()
    }

    fn arrives(&mut self, id: usize) -> Vec<Action> {
        self.open += 1;
        let now = self.now;
        let request = &self.requests[self.attempts[id].client];
        let patience = request.patience;
        let (word, actions) = match self.gateway.as_mut().filter(|_| !self.attempts[id].bypass) {
            Some(gateway) => gateway.arrive(id as u64, request, (!self.manner.silent, now)),
            None => (Word::Go, Vec::new()),
        };
        if !self.manner.silent {
            self.at(now + patience, Event::Patience(id));
        }
        match word {
            Word::Go => self.at(now + DISPATCH, Event::Send(id)),
            Word::Wait => self.attempts[id].queued = true,
            Word::Away(after) => self.turned_away(id, after),
        }
        actions
    }

    fn turned_away(&mut self, id: usize, after: Option<f64>) {
        let after = if self.dead_until.is_some() { after.map(|a| a.min(AWAY)) } else { after };
        self.ends(id, End::Refused);
        if let Some(after) = after {
            self.returns(id, after);
        }
    }

    fn obey(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Admit { id, .. } => self.at(self.now + DISPATCH, Event::Send(id as usize)),
                Action::Evict { id, why } => {
                    self.turned_away(id as usize, why.retry_after().map(|after| after.as_secs_f64()));
                }
            }
        }
    }

    fn ends(&mut self, id: usize, end: End) {
        if self.attempts[id].end == End::Open {
            self.attempts[id].end = end;
            self.open -= 1;
        }
    }

    /// A client that was not served comes back later.
    fn returns(&mut self, id: usize, after: f64) {
        let Attempt { client, attempt, bypass, .. } = self.attempts[id];
        if attempt < self.manner.retries && self.now < self.horizon {
            let arrival = self.now + after * self.random.between(1.0, 1.5);
            self.attempt(client, attempt + 1, arrival, bypass);
        }
    }

    fn leaves(&mut self, id: usize) -> Vec<Action> {
        let now = self.now;
        let gateway = self.gateway.as_mut().filter(|_| !self.attempts[id].bypass);
        gateway.map(|g| g.leave(id as u64, now)).unwrap_or_default()
    }

    fn sends(&mut self, id: usize) -> Vec<Action> {
        if self.attempts[id].end != End::Open {
            return Vec::new();
        }
        if self.dead_until.is_some() {
            let actions = self.leaves(id);
            self.ends(id, End::Failed);
            self.returns(id, UNTOLD.0);
            return actions;
        }
        let seq = add(&mut self.scheduler, &self.requests[self.attempts[id].client]);
        self.owners.insert(seq, id);
        self.attempts[id].seq = Some(seq);
        self.attempts[id].sent = true;
        Vec::new()
    }

    fn runs_out(&mut self, id: usize) -> Vec<Action> {
        let attempt = &self.attempts[id];
        if attempt.end != End::Open || attempt.tokens > 0 {
            return Vec::new();
        }
        if let Some(seq) = attempt.seq {
            self.scheduler.abort(seq);
            self.owners.remove(&seq);
        }
        let actions = self.leaves(id);
        self.ends(id, End::Left);
        self.returns(id, UNTOLD.1);
        actions
    }

    fn next_step(&mut self) {
        if self.step.is_some() || self.dead_until.is_some() {
            return;
        }
        let mut batch = self.scheduler.plan();
        while batch.shares.is_empty() && !batch.preempted.is_empty() {
            batch = self.scheduler.plan();
        }
        if batch.shares.is_empty() {
            return;
        }
        if self.scheduler.deadly(&batch) {
            self.dies();
            return;
        }
        let time = self.engine.settings.step_time(&batch).as_secs_f64();
        self.step = Some(batch);
        self.at(self.now + time, Event::StepDone);
    }

    fn step_done(&mut self) -> Vec<Action> {
        let Some(batch) = self.step.take() else { return Vec::new() };
        let now = self.now;
        let mut actions = Vec::new();
        for produced in self.scheduler.complete(&batch) {
            let Some(&id) = self.owners.get(&produced.seq) else { continue };
            self.scraped.now_generated += 1;
            let attempt = &mut self.attempts[id];
            attempt.tokens = produced.generated;
            if attempt.tokens == 1 {
                attempt.first = now;
            } else if self.random.share() < 0.02 {
                self.gaps.push(now - attempt.last);
            }
            attempt.last = now;
            let (client, tokens) = (attempt.client, attempt.tokens);
            let gateway = self.gateway.as_mut().filter(|_| !self.attempts[id].bypass);
            if let Some(gateway) = gateway {
                gateway.token(id as u64, tokens, now);
                if produced.last {
                    actions.extend(gateway.done(id as u64, &self.requests[client], now));
                }
            }
            if produced.last {
                self.owners.remove(&produced.seq);
                self.ends(id, End::Done);
            }
        }
        actions
    }

    fn dies(&mut self) {
        self.deaths += 1;
        // What was computed for those in flight was for nothing.
        for seq in self.owners.keys() {
            self.scheduler.abort(*seq);
        }
        let back = self.now + RELOAD * self.engine.stretch;
        self.dead_until = Some(back);
        self.at(back, Event::Loaded);
        // How long it takes to load is known from the second time on.
        let told = (self.deaths > 1).then_some(RELOAD * self.engine.stretch);
        let now = self.now;
        let actions = self.gateway.as_mut().map(|g| g.engine_gone(told, now)).unwrap_or_default();
        let mut victims: Vec<usize> = self.owners.drain().map(|(_, id)| id).collect();
        victims.sort_unstable();
        for id in victims {
            self.ends(id, End::Failed);
            self.returns(id, UNTOLD.0);
        }
        self.obey(actions);
    }

    fn scrape(&mut self) -> Vec<Action> {
        let signals = self.look();
        let now = self.now;
        self.gateway.as_mut().map(|g| g.signals(signals, now)).unwrap_or_default()
    }

    /// What a scrape shows at this moment, as `gateway.rs` tells it.
    fn look(&mut self) -> Signals {
        let limits = self.engine.settings.limits();
        let known = Signals {
            pool: Some(Tokens(self.engine.pool())),
            block: u64::from(limits.block_size),
            incarnation: u64::from(self.deaths),
            ..Signals::default()
        };
        if let Some(back) = self.dead_until {
            let left = (self.deaths > 1).then(|| std::time::Duration::from_secs_f64(back - self.now));
            return Signals { state_ready: false, retry_after: left, ..known };
        }
        let hidden = match self.rule.sight {
            Sight::NoMetrics => return known,
            Sight::Nothing => return Signals { pool: None, block: 1, ..known },
            Sight::NoPool => Signals { pool: None, block: 1, ..known },
            Sight::All => known,
        };
        let before = std::mem::take(&mut self.scraped);
        let (generated, preemptions) = (before.now_generated, self.scheduler.preemptions());
        let seconds = before.at.map(|at| self.now - at).filter(|seconds| *seconds > 0.0);
        let gauges = self.scheduler.gauges();
        let cached = self.scheduler.work().cached;
        let at = Some(self.now);
        self.scraped = Scraped { at, generated, preemptions, now_generated: generated, cached };
        Signals {
            fresh: true,
            waiting: gauges.waiting as f64,
            running: gauges.running as f64,
            kv_usage: Some(gauges.kv_usage),
            preempted: preemptions > before.preemptions,
            prefix_hits: cached.saturating_sub(before.cached) as f64,
            generation_rate: seconds.map(|seconds| (generated - before.generated) as f64 / seconds),
            ..hidden
        }
    }

    fn outcome(self) -> Outcome {
        let work = self.scheduler.work();
        Outcome {
            requests: self.requests,
            attempts: self.attempts,
            gaps: self.gaps,
            deaths: self.deaths,
            preemptions: self.scheduler.preemptions(),
            computed: work.computed,
            wasted: work.abandoned + work.recomputed,
            horizon: self.horizon,
            reasons: self.gateway.map(|g| g.reasons).unwrap_or_default(),
        }
    }
}
