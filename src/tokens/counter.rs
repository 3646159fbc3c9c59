//! Counting, off the I/O threads and bounded.
//!
//! A short prompt is counted where it is asked for. Others go to one of two lanes of blocking
//! threads, so that a prompt of 512 KB does not delay one of 3 KB. Each lane runs a fixed number at
//! once and lets a bounded number wait; one that stops waiting is never started.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::ask::{self, Ask, count_bodies_for_tokenize};
use super::{Certainty, Count, CountError, Encoder, Settings};
use crate::request::{Prompt, PromptItem, Reading, Tokens};
use crate::telemetry::{Event, emit};

/// Counts prompts with whatever source there is. Cheap to clone; all clones share lanes and source.
#[derive(Clone)]
pub struct Counter {
    shared: Arc<Shared>,
}

/// Where counts come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceInfo {
    /// `tokenizer`, `engine` (asked each time) or `none`.
    pub kind: &'static str,
    /// What named it: a path, a setting.
    pub said_by: Option<String>,
}

struct Shared {
    inline_bytes: usize,
    long_bytes: usize,
    ask_time: Duration,
    short: Lane,
    long: Lane,
    asking: Semaphore,
    sources: RwLock<Sources>,
}

#[derive(Clone, Default)]
struct Sources {
    encoder: Option<(Arc<Encoder>, String)>,
    engine: Option<Ask>,
}

impl Counter {
    /// A counter without a source: every text is [`Certainty::Unknown`] until it is given one.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let or = |given: usize, default: usize| if given == 0 { default } else { given }.clamp(1, 256);
        Self {
            shared: Arc::new(Shared {
                inline_bytes: settings.inline_bytes.min(65_536),
                long_bytes: settings.long_bytes,
                ask_time: Duration::from_secs(settings.ask_seconds.clamp(1, 60)),
                short: Lane::new(or(settings.workers, cores), settings.queue),
                long: Lane::new(or(settings.long_workers, cores / 2), settings.queue),
                asking: Semaphore::new(settings.ask_concurrency.clamp(1, 64)),
                sources: RwLock::default(),
            }),
        }
    }

    /// Counts with this encoder from now on; `said_by` tells the operator where it came from.
    pub fn use_encoder(&self, encoder: Arc<Encoder>, said_by: String) {
        self.shared.sources.write().unwrap_or_else(PoisonError::into_inner).encoder =
            Some((encoder, said_by));
    }

    /// Asks the engine from now on wherever there is no encoder, or one without a chat template.
    pub fn use_engine(&self, ask: Ask) {
        self.shared.sources.write().unwrap_or_else(PoisonError::into_inner).engine = Some(ask);
    }

    /// Forgets every source: each text is [`Certainty::Unknown`] until one is given anew.
    pub fn use_nothing(&self) {
        *self.shared.sources.write().unwrap_or_else(PoisonError::into_inner) = Sources::default();
    }

    /// The source in force.
    #[must_use]
    pub fn source(&self) -> SourceInfo {
        let sources = self.sources();
        match (sources.encoder, sources.engine) {
            (Some((_, said_by)), _) => SourceInfo { kind: "tokenizer", said_by: Some(said_by) },
            (None, Some(_)) => SourceInfo { kind: "engine", said_by: Some("/tokenize".to_owned()) },
            (None, None) => SourceInfo { kind: "none", said_by: None },
        }
    }

    /// Counts a request's prompts; see [`Encoder::count`] for `limit`. An engine that does not answer
    /// makes the count [`Certainty::Unknown`], never an error. Cancel-safe: dropped while waiting it
    /// frees its place; dropped while counting, the count runs to its end unheard.
    ///
    /// # Errors
    /// [`CountError`]; [`CountError::Busy`] where the lane's queue is full.
    pub async fn count(&self, reading: &Reading, limit: Option<Tokens>) -> Result<Count, CountError> {
        let started = Instant::now();
        let count = self.with_source(reading, limit).await?;
        if count.certain != Certainty::Unknown {
            emit(Event::Counted { prompt_tokens: count.total.get(), took: started.elapsed() });
        }
        Ok(count)
    }

    async fn with_source(&self, reading: &Reading, limit: Option<Tokens>) -> Result<Count, CountError> {
        if matches!(reading.prompt, Prompt::Unread { .. }) {
            return Ok(Count::UNKNOWN);
        }
        if only_ids(&reading.prompt) {
            return Ok(ask::put_together(reading, &[]));
        }
        let sources = self.sources();
        let counted = match sources.encoder {
            Some((encoder, _)) => self.encode(encoder, reading, limit).await,
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
        reading: &Reading,
        limit: Option<Tokens>,
    ) -> Result<Count, CountError> {
        let bytes = weight(&reading.prompt);
        // A template of the request's own may take all the steps there are.
        let own = matches!(&reading.prompt, Prompt::Chat(chat) if chat.chat_template.is_some());
        if bytes <= self.shared.inline_bytes && !own {
            return encoder.count(reading, SystemTime::now(), limit);
        }
        let lane =
            if bytes >= self.shared.long_bytes || own { &self.shared.long } else { &self.shared.short };
        let reading = reading.clone();
        lane.run(move || encoder.count(&reading, SystemTime::now(), limit)).await?
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
        self.shared.sources.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
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
            map.iter().map(|(key, value)| key.len() + 4 + value_weight(value)).sum::<usize>() + 4
        }
        _ => 8,
    }
}

/// A number of blocking threads at once, and a bounded queue before them.
struct Lane {
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
    limit: usize,
}

/// A place in a lane's queue.
struct Place<'l>(&'l AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lane {
    fn new(workers: usize, limit: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(workers)), waiting: AtomicUsize::new(0), limit: limit.max(1) }
    }

    /// Runs `work` on a blocking thread, in its turn. Its turn lasts until the work is done, even where
    /// nobody waits for it any more: so that no more than the lane's number ever run.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CountError> {
        let turn = match Arc::clone(&self.turns).try_acquire_owned() {
            Ok(turn) => turn,
            Err(_) => {
                let _place = self.place()?;
                Arc::clone(&self.turns).acquire_owned().await.map_err(|_| CountError::Stopped)?
            }
        };
        let task = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        task.await.map_err(|_| CountError::Stopped)
    }

    fn place(&self) -> Result<Place<'_>, CountError> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = Place(&self.waiting);
        if waiting >= self.limit {
            return Err(CountError::Busy { waiting, limit: self.limit });
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests;
