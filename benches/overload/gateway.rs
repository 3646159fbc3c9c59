//! The product's admission in virtual time: what `admit::Gate` does around it, with time handed in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvgate::admit::{
    Action, Admission, Arrival, Ask, Kind, Limits, Mode, Rejection, Settings, Signals, length,
};
use kvgate::request::{Count, Mark, Priority, Shape, Tokens, Trail};
use tokio::time::Instant;

use super::engine::Engine;
use super::workload::Request;

/// Bytes of a body for each prompt token.
const BYTES_A_TOKEN: u64 = 4;

/// What becomes of an arrival.
pub enum Word {
    /// It may go.
    Go,
    /// It waits.
    Wait,
    /// It is turned away, and may come back after so many seconds.
    Away(Option<f64>),
}

/// The gateway.
pub struct Gateway {
    admission: Admission,
    settings: Settings,
    limits: Limits,
    epoch: Instant,
    /// What the first in line waited for, tick by tick, and why others were turned away: how often.
    pub reasons: BTreeMap<&'static str, u64>,
}

impl Gateway {
    pub fn new(settings: &Settings, engine: &Engine, epoch: Instant) -> Self {
        let limits = Limits {
            engine: Some(Tokens(engine.settings.max_model_len)),
            configured: settings.length.max_prompt_tokens.map(|n| Tokens(n.get())),
            pool: Some(Tokens(engine.pool())),
            pool_certain: true,
            ..Limits::default()
        };
        let admission = Admission::new(settings, 7);
        Self { admission, settings: settings.clone(), limits, epoch, reasons: BTreeMap::new() }
    }

    fn at(&self, seconds: f64) -> Instant {
        self.epoch + Duration::from_secs_f64(seconds)
    }

    /// What the proxy asks for a request; without targets nothing is said of the first token.
    fn ask(&self, request: &Request, targets: bool) -> Ask {
        let prompt = Tokens(u64::from(request.prompt));
        Ask {
            prompt,
            longest: prompt,
            max_output: request.max_output.map(|n| Tokens(u64::from(n))),
            sequences: 1,
            stream: true,
            body_bytes: u64::from(request.prompt) * BYTES_A_TOKEN,
            max_wait: self.settings.queue.wait(None, None),
            ttft: targets.then(|| Duration::from_secs_f64(request.ttft)),
            tenant: request.tenant,
            priority: if request.batch { Priority::Batch } else { Priority::Interactive },
            trail: request.prefix.map(|prefix| {
                let at = u64::from(prefix.tokens);
                let marks = vec![Mark { hash: prefix.id, at }];
                Arc::new(Trail { marks, whole: u64::from(request.prompt).max(at) })
            }),
        }
    }

    /// A request arrives; also what that frees for those who wait.
    pub fn arrive(&mut self, id: u64, request: &Request, (targets, now): (bool, f64)) -> (Word, Vec<Action>) {
        let count = Count::exact(Tokens(u64::from(request.prompt)));
        if let Err(why) = length::check(&self.limits, &count, &Shape::default()) {
            self.note(rejected(&why));
            return (Word::Away(None), Vec::new());
        }
        let guard = self.admission.guard().filter(|_| self.settings.mode.guard == Mode::Enforce);
        if let Some(why) = guard.and_then(|guard| length::guarded(Tokens(guard), &count).err()) {
            self.note(rejected(&why));
            return (Word::Away(None), Vec::new());
        }
        let ask = self.ask(request, targets);
        // Who waits has been there longer: room that has come up meanwhile is theirs.
        let mut actions = if self.admission.queued() > 0 { self.advance(now) } else { Vec::new() };
        let word = match self.admission.arrive(id, &ask, self.at(now)) {
            Arrival::Admitted => Word::Go,
            Arrival::Queued => {
                // Its tenant may have had less than those before it.
                actions.extend(self.advance(now));
                let goes =
                    |action: &Action| matches!(action, Action::Admit { id: admitted, .. } if *admitted == id);
                let before = actions.len();
                actions.retain(|action| !goes(action));
                if actions.len() < before { Word::Go } else { Word::Wait }
            }
            Arrival::Refused(why) => {
                self.note(rejected(&why));
                Word::Away(why.retry_after().map(|after| after.as_secs_f64()))
            }
        };
        (word, actions)
    }

    /// An answer's token came, its `total`th.
    pub fn token(&mut self, id: u64, total: u32, now: f64) {
        let at = self.at(now);
        if total == 1 {
            self.admission.first_token(id, at);
        }
        self.admission.books.tokens(id, u64::from(total), at);
    }

    /// An answer is complete.
    pub fn done(&mut self, id: u64, request: &Request, now: f64) -> Vec<Action> {
        let cap = request.max_output.map(|n| Tokens(u64::from(n)));
        let kind = Kind { tenant: request.tenant, prompt: u64::from(request.prompt), cap };
        self.admission.completed(Some(id), (kind, 1), Tokens(u64::from(request.output)), self.at(now));
        self.leave(id, now)
    }

    /// A request leaves, wherever it is.
    pub fn leave(&mut self, id: u64, now: f64) -> Vec<Action> {
        if self.admission.leave(id, self.at(now)) { self.advance(now) } else { Vec::new() }
    }

    /// A scrape, or that there was none.
    pub fn signals(&mut self, signals: Signals, now: f64) -> Vec<Action> {
        let taken = signals.fresh.then(|| self.at(now));
        self.admission.signals(Signals { taken, ..signals }, self.at(now));
        self.advance(now)
    }

    /// The engine died.
    pub fn engine_gone(&mut self, retry_after: Option<f64>, now: f64) -> Vec<Action> {
        let at = self.at(now);
        self.admission.engine_gone(retry_after.map(Duration::from_secs_f64), at);
        self.advance(now)
    }

    /// Time passed.
    pub fn tick(&mut self, now: f64) -> Vec<Action> {
        if self.admission.queued() == 0 {
            return Vec::new();
        }
        let actions = self.advance(now);
        if let Some(held_by) = self.admission.held().map(|held| held.by.label()) {
            self.note(held_by);
        }
        actions
    }

    fn advance(&mut self, now: f64) -> Vec<Action> {
        let at = self.at(now);
        let actions = self.admission.advance(at);
        for action in &actions {
            if let Action::Evict { why, .. } = action {
                self.note(rejected(why));
            }
        }
        actions
    }

    fn note(&mut self, reason: &'static str) {
        *self.reasons.entry(reason).or_default() += 1;
    }
}

/// A rejection's kind, finer than the word that clients see.
const fn rejected(why: &Rejection) -> &'static str {
    match why {
        Rejection::QueueFull { .. } => "refused: queue full",
        Rejection::WaitTooLong { .. } => "refused: wait too long",
        Rejection::DeadlinePassed { .. } => "evicted: deadline passed",
        Rejection::EngineUnavailable { .. } => "refused: engine away",
        Rejection::PromptTooLong { .. } | Rejection::PromptExceedsPool { .. } => "refused: prompt too long",
        _ => "refused: other",
    }
}
