//! The engine core of one life: requests in, steps in real time, output out.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::batch::{Batch, SeqId, Share};
use super::crash_log::{self, Dump, DumpShare};
use super::fault::Death;
use super::outbox::{Delta, Finish, Outbox};
use super::record::Record;
use super::refusal::Refusal;
use super::scheduler::Scheduler;
use super::shared::{Shared, Tally, lock};

/// One sequence to be produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Output tokens it will have.
    pub target: u32,
    /// Why it will end.
    pub finish: Finish,
}

/// A request as the core takes it.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// The id in answers, with its prefix.
    pub id: String,
    /// The id as the client gave it.
    pub given: String,
    /// Whether it is a chat; the ids in a dump differ.
    pub chat: bool,
    /// Sequences for each prompt.
    pub n: u32,
    /// The sequences, prompt by prompt.
    pub sequences: Vec<Wanted>,
}

struct Owner {
    index: u32,
    wanted: Wanted,
    dump_id: String,
    outbox: Arc<Outbox>,
    arrived: Instant,
    last_token: Option<Instant>,
    generated: u32,
}

struct State {
    scheduler: Scheduler,
    owners: HashMap<SeqId, Owner>,
    /// Ids of the requests in flight, by number; the lowest is the oldest.
    requests: BTreeMap<u64, (String, Arc<Outbox>)>,
    next_request: u64,
    record: Record,
}

/// One life of the engine core.
pub(super) struct Core {
    shared: Arc<Shared>,
    started: f64,
    state: Mutex<State>,
    wake: Notify,
    died: watch::Sender<Option<Death>>,
}

enum Plan {
    /// Nothing to do until something changes.
    Wait,
    /// Something was preempted and nothing scheduled: plan again.
    Again,
    Step(Batch, Duration),
    Fatal(Box<Dump>),
}

impl Core {
    /// A core without work.
    pub fn new(shared: Arc<Shared>) -> Self {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let state = State {
            scheduler: Scheduler::new(shared.settings.limits()),
            owners: HashMap::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            record: Record::default(),
        };
        Self {
            shared,
            started: started.as_secs_f64(),
            state: Mutex::new(state),
            wake: Notify::new(),
            died: watch::Sender::new(None),
        }
    }

    /// What all lives share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Unix time at which this life began (`process_start_time_seconds`).
    pub fn started(&self) -> f64 {
        self.started
    }

    /// Takes a request.
    ///
    /// # Errors
    /// Where the core is dead or its queue limit is reached.
    pub fn submit(self: &Arc<Self>, order: Order) -> Result<Live, Refusal> {
        if self.is_dead() {
            return Err(Refusal::Dead);
        }
        let limit = self.shared.switches().max_num_queued_reqs.or(self.shared.settings.max_num_queued_reqs);
        let outbox = Arc::new(Outbox::default());
        let live = {
            let mut state = lock(&self.state);
            let queued = (state.scheduler.running() + state.scheduler.waiting()) as u64;
            if limit.is_some_and(|limit| queued + order.sequences.len() as u64 > limit) {
                state.record.rejections += 1;
                return Err(Refusal::Busy);
            }
            state.admit(&order, &outbox)
        };
        self.shared.tally(Tally::Seen(order.given));
        self.nudge();
        if self.is_dead() {
            outbox.kill();
        }
        let (request, sequences) = live;
        Ok(Live { core: self.clone(), outbox, request, sequences, finished: false })
    }

    /// Makes steps until the core dies. Cancel-safe: cancelling it is the death of the process.
    pub async fn run(self: Arc<Self>) {
        // When the step before was due: steps follow each other at their own pace, however coarse the timer is. One that
        // is late catches up by half of the next at most, so that each is waited for and its tokens are seen.
        let mut due = None;
        while !self.is_dead() {
            match self.plan() {
                Plan::Wait => {
                    due = None;
                    self.wake.notified().await;
                }
                Plan::Again => {}
                Plan::Step(batch, time) => {
                    let now = Instant::now();
                    let begins =
                        due.map_or(now, |due: Instant| due.max(now.checked_sub(time / 2).unwrap_or(now)));
                    due = Some(begins + time);
                    tokio::time::sleep_until(begins + time).await;
                    self.complete(&batch);
                }
                Plan::Fatal(dump) => {
                    self.shared.log(&crash_log::out_of_memory(&dump));
                    self.die(Death { hard: false, load_seconds: None });
                }
            }
        }
    }

