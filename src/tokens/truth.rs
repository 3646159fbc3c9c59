//! Whether kvgate's counts agree with the engine's own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

use crate::request::{Api, Tokens};
use crate::telemetry::{self, Alarm, Event};

/// Answers in a row that must agree before a drift is forgotten.
const FORGIVEN_AFTER: u64 = 50;
/// Drifts not yet forgotten from which on the engine itself is asked.
const ASKED_AFTER: u64 = 3;

/// What the comparisons of one API came to.
#[derive(Debug, Default)]
struct OfApi {
    compared: AtomicU64,
    /// Largest difference seen, tokens; 0 once forgiven.
    drift: AtomicU64,
    agreed_since: AtomicU64,
    /// Drifts since it was forgiven; where there are many the engine is asked, until another tokenizer is found.
    drifts: AtomicU64,
    asks_engine: AtomicBool,
}

/// What the comparisons of one API came to, for the state page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The API.
    pub api: &'static str,
    /// Answers compared.
    pub compared: u64,
    /// The drift in force, tokens.
    pub drift_tokens: u64,
    /// Whether the engine is asked for its counts.
    pub asks_engine: bool,
}

/// The comparison of kvgate's counts with `usage.prompt_tokens`, for each API that is counted.
#[derive(Debug, Default)]
pub struct Truth {
    completions: OfApi,
    chat: OfApi,
}

impl Truth {
    fn of(&self, api: Api) -> Option<&OfApi> {
        match api {
            Api::Completions => Some(&self.completions),
            Api::Chat => Some(&self.chat),
            Api::Other => None,
        }
    }

    /// Notes one comparison.
    pub fn compared(&self, api: Api, ours: u64, engine: u64, id: &str) {
        telemetry::emit(Event::Compared { ours, engine, api: api.label(), id });
        let Some(of) = self.of(api) else { return };
        of.compared.fetch_add(1, Ordering::Relaxed);
        let by = ours.abs_diff(engine);
        if by > 0 {
            of.agreed_since.store(0, Ordering::Relaxed);
            if of.drifts.fetch_add(1, Ordering::Relaxed) + 1 >= ASKED_AFTER {
                of.asks_engine.store(true, Ordering::Relaxed);
            }
            if of.drift.fetch_max(by, Ordering::Relaxed) == 0 {
                let detail = "kvgate counts prompts differently from the engine: check --tokenizer and --chat-template";
                telemetry::emit(Event::Alarm { alarm: Alarm::CountDrift, active: true, detail });
            }
        } else if of.drift.load(Ordering::Relaxed) > 0
            && of.agreed_since.fetch_add(1, Ordering::Relaxed) + 1 >= FORGIVEN_AFTER
        {
            of.drift.store(0, Ordering::Relaxed);
            of.drifts.store(0, Ordering::Relaxed);
            telemetry::emit(Event::Alarm {
                alarm: Alarm::CountDrift,
                active: false,
                detail: "counts agree again",
            });
        }
    }

    /// How far over a limit a prompt may be before it is refused: as far as the counts were seen to differ.
    #[must_use]
    pub fn margin(&self, api: Api) -> Tokens {
        Tokens(self.of(api).map_or(0, |of| of.drift.load(Ordering::Relaxed)))
    }

    /// Whether this API's prompts are for the engine to count, where it can: kvgate's counts differed repeatedly.
    #[must_use]
    pub fn asks_engine(&self, api: Api) -> bool {
        self.of(api).is_some_and(|of| of.asks_engine.load(Ordering::Relaxed))
    }

    /// Another tokenizer counts from now on.
    pub fn begin_anew(&self) {
        for of in [&self.completions, &self.chat] {
            of.drift.store(0, Ordering::Relaxed);
            of.drifts.store(0, Ordering::Relaxed);
            of.agreed_since.store(0, Ordering::Relaxed);
            of.asks_engine.store(false, Ordering::Relaxed);
        }
    }

    /// What came of each API's comparisons.
    #[must_use]
    pub fn summary(&self) -> [Summary; 2] {
        [(Api::Completions, &self.completions), (Api::Chat, &self.chat)].map(|(api, of)| Summary {
            api: api.label(),
            compared: of.compared.load(Ordering::Relaxed),
            drift_tokens: of.drift.load(Ordering::Relaxed),
            asks_engine: of.asks_engine.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_widens_the_limit_until_counts_agree_again() {
        let truth = Truth::default();
        assert_eq!(truth.margin(Api::Chat), Tokens(0));
        truth.compared(Api::Chat, 10, 13, "a");
        truth.compared(Api::Chat, 10, 11, "b");
        assert_eq!(truth.margin(Api::Chat), Tokens(3));
        assert_eq!(truth.margin(Api::Completions), Tokens(0));
        for _ in 0..FORGIVEN_AFTER {
            truth.compared(Api::Chat, 10, 10, "c");
        }
        assert_eq!(truth.margin(Api::Chat), Tokens(0));
        assert!(!truth.asks_engine(Api::Chat), "two drifts were forgiven");
    }

    #[test]
    fn repeated_drift_has_the_engine_asked_until_another_tokenizer_is_there() {
        let truth = Truth::default();
        (0..ASKED_AFTER).for_each(|_| truth.compared(Api::Chat, 10, 11, "a"));
        assert!(truth.asks_engine(Api::Chat) && !truth.asks_engine(Api::Completions));
        for _ in 0..=FORGIVEN_AFTER {
            truth.compared(Api::Chat, 11, 11, "b");
        }
        assert!(truth.asks_engine(Api::Chat), "the engine's own counts prove nothing of ours");
        truth.begin_anew();
        assert!(!truth.asks_engine(Api::Chat) && truth.margin(Api::Chat) == Tokens(0));
    }
}
