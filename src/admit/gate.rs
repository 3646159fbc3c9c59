//! The gate: the state machine behind a lock, with tokio's clock, wakers and permits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use crate::request::Tokens;
use crate::telemetry::{self, Alarm, Event};

use super::admission::{Action, Admission, Arrival, Ask};
use super::mode::{Mode, Modes, Rule};
use super::permit::Permit;
use super::predict::Kind;
use super::rejection::Rejection;
use super::settings::Settings;
use super::signals::Signals;

/// Time between two looks at a queue in which somebody waits.
const TICK: Duration = Duration::from_millis(25);

/// The books at one moment, for the state page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GateState {
    /// Requests in flight.
    pub in_flight: usize,
    /// Sequences in flight.
    pub sequences: u64,
    /// Tokens reserved by them.
    pub reserved_tokens: Tokens,
    /// Tokens of the usable pool, where known.
    pub pool_tokens: Option<Tokens>,
    /// Sequences that the engine runs at once, where learned.
    pub seats: Option<u64>,
    /// Requests queued.
    pub queued: usize,
    /// Bytes of their bodies.
    pub queued_bytes: u64,
    /// What holds the first of them.
    pub held_by: Option<&'static str>,
    /// Sequences that may run since the engine died of too many, until that is over.
    pub cut_to: Option<u64>,
    /// The longest prompt that a death has taught to let through (the rule `guard`), tokens.
    pub guard_tokens: Option<u64>,
    /// Share of what was expected of the engine's prefix cache that came true, 0–1: what is expected is credited so far.
    pub prefix_trust: f64,
    /// Refused clients that are expected back.
    pub expected_back: usize,
    /// Seconds per token of one sequence, where known.
    pub seconds_per_token: Option<f64>,
}

type Word = Result<Duration, Rejection>;

struct State {
    admission: Admission,
    /// Those who wait, by ticket; a request in shadow has a ticket and no waker.
    wakers: HashMap<u64, oneshot::Sender<Word>>,
    /// What would have become of the requests in shadow that are still in flight.
    would: HashMap<u64, Option<&'static str>>,
    tickets: u64,
    /// Whether fewer run since a death by too many, as the alarm says.
    cut: bool,
}

struct Inner {
    state: Mutex<State>,
    modes: Modes,
    queued: Notify,
}

/// The gate. Cheap to clone; all clones are one gate.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("state", &self.state()).finish()
    }
}

impl Gate {
    /// A gate in front of an engine of which nothing is known yet. Obeys `modes` for
    /// [`Rule::Capacity`].
    #[must_use]
    pub fn new(settings: &Settings, modes: Modes) -> Self {
        let seed = fastrand::u64(..);
        let state = State {
            admission: Admission::new(settings, seed),
            wakers: HashMap::new(),
            would: HashMap::new(),
            tickets: 0,
            cut: false,
        };
        Self(Arc::new(Inner { state: Mutex::new(state), modes, queued: Notify::new() }))
    }

    /// Waits until the request may go to the engine. First come, first served.
    ///
    /// Cancel-safe: a future that is dropped gives its place back at once.
    ///
    /// # Errors
    ///
    /// [`Rejection::QueueFull`], [`Rejection::WaitTooLong`], [`Rejection::DeadlinePassed`],
    /// [`Rejection::EngineUnavailable`], [`Rejection::Draining`]. In `shadow` none: the permit knows
    /// what would have been; in `off` none.
    pub async fn admit(&self, ask: Ask) -> Result<Permit, Rejection> {
        let mode = self.0.modes.get(Rule::Capacity);
        if mode == Mode::Off {
            return Ok(Permit::new(self.clone(), None, &ask, Duration::ZERO));
        }
        let now = Instant::now();
        let (id, arrival, waker) = self.arrive(&ask, mode, now);
        let shadow = mode == Mode::Shadow;
        let waker = match (arrival, waker) {
            (Arrival::Refused(why), _) if !shadow => return Err(why),
            (Arrival::Admitted, _) => {
                telemetry::emit(Event::Queued { waited: Duration::ZERO });
                None
            }
            (_, waker) => waker,
        };
        let mut permit = Permit::new(self.clone(), Some(id), &ask, Duration::ZERO);
        permit.shadow = shadow;
        match waker {
            // From here on a drop gives the place back, and the permit if it was given meanwhile.
            Some(waker) => self.wait(permit, waker, now + ask.max_wait).await,
            None => Ok(permit),
        }
    }

