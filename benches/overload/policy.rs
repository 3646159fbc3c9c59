//! The rules that are compared, each at one fixed setting.

use kvgate::admit::{CapacitySettings, Comparison, LengthSettings, Mode, Policy, Settings, SloSettings};
use std::num::NonZeroU64;

use super::engine::Engine;

/// Limits of the fixed caps.
pub const CAPS: [u64; 10] = [16, 24, 32, 48, 64, 100, 128, 192, 256, 384];
/// Mean seconds between two tokens of an answer that is worth something, to those who wait.
pub const ITL: f64 = 0.1;
/// Share of the time to the first token that a request may queue under a rule that was given that limit.
const QUEUE_SHARE: f64 = 0.5;

/// A rule with its setting, and what it sees of the engine.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its name in the tables.
    pub name: String,
    /// The settings; `None`: there is no gateway.
    pub settings: Option<Settings>,
    /// Seconds between two scrapes.
    pub scrape: f64,
    /// What the scrapes say.
    pub sight: Sight,
}

/// What is seen of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sight {
    /// All.
    #[default]
    All,
    /// All but the size of the pool.
    NoPool,
    /// Only that it lives, and the size of its pool.
    NoMetrics,
    /// Only that it lives.
    Nothing,
}

impl Rule {
    /// The engine alone.
    pub fn none() -> Self {
        Self { name: "none".to_owned(), settings: None, scrape: 0.1, sight: Sight::All }
    }

    /// The product: defaults, and the target of the time between tokens.
    pub fn kvgate(engine: &Engine) -> Self {
        let slo = SloSettings { itl_seconds: Some(ITL * engine.stretch), ..SloSettings::default() };
        let settings = Settings { slo, ..Settings::default() };
        Self { name: "kvgate".to_owned(), settings: Some(settings), scrape: 0.1, sight: Sight::All }
    }

    fn comparison(name: String, policy: Policy, comparison: Comparison, scrape: f64) -> Self {
        let capacity = CapacitySettings { policy, comparison, ..CapacitySettings::default() };
        let settings = Settings { capacity, ..Settings::default() };
        Self { name, settings: Some(settings), scrape, sight: Sight::All }
    }

    /// At most so many in flight.
    pub fn cap(inflight: u64) -> Self {
        let comparison = Comparison { inflight, queue_share: Some(QUEUE_SHARE), ..Comparison::default() };
        Self::comparison(format!("cap {inflight} +ttl"), Policy::Cap, comparison, 0.1)
    }

    /// While the KV usage is under 0.9, scraped twice a second.
    pub fn kv_threshold(ttl: bool) -> Self {
        let comparison =
            Comparison { kv_usage: 0.9, queue_share: ttl.then_some(QUEUE_SHARE), ..Comparison::default() };
        Self::comparison(format!("kv<0.9{}", with(ttl)), Policy::KvThreshold, comparison, 0.5)
    }

    /// The inference gateway's detector: 5 waiting, KV usage 0.8, scraped every 50 ms.
    pub fn kv_and_queue(ttl: bool) -> Self {
        let comparison = Comparison {
            kv_usage: 0.8,
            waiting: 5.0,
            queue_share: ttl.then_some(QUEUE_SHARE),
            ..Comparison::default()
        };
        Self::comparison(format!("kv+queue{}", with(ttl)), Policy::KvAndQueue, comparison, 0.05)
    }

    /// vLLM's own cap: so many seconds of prompt tokens in prefill.
    pub fn prefill_cap(engine: &Engine, seconds: f64) -> Self {
        let token = engine.settings.token_us * 1e-6 / engine.stretch;
        let prefill_tokens = (seconds / token) as u64;
        let comparison = Comparison { prefill_tokens, ..Comparison::default() };
        Self::comparison(format!("prefill {seconds} s"), Policy::PrefillCap, comparison, 0.1)
    }

    /// All rules to compare with at one fixed setting, except the caps.
    pub fn others(engine: &Engine) -> Vec<Self> {
        vec![
            Self::none(),
            Self::kv_threshold(false),
            Self::kv_threshold(true),
            Self::kv_and_queue(false),
            Self::kv_and_queue(true),
            Self::prefill_cap(engine, 2.0),
            Self::prefill_cap(engine, 0.5),
        ]
    }

    /// The same under another name, seeing the engine so.
    pub fn seeing(self, name: &str, scrape: f64, sight: Sight) -> Self {
        Self { name: format!("{} {name}", self.name), scrape, sight, ..self }
    }

    /// The same, refusing prompts over so many tokens.
    pub fn guarded(mut self, tokens: u64) -> Self {
        self.name += " +guard";
        if let Some(settings) = &mut self.settings {
            settings.length =
                LengthSettings { max_prompt_tokens: NonZeroU64::new(tokens), ..LengthSettings::default() };
        }
        self
    }

    /// The same, with the learned guard switched on.
    pub fn learning(mut self) -> Self {
        self.name += " +learned";
        if let Some(settings) = &mut self.settings {
            settings.mode.guard = Mode::Enforce;
        }
        self
    }

    /// The product as it comes, without any target.
    pub fn defaults() -> Self {
        let settings = Some(Settings::default());
        Self { name: "kvgate, no targets".to_owned(), settings, scrape: 0.1, sight: Sight::All }
    }
}

const fn with(ttl: bool) -> &'static str {
    if ttl { " +ttl" } else { "" }
}