    fn plan(&self) -> Plan {
        let switches = self.shared.switches();
        if switches.hang {
            return Plan::Wait;
        }
        let mut state = lock(&self.state);
        let batch = state.scheduler.plan();
        if !batch.preempted.is_empty() {
            self.shared.tally(Tally::Preempted(batch.preempted.len() as u64));
        }
        if batch.shares.is_empty() {
            state.publish();
            return if batch.preempted.is_empty() { Plan::Wait } else { Plan::Again };
        }
        let kills = |seq| {
            let prompt = state.owners.get(&seq).map_or(0, |o| u64::from(o.wanted.prompt));
            switches.oom_prompt_tokens.is_some_and(|n| prompt >= n)
        };
        if state.scheduler.deadly(&batch) || batch.shares.iter().any(|s| s.new && kills(s.seq)) {
            return Plan::Fatal(Box::new(self.dump(&state, &batch)));
        }
        let time = self.shared.settings.step_time(&batch);
        Plan::Step(batch, time)
    }

    fn complete(&self, batch: &Batch) {
        if self.is_dead() {
            return;
        }
        lock(&self.state).complete(batch, Instant::now());
        self.shared.say_changed();
    }

    fn dump(&self, state: &State, batch: &Batch) -> Dump {
        let share = |s: &Share| {
            let owner = state.owners.get(&s.seq)?;
            Some(DumpShare {
                id: owner.dump_id.clone(),
                prompt: owner.wanted.prompt,
                computed: s.computed,
                generated: owner.generated,
                scheduled: s.tokens,
                new: s.new,
                max_tokens: owner.wanted.target,
            })
        };
        Dump {
            model: self.shared.settings.model.clone(),
            max_model_len: self.shared.settings.max_model_len,
            shares: batch.shares.iter().filter_map(share).collect(),
            running: state.scheduler.running(),
            waiting: state.scheduler.waiting(),
            kv_usage: state.scheduler.usage(),
        }
    }

    /// Ends this life: every request in flight learns of it. Only the first death counts.
    pub fn die(&self, death: Death) {
        let first = self.died.send_if_modified(|died| {
            let first = died.is_none();
            died.get_or_insert(death);
            first
        });
        if !first {
            return;
        }
        if !death.hard {
            for (_, outbox) in lock(&self.state).requests.values() {
                outbox.kill();
            }
        }
        self.nudge();
        self.shared.say_changed();
    }

    /// Waits for the death of this life. Cancel-safe.
    pub async fn death(&self) -> Death {
        let mut died = self.died.subscribe();
        let death = died.wait_for(Option::is_some).await.ok().and_then(|d| *d);
        death.unwrap_or(Death { hard: true, load_seconds: None })
    }

    /// Whether this life is over.
    pub fn is_dead(&self) -> bool {
        self.died.borrow().is_some()
    }

    /// Silences the oldest request, or the oldest whose id contains `part`.
    pub fn stall(&self, part: Option<&str>) {
        let state = lock(&self.state);
        let wanted = state.requests.values().find(|(id, _)| part.is_none_or(|p| id.contains(p)));
        if let Some((_, outbox)) = wanted {
            outbox.stall();
        }
    }

    /// Makes the loop look again.
    pub fn nudge(&self) {
        self.wake.notify_one();
    }

    /// Running, waiting and KV-cache usage at this moment.
    pub fn load_now(&self) -> (usize, usize, f64) {
        let state = lock(&self.state);
        (state.scheduler.running(), state.scheduler.waiting(), state.scheduler.usage())
    }

