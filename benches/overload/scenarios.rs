//! Traffic, clients, sight and engines that depart from the plain.

use kvgate::sim;

use super::cells::{Cell, Seeds, run};
use super::engine::Engine;
use super::outcome::Manner;
use super::policy::{Rule, Sight};
use super::tables::{COLUMNS, Column, head, line, workload};
use super::workload::{Special, Workload};

/// Tokens that prompts share where they do: 70 % of the mean prompt of a chat.
pub const SHARED: u32 = 2400;
/// Prompts over so many tokens are refused where the guard is configured.
pub const GUARD: u64 = 90_000;
/// Scrapes so many seconds apart are stale.
pub const STALE: f64 = 2.0;

/// Departures from plain traffic, each with a table of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Scrapes are old, or show less, or there are none.
    Stale,
    /// A quarter of the traffic goes to the engine directly.
    Bypass,
    /// Clients come back twice, when they were told to.
    Retry,
    /// One tenant makes 70 % of the traffic.
    Fair,
    /// Half of the traffic is batch work.
    Prio,
    /// One prompt in a thousand is so long that it can kill the engine.
    Crash,
    /// Prompts share a beginning.
    Prefix,
    /// The engine is slow but healthy, and nobody named a target.
    Slow,
}

/// Where a scenario is looked at unless the command line says otherwise: engine, workload, seconds, loads.
type Place = (&'static str, &'static str, u32, &'static [f64]);

const FAIR: &[Column] = &[
    ("good/s", |s| s.good, 1.0, 2),
    ("victims SLO%", |s| s.victims, 100.0, 1),
    ("flooder SLO%", |s| s.flooder, 100.0, 1),
    ("Jain", |s| s.jain, 1.0, 3),
    ("adm. SLO%", |s| s.admitted_attained, 100.0, 1),
    ("preempt/1k", |s| s.preemptions, 1.0, 0),
    ("TTFT p99", |s| s.ttft_most, 1.0, 2),
];
const PRIO: &[Column] = &[
    ("interactive SLO%", |s| s.interactive, 100.0, 1),
    ("batch SLO%", |s| s.batch, 100.0, 1),
    ("good/s", |s| s.good, 1.0, 2),
    ("preempt/1k", |s| s.preemptions, 1.0, 0),
];
const CRASH: &[Column] = &[
    ("deaths", |s| s.deaths, 1.0, 1),
    ("good/s", |s| s.good, 1.0, 2),
    ("SLO%", |s| s.attained, 100.0, 1),
    ("failed%", |s| s.failed, 100.0, 1),
    ("refused%", |s| s.refused, 100.0, 1),
    ("left%", |s| s.left, 100.0, 1),
    ("waste%", |s| s.waste, 100.0, 1),
];
const SLOW: &[Column] = &[
    ("refused%", |s| s.refused, 100.0, 2),
    ("queued%", |s| s.queued, 100.0, 2),
    ("TTFT p50", |s| s.ttft_half, 1.0, 2),
    ("TTFT p99", |s| s.ttft_most, 1.0, 2),
    ("ITL p50", |s| s.itl_half, 1.0, 3),
    ("done/s", |s| s.done, 1.0, 3),
];

impl Scenario {
    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "stale" => Self::Stale,
            "bypass" => Self::Bypass,
            "retry" => Self::Retry,
            "fair" => Self::Fair,
            "prio" => Self::Prio,
            "crash" => Self::Crash,
            "prefix" => Self::Prefix,
            "slow" => Self::Slow,
            _ => return None,
        })
    }

    fn places(self) -> &'static [Place] {
        match self {
            Self::Stale => &[("a100", "chat-bursty", 300, &[1.5]), ("a100", "reason", 600, &[1.5])],
            Self::Bypass => &[("a100", "reason", 600, &[1.2]), ("a100", "chat", 300, &[1.2])],
            Self::Retry => &[("h100", "chat", 240, &[0.9, 1.2, 2.0])],
            Self::Fair => &[("h100", "chat", 240, &[2.0]), ("a100", "reason", 600, &[2.0])],
            Self::Prio => &[("h100", "chat", 240, &[1.5])],
            Self::Crash => &[("h100", "chat", 600, &[0.7, 1.2])],
            Self::Prefix => &[("h100", "chat", 240, &[0.8, 1.0, 1.2, 2.0])],
            Self::Slow => &[("slow", "chat", 600, &[0.5, 0.8])],
        }
    }

    fn columns(self) -> &'static [Column] {
        match self {
            Self::Stale | Self::Bypass | Self::Retry | Self::Prefix => COLUMNS,
            Self::Fair => FAIR,
            Self::Prio => PRIO,
            Self::Crash => CRASH,
            Self::Slow => SLOW,
        }
    }

    /// The engine that this is played on.
    pub fn engine(self, engine: Engine) -> Engine {
        match self {
            Self::Crash => engine.mortal(),
            _ => engine,
        }
    }

    /// What is special about the traffic.
    pub fn special(self) -> Special {
        let plain = Special::default();
        match self {
            Self::Fair => Special { flood: 0.7, ..plain },
            Self::Prio => Special { batch: 0.5, ..plain },
            Self::Crash => Special { outliers: 0.001, ..plain },
            Self::Prefix => Special { prefix: SHARED, ..plain },
            _ => plain,
        }
    }

    /// How the clients behave.
    pub fn manner(self) -> Manner {
        let plain = Manner::default();
        match self {
            Self::Bypass => Manner { bypass: 0.25, ..plain },
            Self::Retry => Manner { retries: 2, ..plain },
            Self::Slow => Manner { silent: true, ..plain },
            _ => plain,
        }
    }

    /// The rules that are compared.
    fn rules(self, engine: &Engine) -> Vec<Rule> {
        let kvgate = || Rule::kvgate(engine);
        let mut rules = match self {
            Self::Stale => return stale(engine),
            Self::Slow => return vec![Rule::defaults(), Rule::none()],
            Self::Crash => vec![kvgate(), kvgate().learning(), kvgate().guarded(GUARD)],
            _ => vec![kvgate()],
        };
        rules.extend([100, 256].map(Rule::cap));
        rules.extend(Rule::others(engine));
        rules
    }

    /// One cell of it.
    pub fn cell(self, engine: &Engine, workload: Workload, load: f64, rule: Rule) -> Cell {
        let (special, manner) = (self.special(), self.manner());
        Cell { engine: self.engine(engine.clone()), workload, load, special, manner, rule }
    }

    /// Its tables.
    pub fn tables(self, asked: Option<(Engine, Workload, &[f64])>, seeds: Seeds) {
        let places = match asked {
            Some((engine, workload, loads)) => vec![(engine, workload, loads.to_vec())],
            None => self.places().iter().map(place).collect(),
        };
        for (engine, workload, loads) in places {
            for load in loads {
                let cell = |rule| self.cell(&engine, workload, load, rule);
                let cells: Vec<Cell> = self.rules(&engine).into_iter().map(cell).collect();
                let scores = run(&cells, seeds);
                let (model, rate) = (&engine.settings.model, cells[0].rate());
                println!(
                    "\n## {self:?}: {model} {:?} {:?} {load}x ({rate:.2} req/s)",
                    workload.mix, workload.arrivals
                );
                head("rule", self.columns());
                cells.iter().zip(&scores).for_each(|(c, s)| line(&c.rule.name, s, self.columns()));
            }
        }
    }
}

