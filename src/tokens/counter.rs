//! Counting, off the I/O threads and bounded.
//!
//! Prompts go to one of two lanes, so that one of 512 KB does not delay one of 1 KB; see [`Lane`]. The
//! time that is spent on each tenant's prompts is limited: see [`Allowance`].

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::allowance::Allowance;
use super::ask::{self, Ask, count_bodies_for_tokenize};
use super::density::Density;
use super::lane::Lane;
use super::source::{SourceInfo, Sources};
use super::{CountError, Encoder, Settings, Truth};
use crate::request::{Api, Certainty, Count, Prompt, PromptItem, Reading, Tokens};
use crate::telemetry::{Event, emit};

/// Bounds that are looked for at once, and how long a prompt may wait for its turn.
const BOUNDS_AT_ONCE: usize = 2;
const BOUND_WAIT: Duration = Duration::from_millis(250);

/// Counts prompts with whatever source there is. Cheap to clone; all clones share lanes and source.
#[derive(Clone)]
pub struct Counter {
    shared: Arc<Shared>,
}

struct Shared {
    inline_bytes: usize,
    long_bytes: usize,
    ask_time: Duration,
    short: Lane,
    long: Lane,
    allowance: Mutex<Allowance>,
    check_one_in: u32,
    counted: AtomicU32,
    asking: Semaphore,
    bounding: Arc<Semaphore>,
    density: Mutex<Density>,
    sources: RwLock<Sources>,
    truth: Arc<Truth>,
}

impl Shared {
    fn sources(&self) -> Sources {
        self.sources.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Sources)) {
        change(&mut self.sources.write().unwrap_or_else(PoisonError::into_inner));
        self.say();
    }

    /// Says what counts now.
    fn say(&self) {
        let library = self.sources().info().label();
        emit(Event::CountsWith { library, all: &SourceInfo::LABELS });
    }
}