    /// One arrival, under the lock.
    fn arrive(&self, ask: &Ask, mode: Mode, now: Instant) -> (u64, Arrival, Option<oneshot::Receiver<Word>>) {
        let mut state = self.lock();
        state.tickets += 1;
        let id = state.tickets;
        let arrival = state.admission.arrive(id, ask, now);
        let mut waker = None;
        match (&arrival, mode) {
            (Arrival::Queued, Mode::Enforce) => {
                let (sender, receiver) = oneshot::channel();
                state.wakers.insert(id, sender);
                waker = Some(receiver);
            }
            (Arrival::Refused(why), Mode::Shadow) => _ = state.would.insert(id, Some(why.reason())),
            (Arrival::Queued, _) => _ = state.would.insert(id, None),
            _ => {}
        }
        let queued = matches!(arrival, Arrival::Queued);
        if queued {
            // Room may have come up meanwhile, and its tenant may have had less than those before it.
            self.advance(&mut state, now);
        }
        self.told(state);
        if queued {
            self.0.queued.notify_one();
        }
        (id, arrival, waker)
    }

    /// In the queue. The deadline is kept even if nobody ticks.
    async fn wait(
        &self,
        mut permit: Permit,
        mut waker: oneshot::Receiver<Word>,
        deadline: Instant,
    ) -> Result<Permit, Rejection> {
        let since = Instant::now();
        let word = match timeout_at(deadline, &mut waker).await {
            Ok(Ok(word)) => word,
            Ok(Err(_)) | Err(_) => self.give_up(permit.id(), &mut waker, since),
        };
        telemetry::emit(Event::Queued { waited: since.elapsed() });
        permit.waited = word?;
        Ok(permit)
    }

    /// The deadline passed in the queue, unless a word was said at the last moment: words are said
    /// under the lock, so none is lost.
    fn give_up(&self, id: Option<u64>, waker: &mut oneshot::Receiver<Word>, since: Instant) -> Word {
        let mut state = self.lock();
        if let Ok(word) = waker.try_recv() {
            return word;
        }
        let id = id.unwrap_or(0);
        state.wakers.remove(&id);
        let now = Instant::now();
        let waited = now.saturating_duration_since(since);
        let word = state.admission.give_up(id, now).map_or(Ok(waited), Err);
        self.told(state);
        word
    }

    /// Takes a scrape in, and lets in whom it makes room for.
    pub fn signals(&self, signals: Signals) {
        let now = Instant::now();
        let mut state = self.lock();
        state.admission.signals(signals, now);
        self.advance(&mut state, now);
        let cut = state.admission.cut(now);
        let changed = std::mem::replace(&mut state.cut, cut.is_some()) != cut.is_some();
        self.told(state);
        if changed {
            let detail = cut.map_or_else(
                || "as many run again as before the death".to_owned(),
                |most| {
                    format!("the engine died full: at most {most} sequences run, more each minute after 15")
                },
            );
            telemetry::emit(Event::Alarm {
                alarm: Alarm::ConcurrencyCut,
                active: cut.is_some(),
                detail: &detail,
            });
        }
    }

    /// A request's answer broke as if the engine had died: nobody goes there until it is known whether it lives.
    pub(super) fn suspect(&self, id: u64) {
        self.lock().admission.suspect(id, Instant::now());
    }

    /// The engine died: all that wait are evicted at once with [`Rejection::EngineUnavailable`], and
    /// the permits of the dead life return nothing. The next [`Signals`] that say ready open again.
    pub fn engine_gone(&self, retry_after: Option<Duration>) {
        let mut state = self.lock();
        let now = Instant::now();
        state.admission.engine_gone(retry_after, now);
        self.advance(&mut state, now);
        self.told(state);
    }

    /// Goes by other settings from now on. Nobody is sent away for it: who waits keeps the place and the deadline.
    pub fn reload(&self, settings: &Settings) {
        let mut state = self.lock();
        state.admission.reload(settings);
        self.advance(&mut state, Instant::now());
        self.told(state);
    }

    /// An earlier run has learned from deaths to let no longer prompt through.
    pub fn recall_guard(&self, tokens: Tokens) {
        self.lock().admission.recall_guard(tokens.get());
    }

    /// Forgets the longest prompt that deaths have taught to let through.
    pub fn forget_guard(&self) {
        self.lock().admission.forget_guard();
    }

    /// Ends the cut that followed a death by too many: as many may run again as before. The alarm ends with the next
    /// scrape.
    pub fn forget_cut(&self) {
        let mut state = self.lock();
        state.admission.forget_cut();
        self.advance(&mut state, Instant::now());
        self.told(state);
    }

