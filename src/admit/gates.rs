//! The gates that a request passes one after another: start and cut, prefill, latency, seats and KV pool.
//!
//! The first look at what died before, the next two at what the request would do to the first tokens and the
//! streams of others (only where there is a target for them: a slow engine is not an overloaded one),
//! the last at what the engine has room for.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::request::Priority;

use super::capacity::{Books, Candidate, Comparison, HeldBy, Outlook, Policy, Verdict, Why};
use super::policy::{self, View};
use super::recovery::Recovery;
use super::settings::Settings;
use super::signals::Signals;

/// Prefill that may wait in the engine, as a share of the target of the first token; and of that, for batch.
const BACKLOG: (f64, f64) = (0.25, 0.25);
/// Prompt tokens that may always wait there.
const LEAST_BACKLOG: f64 = 512.0;
/// A prompt over this multiple of the largest proven one, and over so many tokens, goes alone: if the
/// engine dies of it, it is known which one it was.
const UNPROVEN: (f64, f64) = (1.25, 2048.0);
/// Streams that one may push over their target: at once, and after it has waited for long.
const HARMED: (u64, u64) = (1, 3);
/// Share of the streams that may be over it already; and for batch.
const OVER: (f64, f64) = (0.1, 0.02);
/// Share of what it may wait after which a request is urgent.
const URGENT: f64 = 0.3;
/// What is taken off a time to the first token for what cannot be known: a multiple, and a share.
const MARGIN: (f64, f64) = (1.15, 0.2);
/// A line that has stood so long does not shorten by itself: then only so much of the time may be
/// waited.
const STANDING: (Duration, f64) = (Duration::from_secs(2), 0.5);
/// A request is refused on arrival where so many of its tenant wait and its wait is so many times what it may
/// be.
pub const OWN_QUEUED: usize = 4;
pub const FAR: f64 = 2.0;

/// What the gates look at beside the outlook.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// What is in flight.
    pub books: &'a Books,
    /// The last scrape.
    pub signals: &'a Signals,
    /// What deaths have taught.
    pub recovery: &'a Recovery,
    /// Time to the first token that the request needs.
    pub ttft: Option<Duration>,
    /// Whether it has waited for long.
    pub urgent: bool,
    /// Now.
    pub now: Instant,
}

/// The gates and their limits.
#[derive(Debug, Clone)]
pub struct Gates {
    /// Which rule decides.
    pub policy: Policy,
    comparison: Comparison,
    itl: Option<f64>,
    priorities: HashMap<u64, Priority>,
}

impl Gates {
    /// As configured.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            policy: settings.capacity.policy,
            comparison: settings.capacity.comparison,
            itl: settings.slo.itl_seconds,
            priorities: settings.fairness.priorities(),
        }
    }

    /// The priority of a tenant's request: what is configured, else what it says.
    #[must_use]
    pub fn priority(&self, tenant: u64, said: Priority) -> Priority {
        self.priorities.get(&tenant).copied().unwrap_or(said)
    }

    /// The decision on one request. With nothing in flight it always goes.
    #[must_use]
    pub fn decide(&self, outlook: &Outlook, asked: &Candidate, look: &Look<'_>) -> Verdict {
        if look.books.is_empty() {
            return Verdict::Admit(Why::Alone);
        }
        if self.policy != Policy::Kvgate {
            let held = policy::holds(self.policy, &self.comparison, &view(asked, look));
            let hold = Verdict::Hold { gate: HeldBy::Policy, needed: asked.sequences, free: 0 };
            return if held { hold } else { Verdict::Admit(Why::Policy) };
        }
        let batch = asked.priority == Priority::Batch;
        let modest = u64::from(batch) + u64::from(look.books.shares.holds_far_more(asked.kind.tenant));
        let held = few(asked, look)
            .or_else(|| prefill(asked, look, batch))
            .or_else(|| self.latency(asked, look, batch));
        held.unwrap_or_else(|| outlook.decide(asked, modest))
    }

    /// Whether its prefill would push streams over their target.
    fn latency(&self, asked: &Candidate, look: &Look<'_>, batch: bool) -> Option<Verdict> {
        let target = self.itl?;
        let prefill = &look.books.prefill;
        let stall = (prefill.backlog(look.now), prefill.cost(asked.prompt()));
        let harm = look.books.stalls.harm(look.books.streams(look.now), stall, target);
        let most = if look.urgent { HARMED.1 } else { HARMED.0 };
        let share = if batch { OVER.1 } else { OVER.0 };
        let over = harm.over as f64 > share * look.books.len() as f64;
        (over || harm.harmed >= most).then(|| Verdict::Hold {
            gate: HeldBy::Latency,
            needed: harm.harmed.max(harm.over),
            free: most - 1,
        })
    }

    /// Whether the first token of one that has waited so long will come too late: even if it went now, or
    /// because its line has stood for long. By a rule to compare with, whether it has waited for the share
    /// that it may.
    #[must_use]
    pub fn misses(&self, waited: Duration, stood: Duration, ttft: Duration, engine: f64) -> bool {
        if self.policy != Policy::Kvgate {
            return self.comparison.queue_share.is_some_and(|share| waited > ttft.mul_f64(share));
        }
        hopeless(waited, ttft, engine) || (stood >= STANDING.0 && waited > ttft.mul_f64(STANDING.1))
    }
}

/// Whether a first token would be too late if the request went now, after `waited`, and the engine took
/// `engine` seconds to it.
#[must_use]
pub fn hopeless(waited: Duration, ttft: Duration, engine: f64) -> bool {
    waited.as_secs_f64() + MARGIN.0 * engine > (1.0 - MARGIN.1) * ttft.as_secs_f64()
}

/// Whether a request that has waited so long may not be overtaken any more: `slack` is what it may wait,
/// `own` the seconds of its own prefill.
#[must_use]
pub fn urgent(waited: Duration, slack: Duration, own: f64) -> bool {
    waited.as_secs_f64() > URGENT * (slack.as_secs_f64() - own).max(0.0)
}

/// Whether as many run as may after a death.
fn few(asked: &Candidate, look: &Look<'_>) -> Option<Verdict> {
    let (most, gate) = look.recovery.most(look.now)?;
    let free = most.saturating_sub(look.books.sequences());
    (asked.sequences > free).then_some(Verdict::Hold { gate, needed: asked.sequences, free })
}

/// Whether the engine has enough prefill before it.
fn prefill(asked: &Candidate, look: &Look<'_>, batch: bool) -> Option<Verdict> {
    let ttft = look.ttft?;
    let prefill = &look.books.prefill;
    let (before, fresh) = (prefill.tokens(), asked.prompt().fresh());
    if before <= 0.0 {
        return None;
    }
    let share = BACKLOG.0 * if batch { BACKLOG.1 } else { 1.0 };
    let most = prefill.tokens_in(share * ttft.as_secs_f64()).max(LEAST_BACKLOG);
    let alone = asked.kind.prompt as f64 > UNPROVEN.0 * (prefill.proven() as f64).max(UNPROVEN.1);
    let free = (most - before).max(0.0) as u64;
    let hold = Verdict::Hold { gate: HeldBy::Prefill, needed: fresh as u64, free };
    (alone || before + fresh > most).then_some(hold)
}

fn view(asked: &Candidate, look: &Look<'_>) -> View {
    View {
        in_flight: look.books.len(),
        prefill: look.books.prefill.tokens(),
        prompt: asked.kind.prompt,
        kv_usage: look.signals.kv_usage,
        waiting: look.signals.waiting,
        fresh: look.signals.fresh,
    }
}