impl Counter {
    /// A counter without a source: every text is [`Certainty::Unknown`] until it is given one.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let or = |given: usize, default: usize| if given == 0 { default.min(4) } else { given }.clamp(1, 256);
        let (workers, long_workers) = (or(settings.workers, cores), or(settings.long_workers, cores / 2));
        let counter = Self {
            shared: Arc::new(Shared {
                inline_bytes: settings.inline_bytes.min(65_536),
                long_bytes: settings.long_bytes,
                ask_time: Duration::from_secs(settings.ask_seconds.clamp(1, 60)),
                short: Lane::new("count", workers, settings.queue),
                long: Lane::new("count-long", long_workers, settings.queue),
                allowance: Mutex::new(Allowance::new(settings.tenant_share, workers + long_workers)),
                check_one_in: settings.check_one_in,
                counted: AtomicU32::new(0),
                asking: Semaphore::new(settings.ask_concurrency.clamp(1, 64)),
                bounding: Arc::new(Semaphore::new(BOUNDS_AT_ONCE)),
                density: Mutex::default(),
                sources: RwLock::default(),
                truth: Arc::default(),
            }),
        };
        counter.shared.say();
        counter
    }

    /// The comparisons with the engine's own counts, which decide whether it is asked instead.
    #[must_use]
    pub fn truth(&self) -> Arc<Truth> {
        Arc::clone(&self.shared.truth)
    }

    /// Counts with this encoder from now on; `said_by` tells the operator where it came from.
    pub fn use_encoder(&self, encoder: Arc<Encoder>, said_by: String) {
        self.shared.truth.begin_anew();
        self.shared.change(|sources| sources.encoder = Some((encoder, said_by)));
    }

    /// Asks the engine from now on wherever there is no encoder, or one without a chat template, where the engine
    /// renders chats otherwise than by one, and where our counts keep differing.
    pub fn use_engine(&self, ask: Ask) {
        self.shared.change(|sources| sources.engine = Some(ask));
    }

    /// Forgets every source: each text is [`Certainty::Unknown`] until one is given anew.
    pub fn use_nothing(&self) {
        self.shared.change(|sources| *sources = Sources::default());
    }

    /// The source in force.
    #[must_use]
    pub fn source(&self) -> SourceInfo {
        self.shared.sources().info()
    }

    /// Counts a request's prompts; see [`Encoder::count`] for `limit`. `tenant` names whose they are. An
    /// engine that does not answer makes the count [`Certainty::Unknown`], never an error. Cancel-safe:
    /// dropped before its turn it is never counted; dropped while counting, the count runs to its end unheard.
    ///
    /// # Errors
    /// [`CountError`]; [`CountError::Busy`] where the lane has no place, [`CountError::Share`] where the
    /// tenant has used up its share of the counting time.
    pub async fn count(
        &self,
        reading: &Arc<Reading>,
        limit: Option<Tokens>,
        tenant: &str,
    ) -> Result<Count, CountError> {
        let started = Instant::now();
        let count = self.with_source(reading, limit, tenant).await?;
        if count.certain != Certainty::Unknown {
            emit(Event::Counted { prompt_tokens: count.total.get(), took: started.elapsed() });
        }
        Ok(count)
    }

    async fn with_source(
        &self,
        reading: &Arc<Reading>,
        limit: Option<Tokens>,
        tenant: &str,
    ) -> Result<Count, CountError> {
        if matches!(reading.prompt, Prompt::Unread { .. }) {
            return Ok(Count::UNKNOWN);
        }
        if only_ids(&reading.prompt) {
            return Ok(ask::put_together(reading, &[]));
        }
        let sources = self.sources();
        let api = api(&reading.prompt);
        let elsewhere = sources.encoder.as_ref().is_some_and(|(encoder, _)| encoder.renderer().is_some());
        let theirs = self.shared.truth.asks_engine(api) || (elsewhere && api == Api::Chat);
        if let Some(ask) = sources.engine.as_ref().filter(|_| theirs) {
            let count = self.asked(ask, reading).await;
            if count.certain != Certainty::Unknown {
                return Ok(count);
            }
        }
        let counted = match sources.encoder {
            Some((encoder, _)) => self.encode(encoder, reading, limit, tenant).await,
            None => Ok(Count::UNKNOWN),
        };
        match (counted, sources.engine) {
            (
                Ok(Count { certain: Certainty::Unknown, .. }) | Err(CountError::NoTemplate { .. }),
                Some(ask),
            ) => Ok(self.asked(&ask, reading).await),
            (Err(CountError::NoTemplate { .. }), None) => Ok(Count::UNKNOWN),
            (counted, _) => counted,
        }
    }

    async fn encode(
        &self,
        encoder: Arc<Encoder>,
        reading: &Arc<Reading>,
        limit: Option<Tokens>,
        tenant: &str,
    ) -> Result<Count, CountError> {
        let bytes = weight(&reading.prompt);
        // A template of the request's own may take all the steps there are.
        let own = matches!(&reading.prompt, Prompt::Chat(chat) if chat.chat_template.is_some());
        let now = SystemTime::now();
        if bytes <= self.shared.inline_bytes && !own {
            return encoder.count(reading, now, limit);
        }
        let tenant = number(tenant);
        if let Some(retry_after) = self.allowance().wait(tenant, Instant::now()) {
            return Err(CountError::Share { retry_after });
        }
        let long = bytes >= self.shared.long_bytes || own;
        let lane = if long { &self.shared.long } else { &self.shared.short };
        let (theirs, counting) = (Arc::clone(reading), Arc::clone(&encoder));
        let (count, spent) = lane
            .run(tenant, move || {
                let started = Instant::now();
                (counting.count(&theirs, now, limit), started.elapsed())
            })
            .await?;
        self.allowance().spent(tenant, spent, Instant::now());
        if let Ok(count) = &count {
            if count.certain == Certainty::Exact {
                self.density().learn(bytes, count.total);
            }
            self.check(encoder, reading, now, *count);
        }
        count
    }

    /// How many tokens a request's prompts have at most, for where they could not be counted; `None` where that is
    /// not known either. What it costs is counted to the tenant. Cancel-safe.
    pub async fn bound(&self, reading: &Arc<Reading>, tenant: &str) -> Option<Count> {
        let (encoder, _) = self.sources().encoder?;
        let api = api(&reading.prompt);
        // What is known to render or to count otherwise than the engine bounds nothing.
        if self.shared.truth.asks_engine(api) || (encoder.renderer().is_some() && api == Api::Chat) {
            return None;
        }
        let turn = Arc::clone(&self.shared.bounding).acquire_owned();
        let turn = timeout(BOUND_WAIT, turn).await.ok()?.ok()?;
        let (reading, density) = (Arc::clone(reading), *self.density());
        let work = move || {
            let _turn = turn;
            let started = Instant::now();
            (encoder.bound(&reading, SystemTime::now(), density), started.elapsed())
        };
        let (bound, spent) = tokio::task::spawn_blocking(work).await.ok()?;
        self.allowance().spent(number(tenant), spent, Instant::now());
        bound
    }

    /// About how many tokens a prompt has, by what the bytes of others came to lately; `None` where nobody read it.
    #[must_use]
    pub fn guess(&self, prompt: &Prompt) -> Option<Tokens> {
        if matches!(prompt, Prompt::Unread { .. }) {
            return None;
        }
        Some(self.density().tokens(weight(prompt)))
    }

    fn density(&self) -> std::sync::MutexGuard<'_, Density> {
        self.shared.density.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allowance(&self) -> std::sync::MutexGuard<'_, Allowance> {
        self.shared.allowance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Now and then counts a prompt once more, by the reference, after the request has gone on.
    fn check(&self, encoder: Arc<Encoder>, reading: &Arc<Reading>, now: SystemTime, count: Count) {
        let one_in = self.shared.check_one_in;
        let turn = || self.shared.counted.fetch_add(1, Ordering::Relaxed) % one_in.max(1) == one_in / 2;
        if one_in == 0 || count.certain != Certainty::Exact || !encoder.is_fast() || !turn() {
            return;
        }
        let (shared, reading) = (Arc::clone(&self.shared), Arc::clone(reading));
        // One in so many, and the lane's places bound them.
        tokio::spawn(async move {
            if shared.long.run(0, move || encoder.check(&reading, now, count)).await == Ok(false) {
                shared.say();
            }
        });
    }

    /// The engine's count, or unknown.
    async fn asked(&self, ask: &Ask, reading: &Reading) -> Count {
        let bodies = count_bodies_for_tokenize(reading);
        if bodies.len() > ask::TEXTS {
            return Count::UNKNOWN;
        }
        let all = async {
            let mut answers = Vec::with_capacity(bodies.len());
            for body in bodies {
                let _turn = self.shared.asking.acquire().await.ok()?;
                answers.push(ask(body).await.ok()?);
            }
            Some(answers)
        };
        let Ok(Some(answers)) = timeout(self.shared.ask_time, all).await else { return Count::UNKNOWN };
        let count = ask::put_together(reading, &answers);
        if reading.shape.images > 0 && count.certain == Certainty::Exact {
            return Count { certain: Certainty::AtLeast, ..count };
        }
        count
    }

    fn sources(&self) -> Sources {
        self.shared.sources()
    }
}