    /// Admits nobody any more and evicts all that wait; what is in flight ends by itself.
    pub fn drain(&self) {
        let mut state = self.lock();
        state.admission.drain();
        self.advance(&mut state, Instant::now());
        self.told(state);
    }

    /// Looks at the queue: lets in whom time has made room for, evicts who is too late.
    pub fn tick(&self) {
        let mut state = self.lock();
        if state.admission.queued() > 0 {
            self.advance(&mut state, Instant::now());
            self.told(state);
        }
    }

    /// Ticks while somebody waits, for ever; `gateway.rs` runs it. Cancel-safe.
    pub async fn run(self) {
        loop {
            while self.lock().admission.queued() > 0 {
                sleep(TICK).await;
                self.tick();
            }
            self.0.queued.notified().await;
        }
    }

    /// The longest prompt that a death of the engine has taught to let through.
    #[must_use]
    pub fn guard(&self) -> Option<Tokens> {
        self.lock().admission.guard().map(Tokens)
    }

    /// The books now.
    #[must_use]
    pub fn state(&self) -> GateState {
        let state = self.lock();
        let admission = &state.admission;
        GateState {
            in_flight: admission.books.len(),
            sequences: admission.books.sequences(),
            reserved_tokens: admission.books.reserved(),
            pool_tokens: admission.books.pool(),
            seats: admission.books.seats(),
            queued: admission.queued(),
            queued_bytes: admission.queued_bytes(),
            held_by: admission.held().map(|held| held.by.label()),
            cut_to: admission.cut(Instant::now()),
            guard_tokens: admission.guard(),
            prefix_trust: admission.books.prefixes.trust(),
            expected_back: admission.expected_back(),
            seconds_per_token: admission.books.pace.step(Instant::now()),
        }
    }

    pub(super) fn first_token(&self, id: u64) {
        self.lock().admission.first_token(id, Instant::now());
    }

    pub(super) fn tokens(&self, id: u64, total: Tokens) {
        self.lock().admission.books.tokens(id, total.get(), Instant::now());
    }

    pub(super) fn corrected(&self, id: u64, total: Tokens) {
        self.lock().admission.books.corrected(id, total.get(), Instant::now());
    }

    pub(super) fn completed(&self, id: Option<u64>, shape: (Kind, u64), output: Tokens) {
        self.lock().admission.completed(id, shape, output, Instant::now());
    }

    pub(super) fn would_refuse(&self, id: u64) -> Option<&'static str> {
        self.lock().would.get(&id).copied().flatten()
    }

    /// Tokens that would be reserved for a request now.
    pub(super) fn reserves(&self, ask: &Ask) -> Tokens {
        self.lock().admission.candidate(0, ask).reserved()
    }

    /// A permit ends, wherever its request stands.
    pub(super) fn leave(&self, id: u64) {
        let now = Instant::now();
        let mut state = self.lock();
        state.wakers.remove(&id);
        state.would.remove(&id);
        if state.admission.leave(id, now) {
            self.advance(&mut state, now);
            self.told(state);
        }
    }

    /// Advances the state machine and wakes those it names.
    fn advance(&self, state: &mut State, now: Instant) {
        let actions = match self.0.modes.get(Rule::Capacity) {
            Mode::Off => state.admission.release(now),
            Mode::Shadow | Mode::Enforce => state.admission.advance(now),
        };
        if self.0.modes.get(Rule::Capacity) == Mode::Shadow {
            // Switched to shadow while they waited: they go, and stay in the queue as all others do.
            for (id, waker) in state.wakers.drain() {
                state.would.insert(id, None);
                _ = waker.send(Ok(Duration::ZERO));
            }
        }
        for action in actions {
            let (id, word) = match action {
                Action::Admit { id, waited } => (id, Ok(waited)),
                Action::Evict { id, why } => (id, Err(why)),
            };
            match state.wakers.remove(&id) {
                // One that is being dropped right now comes back through its own `leave`.
                Some(waker) => _ = waker.send(word),
                None => {
                    if let (Err(why), Some(would)) = (word, state.would.get_mut(&id)) {
                        *would = Some(why.reason());
                    }
                }
            }
        }
    }

    /// Says the books, after the lock is given back.
    fn told(&self, state: MutexGuard<'_, State>) {
        let books = &state.admission.books;
        let (inflight, reserved, queued) = (books.len(), books.reserved().get(), state.admission.queued());
        drop(state);
        telemetry::emit(Event::Books { inflight, reserved, queued });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
