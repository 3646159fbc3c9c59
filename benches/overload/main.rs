//! Admission under overload, in virtual time: the product's own state machine between clients with
//! targets and the engine model of `kvgate sim`.
//!
//! `cargo bench --bench overload -- MODE [ENGINE] [WORKLOAD] [LOADS] [--seeds N] [--seed N] [--seconds N]`:
//!
//! | mode | |
//! |---|---|
//! | `quick` | a minute's look; the default |
//! | `main` | all rules at all loads |
//! | `stale`, `bypass`, `retry`, `fair`, `prio`, `crash`, `prefix`, `slow` | departures from plain traffic |
//! | `live` | the whole gateway process in front of `kvgate sim`, in real time; `--stretch N` |
//! | `gates` | what must hold; exit code 1 where something does not |
//!
//! `WHY=1` in the environment adds what held the queue and why it turned away, for one course a cell.
//!
//! A client is served well if its first token comes within 2 s and twice its prefill on an idle engine,
//! and the mean time between its tokens is at most 100 ms. `good` counts these. Loads are multiples of
//! what the bare engine serves of a backlog.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may stop")]

mod agenda;
mod cells;
mod engine;
mod gates;
mod gateway;
mod live;
mod outcome;
mod policy;
mod random;
mod scenarios;
mod score;
mod tables;
mod workload;
mod world;

use std::process::ExitCode;

use cells::{Cell, Seeds};
use engine::Engine;
use policy::Rule;
use scenarios::Scenario;
use tables::{COLUMNS, WORKLOADS};
use workload::Workload;

/// Loads of the main tables.
const LOADS: &[f64] = &[0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0];

/// Loads and seconds of the live cells.
const LIVE_LOADS: &[f64] = &[0.8, 1.2, 2.0];
const LIVE_SECONDS: u32 = 90;

/// What the command line asks for.
struct Args {
    mode: String,
    engine: Option<String>,
    workload: Option<String>,
    loads: Vec<f64>,
    seeds: Seeds,
    seconds: Option<u32>,
    stretch: f64,
}

impl Args {
    fn read() -> Option<Self> {
        let mut args = Self {
            mode: "quick".to_owned(),
            engine: None,
            workload: None,
            loads: LOADS.to_vec(),
            seeds: Seeds { first: 1001, count: 3 },
            seconds: None,
            stretch: 1.0,
        };
        let mut place = 0;
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--bench" => {}
                "--seeds" => args.seeds.count = words.next()?.parse().ok()?,
                "--seed" => args.seeds.first = words.next()?.parse().ok()?,
                "--seconds" => args.seconds = Some(words.next()?.parse().ok()?),
                "--stretch" => args.stretch = words.next()?.parse().ok()?,
                flag if flag.starts_with("--") => return None,
                word => {
                    match place {
                        0 => args.mode = word.to_owned(),
                        1 => args.engine = Some(word.to_owned()),
                        2 => args.workload = Some(word.to_owned()),
                        _ => args.loads = word.split(',').map(|l| l.parse().ok()).collect::<Option<_>>()?,
                    }
                    place += 1;
                }
            }
        }
        Some(args)
    }

    /// The traffic asked for, or all of the main tables.
    fn traffic(&self) -> Option<Vec<(Engine, String, Workload)>> {
        let rows = match (&self.engine, &self.workload) {
            (Some(engine), Some(workload)) => {
                vec![(Engine::named(engine)?, workload.clone(), tables::workload(workload)?)]
            }
            (engine, _) => WORKLOADS
                .iter()
                .filter(|(name, ..)| engine.as_deref().is_none_or(|engine| engine == *name))
                .map(|(engine, name, workload)| Some((Engine::named(engine)?, (*name).to_owned(), *workload)))
                .collect::<Option<_>>()?,
        };
        let seconds = |w: Workload| Workload { seconds: self.seconds.unwrap_or(w.seconds), ..w };
        let stretched = |engine: Engine| engine.stretched(self.stretch);
        Some(rows.into_iter().map(|(engine, name, w)| (stretched(engine), name, seconds(w))).collect())
    }
}

/// A minute's look: the product beside a cap and nothing, where they differ most.
fn quick(args: &Args) {
    let rows =
        [("h100", "chat", 2.0), ("h100", "mixed", 1.5), ("a100", "reason", 2.0), ("h100", "chat", 0.8)];
    let mut cells = Vec::new();
    for (engine, name, load) in rows {
        let engine = Engine::named(engine).unwrap();
        let workload = Workload { seconds: args.seconds.unwrap_or(200), ..tables::workload(name).unwrap() };
        let cap = if name == "reason" { 48 } else { 100 };
        for rule in [Rule::kvgate(&engine), Rule::cap(cap), Rule::none()] {
            cells.push((name, Cell::new(&engine, workload, load, rule)));
        }
    }
    let run = cells::run(&cells.iter().map(|(_, cell)| cell.clone()).collect::<Vec<_>>(), args.seeds);
    tables::head("traffic, rule", COLUMNS);
    for ((name, cell), scores) in cells.iter().zip(&run) {
        let model = &cell.engine.settings.model;
        tables::line(&format!("{model} {name} {}x {}", cell.load, cell.rule.name), scores, COLUMNS);
    }
}

/// The whole gateway in real time: chat and mixed unless something is asked for.
fn live(args: &Args, traffic: &[(Engine, String, Workload)]) -> ExitCode {
    let loads = if args.loads == LOADS { LIVE_LOADS } else { &args.loads };
    let mut near = true;
    for (engine, name, workload) in traffic {
        let asked = args.workload.is_some();
        if !asked && !["chat", "mixed"].contains(&name.as_str()) {
            continue;
        }
        let workload = Workload { seconds: args.seconds.unwrap_or(LIVE_SECONDS), ..*workload };
        near &= live::compare(engine, (name, workload), loads, args.seeds.first);
    }
    if near { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let Some(args) = Args::read() else {
        eprintln!(
            "usage: overload [quick|main] [h100|a100] [WORKLOAD] [LOADS] [--seeds N] [--seed N] [--seconds N]"
        );
        return ExitCode::from(2);
    };
    let Some(traffic) = args.traffic() else {
        eprintln!("no such engine or workload");
        return ExitCode::from(2);
    };
    match args.mode.as_str() {
        "quick" => quick(&args),
        "main" => {
            for (engine, name, workload) in traffic {
                tables::main_tables(&engine, &name, workload, &args.loads, args.seeds);
            }
        }
        "gates" => {
            let hold = gates::gates(args.seeds, args.seconds);
            return if hold { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        "live" => return live(&args, &traffic),
        mode => {
            let Some(scenario) = Scenario::named(mode) else {
                eprintln!("no such mode: {mode}");
                return ExitCode::from(2);
            };
            let asked = args.workload.is_some().then(|| &traffic[0]);
            let asked = asked.map(|(engine, _, workload)| (engine.clone(), *workload, &args.loads[..]));
            scenario.tables(asked, args.seeds);
        }
    }
    ExitCode::SUCCESS
}