const fn api(prompt: &Prompt) -> Api {
    if matches!(prompt, Prompt::Chat(_)) { Api::Chat } else { Api::Completions }
}

/// A tenant's number: 0 is nobody's.
fn number(tenant: &str) -> u64 {
    use std::hash::Hasher as _;
    let mut hasher = siphasher::sip::SipHasher13::new();
    hasher.write(tenant.as_bytes());
    hasher.finish().max(1)
}

/// Whether a prompt is ids only: counted by anyone.
fn only_ids(prompt: &Prompt) -> bool {
    matches!(prompt, Prompt::Items { items, .. } if items.iter().all(|item| matches!(item, PromptItem::Ids { .. })))
}

/// About how many bytes of text there are to render and tokenize.
fn weight(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Unread { .. } => 0,
        Prompt::Items { items, .. } => items
            .iter()
            .map(|item| match item {
                PromptItem::Text(text) => text.len() + 16,
                PromptItem::Ids { .. } => 0,
            })
            .sum(),
        Prompt::Chat(chat) => {
            let lists = [Some(&chat.messages), chat.tools.as_ref(), chat.documents.as_ref()];
            let values = lists.into_iter().flatten().flatten().chain(chat.template_kwargs.values());
            values.map(value_weight).sum()
        }
    }
}

fn value_weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 4,
        Value::Array(items) => items.iter().map(value_weight).sum::<usize>() + 4,
        Value::Object(map) => {
            let weight = |(key, value): (&String, &Value)| {
                // Of an image only the head is read.
                let image = key == "image_url" && map.contains_key("type");
                key.len() + 4 + if image { 4096.min(value_weight(value)) } else { value_weight(value) }
            };
            map.iter().map(weight).sum::<usize>() + 4
        }
        _ => 8,
    }
}

#[cfg(test)]
mod tests;