    /// Generation requests whose answers are not over (`/load`).
    pub fn open_requests(&self) -> usize {
        lock(&self.state).requests.len()
    }

    /// What `/metrics` shows.
    pub fn record(&self) -> Record {
        lock(&self.state).record.clone()
    }

    /// Takes a request out; what is left of it is aborted.
    fn close(&self, request: u64, sequences: &[SeqId]) {
        let mut state = lock(&self.state);
        state.requests.remove(&request);
        for seq in sequences {
            state.scheduler.abort(*seq);
            state.owners.remove(seq);
        }
    }
}

impl State {
    fn admit(&mut self, order: &Order, outbox: &Arc<Outbox>) -> (u64, Vec<SeqId>) {
        let request = self.next_request;
        self.next_request += 1;
        let arrived = Instant::now();
        let mut sequences = Vec::with_capacity(order.sequences.len());
        for (index, &wanted) in order.sequences.iter().enumerate() {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let seq = self.scheduler.add(wanted.prompt, wanted.target);
            let owner = Owner {
                index,
                wanted,
                dump_id: dump_id(order, index, seq),
                outbox: outbox.clone(),
                arrived,
                last_token: None,
                generated: 0,
            };
            self.owners.insert(seq, owner);
            sequences.push(seq);
        }
        self.requests.insert(request, (order.id.clone(), outbox.clone()));
        (request, sequences)
    }

    fn complete(&mut self, batch: &Batch, now: Instant) {
        let produced = self.scheduler.complete(batch);
        self.record.step(batch.tokens());
        self.record.preemptions = self.scheduler.preemptions();
        for p in produced {
            let Some(owner) = self.owners.get_mut(&p.seq) else { continue };
            // A preempted sequence computes its output anew, but each token is produced once.
            owner.generated = p.generated;
            match owner.last_token.replace(now) {
                None => self.record.first_token(owner.wanted.prompt, now - owner.arrived),
                Some(last) => self.record.next_token(now - last),
            }
            let finish = p.last.then_some(owner.wanted.finish);
            owner.outbox.push(Delta { index: owner.index, from: p.generated - 1, tokens: 1, finish });
            if let Some(finish) = finish {
                self.record.finished(finish, p.generated, now - owner.arrived);
                self.owners.remove(&p.seq);
            }
        }
        self.publish();
    }

    /// The gauges change only here: they are those of the last step (vLLM 0.32).
    fn publish(&mut self) {
        let gauges = self.scheduler.gauges();
        self.record.running = gauges.running;
        self.record.waiting = gauges.waiting;
        self.record.kv_usage = gauges.kv_usage;
        self.record.preemptions = self.scheduler.preemptions();
    }
}

/// A sequence's id in a crash dump: endpoint, prompt index and a suffix of the engine's own
/// (vLLM 0.32: `cmpl-ID-0-9c531b83`; children of `n` have their number in front).
fn dump_id(order: &Order, index: u32, seq: SeqId) -> String {
    let n = order.n.max(1);
    let suffix = seq.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let id = if order.chat {
        format!("{}-{suffix:08x}", order.id)
    } else {
        format!("{}-{}-{suffix:08x}", order.id, index / n)
    };
    if n > 1 { format!("{}_{id}", index % n) } else { id }
}

/// A request in the engine; dropping it before its end aborts it at once.
pub(super) struct Live {
    core: Arc<Core>,
    /// Where its output comes.
    pub outbox: Arc<Outbox>,
    request: u64,
    sequences: Vec<SeqId>,
    finished: bool,
}

impl Live {
    /// Says that the answer went out to its end.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// A number to derive the text of choice `index` from.
    pub fn seed(&self, index: u32) -> u64 {
        self.sequences.get(index as usize).map_or(0, |s| s.0)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.core.close(self.request, &self.sequences);
        if self.core.is_dead() {
            return;
        }
        self.core.shared.tally(if self.finished { Tally::Served } else { Tally::Aborted });
        self.core.nudge();
    }
}
