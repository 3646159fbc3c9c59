//! Cells as tables.

use super::cells::{Cell, Figure, Scores, Seeds, mean, run};
use super::engine::Engine;
use super::policy::{CAPS, Rule};
use super::workload::{Arrivals, Mix, Workload};

/// A column: its head, its figure, a factor, and decimals.
pub type Column = (&'static str, Figure, f64, usize);

/// The columns of the main tables.
pub const COLUMNS: &[Column] = &[
    ("good/s", |s| s.good, 1.0, 2),
    ("ktok/s", |s| s.good_tokens, 1e-3, 2),
    ("SLO%", |s| s.attained, 100.0, 1),
    ("adm. SLO%", |s| s.admitted_attained, 100.0, 1),
    ("long SLO%", |s| s.long_attained, 100.0, 1),
    ("refused%", |s| s.refused, 100.0, 1),
    ("left%", |s| s.left, 100.0, 1),
    ("preempt/1k", |s| s.preemptions, 1.0, 0),
    ("waste%", |s| s.waste, 100.0, 1),
    ("TTFT p50", |s| s.ttft_half, 1.0, 2),
    ("TTFT p99", |s| s.ttft_most, 1.0, 2),
    ("ITL p99", |s| s.itl_most, 1.0, 3),
    ("gap p99", |s| s.gap_most, 1.0, 3),
];

/// The workloads of the main tables: engine, name, traffic.
pub const WORKLOADS: [(&str, &str, Workload); 8] = [
    ("h100", "chat", Workload { mix: Mix::Chat, arrivals: Arrivals::Poisson, seconds: 240 }),
    ("h100", "chat-bursty", Workload { mix: Mix::Chat, arrivals: Arrivals::Bursty, seconds: 240 }),
    ("a100", "chat", Workload { mix: Mix::Chat, arrivals: Arrivals::Poisson, seconds: 300 }),
    ("h100", "code-trace", Workload { mix: Mix::Code, arrivals: Arrivals::Trace, seconds: 300 }),
    ("h100", "long", Workload { mix: Mix::Long, arrivals: Arrivals::Poisson, seconds: 900 }),
    ("h100", "mixed", Workload { mix: Mix::Mixed, arrivals: Arrivals::Poisson, seconds: 400 }),
    ("a100", "mixed-onoff", Workload { mix: Mix::Mixed, arrivals: Arrivals::OnOff, seconds: 500 }),
    ("a100", "reason", Workload { mix: Mix::Reason, arrivals: Arrivals::Poisson, seconds: 600 }),
];

/// The traffic of that name: `chat`, `code`, `long`, `reason`, `mixed`, with `-bursty`, `-onoff` or `-trace`.
pub fn workload(name: &str) -> Option<Workload> {
    let (mix, arrivals) = name.split_once('-').unwrap_or((name, "poisson"));
    let (mix, seconds) = match mix {
        "chat" => (Mix::Chat, 240),
        "code" => (Mix::Code, 300),
        "long" => (Mix::Long, 900),
        "reason" => (Mix::Reason, 600),
        "mixed" => (Mix::Mixed, 400),
        _ => return None,
    };
    let arrivals = match arrivals {
        "poisson" => Arrivals::Poisson,
        "bursty" => Arrivals::Bursty,
        "onoff" => Arrivals::OnOff,
        "trace" => Arrivals::Trace,
        _ => return None,
    };
    Some(Workload { mix, arrivals, seconds })
}

/// A table's head.
pub fn head(first: &str, columns: &[Column]) {
    let names: Vec<_> = columns.iter().map(|(name, ..)| *name).collect();
    println!("| {first} | {} |", names.join(" | "));
    println!("|{}", "---|".repeat(columns.len() + 1));
}

/// A line of it: means, and half of the 95 % interval where it shows; with `WHY` in the environment also what the
/// first course's queue waited for (ticks) and why it turned away (times).
pub fn line(name: &str, scores: &Scores, columns: &[Column]) {
    let cell = |&(_, figure, factor, decimals): &Column| {
        let mean = mean(&scores.each(figure));
        let (value, half) = (mean.value * factor, mean.half * factor);
        let shows = half.is_finite() && half >= 0.5 * 10f64.powi(-(decimals as i32));
        let spread = if shows { format!(" ±{half:.decimals$}") } else { String::new() };
        format!("{value:.decimals$}{spread}")
    };
    let cells: Vec<_> = columns.iter().map(cell).collect();
    println!("| {name} | {} |", cells.join(" | "));
    if std::env::var_os("WHY").is_some() {
        let reasons = scores.0.first().map(|score| &score.reasons);
        reasons.into_iter().flatten().for_each(|(reason, times)| println!("    {reason}: {times}"));
        println!("    played in {:.1} s", scores.mean(|s| s.cost));
    }
}

/// Which cap has the best goodput in requests here, in hindsight.
pub fn best<'a>(capped: impl Iterator<Item = (&'a Cell, &'a Scores)>) -> Option<(&'a Cell, &'a Scores)> {
    capped.max_by(|a, b| a.1.mean(|s| s.good).total_cmp(&b.1.mean(|s| s.good)))
}

/// The main tables of some traffic: the product, the best cap, all others.
pub fn main_tables(engine: &Engine, name: &str, workload: Workload, loads: &[f64], seeds: Seeds) {
    let one = engine.throughput(workload.mix, 0);
    println!("\n## {} {name}: 1.0x = {one:.2} req/s", engine.settings.model);
    for &load in loads {
        let mut rules: Vec<Rule> = CAPS.iter().map(|&cap| Rule::cap(cap)).collect();
        rules.push(Rule::kvgate(engine));
        rules.extend(Rule::others(engine));
        let cells: Vec<_> = rules.into_iter().map(|rule| Cell::new(engine, workload, load, rule)).collect();
        let scores = run(&cells, seeds);
        println!("\n### {} {name} {load}x", engine.settings.model);
        head("rule", COLUMNS);
        let rows: Vec<_> = cells.iter().zip(&scores).collect();
        let (capped, others) = rows.split_at(CAPS.len());
        line(&others[0].0.rule.name, others[0].1, COLUMNS);
        if let Some((cell, scores)) = best(capped.iter().copied()) {
            line(&format!("best of {} caps: {}", CAPS.len(), cell.rule.name), scores, COLUMNS);
        }
        others[1..].iter().for_each(|(cell, scores)| line(&cell.rule.name, scores, COLUMNS));
    }
}
