//! The whole gateway process in front of `kvgate sim`, in real time, beside the same courses in virtual time.
//!
//! The same requests, the same engine model, the same rule. Client, gateway and engine share this machine's
//! processors: where they do not suffice, `--stretch N` makes the engine, the arrivals and the targets N times
//! as slow; the gateway's own times stay as they are, in the virtual cell too. The last column but one says how
//! late the latest hundredth of the requests was sent: that is the processors' part in a difference.

mod client;
mod process;

use crate::cells::{Cell, Scores};
use crate::engine::Engine;
use crate::outcome::Outcome;
use crate::policy::{CAPS, Rule};
use crate::score::{Score, judge};
use crate::workload::{Request, Workload, requests};
use crate::{tables, world};

/// Points of attainment by which a live cell may differ from its virtual one.
const POINTS: f64 = 5.0;

/// Compares the product, nothing and the best other rule at these loads; whether all are near their virtual
/// cells.
pub fn compare(engine: &Engine, (name, workload): (&str, Workload), loads: &[f64], seed: u64) -> bool {
    println!(
        "\n## live: {} {name}, {} s, stretch {}",
        engine.settings.model, workload.seconds, engine.stretch
    );
    println!(
        "| cell | SLO% virtual | live | points | good/s virtual | live | refused% virtual | live | TTFT p50 virtual | live | ITL p50 virtual | live | preempt/1k virtual | live | sent late p99 | |"
    );
    println!("|{}", "---|".repeat(16));
    let mut near = true;
    for &load in loads {
        let cell = |rule| Cell::new(engine, workload, load, rule);
        let mut rules: Vec<Rule> = CAPS.iter().map(|&cap| Rule::cap(cap)).collect();
        rules.extend(Rule::others(engine).into_iter().filter(|rule| rule.settings.is_some()));
        let others: Vec<(Cell, Scores)> = rules
            .into_iter()
            .map(|rule| (cell(rule.clone()), Scores(vec![virtually(&cell(rule), seed)])))
            .collect();
        let best = tables::best(others.iter().map(|(cell, scores)| (cell, scores)));
        let best = best.map(|(cell, _)| cell.rule.clone());
        for rule in [Some(Rule::kvgate(engine)), Some(Rule::none()), best].into_iter().flatten() {
            near &= beside(&cell(rule), seed);
        }
    }
    near
}

fn course(cell: &Cell, seed: u64) -> Vec<Request> {
    requests(&cell.traffic(seed), &cell.engine.settings)
}

fn judged(cell: &Cell, outcome: Outcome) -> Score {
    let stretch = cell.engine.stretch;
    judge(outcome, (cell.workload.warmup() * stretch, stretch))
}

fn virtually(cell: &Cell, seed: u64) -> Score {
    judged(cell, world::run(&cell.engine, &cell.rule, course(cell, seed), cell.manner, seed))
}

/// One cell in both times, as a line; whether they are near each other.
fn beside(cell: &Cell, seed: u64) -> bool {
    let planned = virtually(cell, seed);
    let (live, late) = live(cell, course(cell, seed));
    let points = 100.0 * (live.attained - planned.attained);
    let near = points.abs() <= POINTS;
    println!(
        "| {}x {} | {:.1} | {:.1} | {points:+.1} | {:.2} | {:.2} | {:.1} | {:.1} | {:.2} | {:.2} | {:.3} | {:.3} | {:.0} | {:.0} | {late:.3} | {} |",
        cell.load,
        cell.rule.name,
        100.0 * planned.attained,
        100.0 * live.attained,
        planned.good,
        live.good,
        100.0 * planned.refused,
        100.0 * live.refused,
        planned.ttft_half,
        live.ttft_half,
        planned.itl_half,
        live.itl_half,
        planned.preemptions,
        live.preemptions,
        if near { "near" } else { "FAR" },
    );
    near
}

/// A course in real time, and how late the latest hundredth of it was sent.
fn live(cell: &Cell, requests: Vec<Request>) -> (Score, f64) {
    let folder = tempfile::tempdir().unwrap();
    let engine = process::engine(&cell.engine, folder.path());
    let gateway = process::gateway(&cell.rule, engine.at, folder.path());
    let model = cell.engine.settings.model.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let template = (&model[..], client::template(engine.at, &model));
    let (attempts, late) =
        runtime.block_on(client::all(&requests, template, (gateway.at, cell.engine.stretch)));
    let page = process::get(engine.at, "/metrics").unwrap_or_default();
    if std::env::var_os("WHY").is_some() {
        let sent: u64 = requests.iter().map(|r| u64::from(r.prompt)).sum();
        let output: u64 = requests.iter().map(|r| u64::from(r.output)).sum();
        println!(
            "    {} requests, {sent} prompt and {output} output tokens; the engine counted:",
            requests.len()
        );
        let counted =
            ["vllm:prompt_tokens_total{", "vllm:generation_tokens_total{", "vllm:iteration_tokens_total_"];
        let bucket =
            |line: &&str| counted.iter().any(|name| line.starts_with(name)) && !line.contains("bucket");
        page.lines().filter(bucket).for_each(|line| println!("    {line}"));
    }
    let preemptions = page
        .lines()
        .find(|line| line.starts_with("vllm:num_preemptions_total"))
        .and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    let outcome = Outcome {
        horizon: requests.last().map_or(0.0, |r| r.arrival),
        requests,
        attempts,
        preemptions: preemptions.unwrap_or(0.0) as u64,
        ..Outcome::default()
    };
    (judged(cell, outcome), late)
}
