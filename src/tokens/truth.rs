//! Whether kvgate's counts agree with the engine's own.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::request::{Api, Tokens};
use crate::telemetry::{self, Alarm, Event};

/// Answers in a row that must agree before a drift is forgotten.
const FORGIVEN_AFTER: u64 = 50;

/// What the comparisons of one API came to.
#[derive(Debug, Default)]
struct OfApi {
    compared: AtomicU64,
    /// Largest difference seen, tokens; 0 once forgiven.
    drift: AtomicU64,
    agreed_since: AtomicU64,
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
            if of.drift.fetch_max(by, Ordering::Relaxed) == 0 {
                let detail = "kvgate counts prompts differently from the engine: check --tokenizer and --chat-template";
                telemetry::emit(Event::Alarm { alarm: Alarm::CountDrift, active: true, detail });
            }
        } else if of.drift.load(Ordering::Relaxed) > 0
            && of.agreed_since.fetch_add(1, Ordering::Relaxed) + 1 >= FORGIVEN_AFTER
        {
            of.drift.store(0, Ordering::Relaxed);
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

    /// Comparisons made and the drift in force, tokens.
    #[must_use]
    pub fn summary(&self) -> [(&'static str, u64, u64); 2] {
        let of = |o: &OfApi| (o.compared.load(Ordering::Relaxed), o.drift.load(Ordering::Relaxed));
        let ((a, b), (c, d)) = (of(&self.completions), of(&self.chat));
        [(Api::Completions.label(), a, b), (Api::Chat.label(), c, d)]
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
    }
}
