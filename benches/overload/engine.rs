//! The engine under the traffic, and how much it can do.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use kvgate::sim::{Prefix, Scheduler, Settings};

use super::workload::{Arrivals, Mix, Request, Special, Traffic, Workload, requests};

/// Seconds that it takes to load again after a death.
pub const RELOAD: f64 = 60.0;
/// Prompts whose throughput is measured, of the long mix and of the others.
const BACKLOG: (usize, usize) = (400, 2500);

/// An engine to put under load.
#[derive(Debug, Clone, PartialEq)]
pub struct Engine {
    /// What it is.
    pub settings: Settings,
    /// By how much all of its times are longer than those of its model.
    pub stretch: f64,
}

impl Engine {
    /// The engine of a preset, `h100` and `a100` for short.
    pub fn named(name: &str) -> Option<Self> {
        let name = match name {
            "h100" => "h100-8b",
            "a100" => "a100-40g-8b",
            other => other,
        };
        Settings::preset(name).map(|settings| Self { settings, stretch: 1.0 })
    }

    /// The same with all times `factor` times as long.
    pub fn stretched(self, factor: f64) -> Self {
        Self { settings: self.settings.stretched(factor), stretch: self.stretch * factor }
    }

    /// The same, mortal: by prompts beyond 90,000 tokens, and by 200,000 in prefill at once.
    pub fn mortal(mut self) -> Self {
        self.settings.deadly_context_tokens = Some(90_000);
        self.settings.deadly_prefill_tokens = Some(200_000);
        self
    }

    /// Tokens that its pool can hold.
    pub fn pool(&self) -> u64 {
        let limits = self.settings.limits();
        u64::from(limits.usable_blocks) * u64::from(limits.block_size)
    }

    /// Requests per second that the bare engine serves where all wait from the beginning and nobody
    /// leaves: 1.0 of the loads.
    pub fn throughput(&self, mix: Mix, prefix: u32) -> f64 {
        static KNOWN: LazyLock<Mutex<HashMap<String, f64>>> = LazyLock::new(Mutex::default);
        let key = format!("{} {} {mix:?} {prefix}", self.settings.model, self.stretch);
        if let Some(known) = KNOWN.lock().unwrap().get(&key) {
            return *known;
        }
        let measured = self.measure(mix, prefix);
        KNOWN.lock().unwrap().insert(key, measured);
        measured
    }

    fn measure(&self, mix: Mix, prefix: u32) -> f64 {
        let count = if mix == Mix::Long { BACKLOG.0 } else { BACKLOG.1 };
        let traffic = Traffic {
            workload: Workload { mix, arrivals: Arrivals::Poisson, seconds: 10 },
            rate: count as f64 / 10.0 / self.stretch,
            seed: 11,
            stretch: self.stretch,
            special: Special { prefix, ..Special::default() },
        };
        let settings =
            Settings { deadly_context_tokens: None, deadly_prefill_tokens: None, ..self.settings.clone() };
        let mut scheduler = Scheduler::new(settings.limits());
        for request in requests(&traffic, &settings) {
            add(&mut scheduler, &request);
        }
        let (mut at, mut ends) = (0.0, Vec::new());
        loop {
            let batch = scheduler.plan();
            if batch.shares.is_empty() && batch.preempted.is_empty() {
                break;
            }
            at += settings.step_time(&batch).as_secs_f64();
            ends.extend(scheduler.complete(&batch).iter().filter(|p| p.last).map(|_| at));
        }
        let (from, to) = (ends.len() / 5, ends.len() * 3 / 4);
        (to - from) as f64 / (ends[to] - ends[from])
    }
}

/// Hands a request to the engine.
pub fn add(scheduler: &mut Scheduler, request: &Request) -> kvgate::sim::SeqId {
    let prefix = request.prefix.map(|p| Prefix { tokens: p.tokens.min(request.prompt), ..p });
    scheduler.add_with_prefix(request.prompt, request.output, prefix)
}