fn place(&(engine, name, seconds, loads): &Place) -> (Engine, Workload, Vec<f64>) {
    let engine = if engine == "slow" { slow() } else { Engine::named(engine).unwrap() };
    (engine, Workload { seconds, ..workload(name).unwrap() }, loads.to_vec())
}

fn stale(engine: &Engine) -> Vec<Rule> {
    let kvgate = || Rule::kvgate(engine);
    let every = |rule: Rule, seconds: f64| rule.seeing(&format!("@{seconds} s"), seconds, Sight::All);
    vec![
        every(kvgate(), 0.1),
        every(kvgate(), 0.5),
        every(kvgate(), STALE),
        kvgate().seeing("no pool size", 0.1, Sight::NoPool),
        kvgate().seeing("no metrics", 1.0, Sight::NoMetrics),
        kvgate().seeing("no metrics, no pool size", 1.0, Sight::Nothing),
        every(Rule::kv_threshold(true), 0.1),
        every(Rule::kv_threshold(true), 0.5),
        every(Rule::kv_threshold(true), STALE),
        every(Rule::kv_and_queue(true), 0.05),
        every(Rule::kv_and_queue(true), 0.5),
        every(Rule::kv_and_queue(true), STALE),
    ]
}

/// An engine that is slow but healthy: 130 ms a step, and a prompt of a chat takes seconds.
pub fn slow() -> Engine {
    let settings = sim::Settings {
        model: "slow".to_owned(),
        max_model_len: 32_768,
        pool_tokens: 400_000,
        max_num_seqs: 256,
        max_num_batched_tokens: 64,
        step_ms: 130.0,
        prefill_us_per_token: 0.0,
        context_us_per_token: 0.0,
        ..sim::Settings::default()
    };
    Engine { settings, stretch: 1.0 }
}
