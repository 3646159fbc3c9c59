//! What must hold, as a table: value, bound, verdict.
//!
//! A value is a mean over courses of chance and must keep its bound. Where it keeps it with the one-sided 95 %
//! confidence limit of that mean too (Student's t), it is `sure`; the geometric means against other rules must be.
//! More courses (`--seeds`) make more of them sure. Ratios are taken course by course, on their logarithms.

use std::collections::HashMap;

use super::cells::{Cell, Figure, Scores, Seeds, limit, mean, run};
use super::engine::Engine;
use super::policy::{CAPS, Rule, Sight};
use super::scenarios::{GUARD, STALE, Scenario, slow};
use super::tables::{WORKLOADS, workload};
use super::workload::{Mix, Workload};

/// Good ktok/s at twice the load of the controller that the design measured, by workload.
const DESIGN: [f64; 8] = [21.2, 21.1, 8.6, 9.8, 12.8, 18.9, 6.0, 2.4];
/// Share of the design's admitted requests that kept their targets on the code trace, at twice the load.
const DESIGN_CODE: f64 = 0.65;
/// Loads over capacity.
const OVER: [f64; 4] = [1.2, 1.5, 2.0, 3.0];
/// Tokens per second under which a ratio says nothing more.
const NOTHING: f64 = 10.0;

/// Cells by name, run together.
#[derive(Default)]
struct Plan {
    cells: Vec<(String, Cell)>,
}

impl Plan {
    fn want(&mut self, name: String, cell: Cell) {
        if !self.cells.iter().any(|(known, _)| *known == name) {
            self.cells.push((name, cell));
        }
    }

    fn run(self, seeds: Seeds) -> HashMap<String, Scores> {
        let (names, cells): (Vec<_>, Vec<_>) = self.cells.into_iter().unzip();
        names.into_iter().zip(run(&cells, seeds)).collect()
    }
}

/// What a gate asks of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Must {
    /// The mean keeps the bound.
    Hold,
    /// So does its confidence limit.
    BeSure,
}

/// The verdicts so far.
struct Report {
    failed: usize,
}

impl Report {
    fn line(&mut self, what: &str, (value, limit): (f64, f64), (sign, bound): (&str, f64), must: Must) {
        let keeps = |value: f64| if sign == "≥" { value >= bound } else { value <= bound };
        let verdict = match must {
            Must::BeSure if !keeps(limit) => "FAIL",
            _ if !keeps(value) => "FAIL",
            _ if keeps(limit) => "sure",
            _ => "pass",
        };
        self.failed += usize::from(verdict == "FAIL");
        println!("| {what} | {value:.3} | {limit:.3} | {sign} {bound} | {verdict} |");
    }

    fn at_least(&mut self, what: &str, sample: &[f64], bound: f64) {
        let low = mean(sample).value - limit(sample);
        self.line(what, (mean(sample).value, low), ("≥", bound), Must::Hold);
    }

    fn at_most(&mut self, what: &str, sample: &[f64], bound: f64) {
        let high = mean(sample).value + limit(sample);
        self.line(what, (mean(sample).value, high), ("≤", bound), Must::Hold);
    }

    /// A ratio, from logarithms of ratios.
    fn ratio(&mut self, what: &str, logs: &[f64], bound: f64, must: Must) {
        let middle = mean(logs).value;
        let low = (middle - limit(logs)).exp();
        self.line(what, (middle.exp(), low), ("≥", bound), must);
    }
}

fn minus(a: &Scores, b: &Scores, figure: Figure) -> Vec<f64> {
    a.each(figure).iter().zip(b.each(figure)).map(|(a, b)| a - b).collect()
}

/// Logarithms of the ratios of token goodput, course by course.
fn logs(a: &Scores, b: &Scores) -> Vec<f64> {
    let tokens: Figure = |s| s.good_tokens.max(NOTHING);
    a.each(tokens).iter().zip(b.each(tokens)).map(|(a, b)| (a / b).ln()).collect()
}

struct Gates {
    seconds: Option<u32>,
    scores: HashMap<String, Scores>,
    report: Report,
}

/// Runs all that the gates need and prints them; whether all hold.
pub fn gates(seeds: Seeds, seconds: Option<u32>) -> bool {
    let mut gates = Gates { seconds, scores: HashMap::new(), report: Report { failed: 0 } };
    let plan = gates.plan();
    eprintln!("{} cells, {} courses of each", plan.cells.len(), seeds.count);
    gates.scores = plan.run(seeds);
    println!("| gate | value | 95 % limit | bound | verdict |\n|---|---|---|---|---|");
    gates.under_capacity();
    gates.over_capacity();
    gates.against_the_design();
    gates.against_others();
    gates.scenarios();
    gates.prefix();
    gates.slow();
    println!("\n{} gates do not hold", gates.report.failed);
    gates.report.failed == 0
}

const UNDER: [(&str, &str); 3] = [("h100", "chat"), ("h100", "chat-bursty"), ("a100", "chat")];
const SCENES: [(Scenario, &str, &str, f64); 4] = [
    (Scenario::Fair, "h100", "chat", 2.0),
    (Scenario::Fair, "a100", "reason", 2.0),
    (Scenario::Prio, "h100", "chat", 1.5),
    (Scenario::Bypass, "a100", "reason", 1.2),
];
const STALES: [(&str, &str); 2] = [("a100", "chat-bursty"), ("a100", "reason")];

fn others(engine: &Engine) -> Vec<Rule> {
    CAPS.iter().map(|&cap| Rule::cap(cap)).chain(Rule::others(engine)).collect()
}

impl Gates {
    fn traffic(&self, name: &str) -> Workload {
        let workload = workload(name).unwrap();
        Workload { seconds: self.seconds.unwrap_or(workload.seconds), ..workload }
    }

    fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        for (engine, name, traffic) in WORKLOADS {
            let engine_model = Engine::named(engine).unwrap();
            let traffic = Workload { seconds: self.seconds.unwrap_or(traffic.seconds), ..traffic };
            let mut cell = |load: f64, rule: Rule| {
                let key = format!("{engine} {name} {load} {}", rule.name);
                plan.want(key, Cell::new(&engine_model, traffic, load, rule));
            };
            OVER.iter().for_each(|&load| cell(load, Rule::kvgate(&engine_model)));
            others(&engine_model).into_iter().for_each(|rule| cell(2.0, rule));
            if UNDER.contains(&(engine, name)) {
                for load in [0.5, 0.8] {
                    cell(load, Rule::kvgate(&engine_model));
                    cell(load, Rule::none());
                }
            }
        }
        self.plan_scenarios(&mut plan);
        plan
    }

    fn plan_scenarios(&self, plan: &mut Plan) {
        let mut want = |scenario: Scenario, (engine, name): (&str, &str), load: f64, rule: Rule| {
            let model = if engine == "slow" { slow() } else { Engine::named(engine).unwrap() };
            let key = format!("{scenario:?} {engine} {name} {load} {}", rule.name);
            plan.want(key, scenario.cell(&model, self.traffic(name), load, rule));
        };
        let product = |engine: &str| Rule::kvgate(&Engine::named(engine).unwrap());
        for (scenario, engine, name, load) in SCENES {
            want(scenario, (engine, name), load, product(engine));
        }
        want(Scenario::Crash, ("h100", "chat"), 0.7, product("h100").learning());
        want(Scenario::Crash, ("h100", "chat"), 0.7, product("h100").guarded(GUARD));
        for (engine, name) in STALES {
            let product = || product(engine);
            want(Scenario::Stale, (engine, name), 1.5, product());
            want(Scenario::Stale, (engine, name), 1.5, product().seeing("stale", STALE, Sight::All));
            want(Scenario::Stale, (engine, name), 1.5, product().seeing("no metrics", 1.0, Sight::NoMetrics));
            want(Scenario::Stale, (engine, name), 1.5, product().seeing("nothing", 1.0, Sight::Nothing));
            want(Scenario::Stale, (engine, name), 1.5, product().seeing("no pool", 0.1, Sight::NoPool));
        }
        for load in [0.8, 2.0] {
            want(Scenario::Prefix, ("h100", "chat"), load, product("h100"));
        }
        want(Scenario::Prefix, ("h100", "chat"), 0.8, Rule::none());
        CAPS.iter().for_each(|&cap| want(Scenario::Prefix, ("h100", "chat"), 2.0, Rule::cap(cap)));
        for load in [0.5, 0.8] {
            want(Scenario::Slow, ("slow", "chat"), load, Rule::defaults());
        }
    }

    fn scores(&self, key: &str) -> Scores {
        self.scores[key].clone()
    }

    /// With room for all, the gateway costs nobody anything.
    fn under_capacity(&mut self) {
        for (engine, name) in UNDER {
            for load in [0.5, 0.8] {
                let at = |rule: &str| self.scores(&format!("{engine} {name} {load} {rule}"));
                let difference = minus(&at("kvgate"), &at("none"), |s| 100.0 * s.attained);
                self.report.at_least(&format!("{engine} {name} {load}x: SLO% − none"), &difference, -1.0);
            }
        }
    }

    /// Over capacity, what is admitted is served well, and the engine does nothing for nothing.
    fn over_capacity(&mut self) {
        for (engine, name, traffic) in WORKLOADS {
            for load in OVER {
                let scores = self.scores(&format!("{engine} {name} {load} kvgate"));
                let what = format!("{engine} {name} {load}x");
                let bound = match traffic.mix {
                    Mix::Code if load == 2.0 => Some(100.0 * DESIGN_CODE),
                    Mix::Code => None,
                    Mix::Mixed => Some(92.0),
                    _ => Some(95.0),
                };
                if let Some(bound) = bound {
                    let admitted = scores.each(|s| 100.0 * s.admitted_attained);
                    self.report.at_least(&format!("{what}: admitted SLO%"), &admitted, bound);
                }
                self.report.at_most(
                    &format!("{what}: preemptions/1k"),
                    &scores.each(|s| s.preemptions),
                    25.0,
                );
                self.report.at_most(&format!("{what}: waste%"), &scores.each(|s| 100.0 * s.waste), 1.0);
            }
        }
    }

    fn against_the_design(&mut self) {
        for ((engine, name, _), design) in WORKLOADS.iter().zip(DESIGN) {
            let good = self.scores(&format!("{engine} {name} 2 kvgate")).each(|s| s.good_tokens / 1e3);
            let what = format!("{engine} {name} 2x: good ktok/s / design's {design}");
            let ratios: Vec<f64> = good.iter().map(|good| good / design).collect();
            self.report.at_least(&what, &ratios, 0.95);
        }
    }

    /// Token goodput at twice the load against each rule at one setting.
    fn against_others(&mut self) {
        let mut worst: Vec<(f64, String, Vec<f64>)> = Vec::new();
        for place in 0..others(&Engine::named("h100").unwrap()).len() {
            let mut sums: Vec<f64> = Vec::new();
            let mut rule = String::new();
            for (engine, name, _) in WORKLOADS {
                rule = others(&Engine::named(engine).unwrap())[place].name.clone();
                let at = |rule: &str| self.scores(&format!("{engine} {name} 2 {rule}"));
                let logs = logs(&at("kvgate"), &at(&rule));
                sums.resize(logs.len(), 0.0);
                sums.iter_mut().zip(&logs).for_each(|(sum, log)| *sum += log / WORKLOADS.len() as f64);
                worst.push((mean(&logs).value, format!("{engine} {name} 2x against {rule}"), logs));
            }
            self.report.ratio(
                &format!("2x: good tokens, geometric mean against {rule}"),
                &sums,
                1.2,
                Must::BeSure,
            );
        }
        worst.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, what, logs) in worst.iter().take(5) {
            self.report.ratio(&format!("{what}: good tokens, among the worst"), logs, 0.9, Must::Hold);
        }
    }

    fn scenarios(&mut self) {
        let at = |scene: &str| self.scores(scene);
        let victims = |s: &Scores| s.each(|s| 100.0 * s.victims);
        let chat = victims(&at("Fair h100 chat 2 kvgate"));
        let reason = victims(&at("Fair a100 reason 2 kvgate"));
        let interactive = at("Prio h100 chat 1.5 kvgate").each(|s| 100.0 * s.interactive);
        let bypass = at("Bypass a100 reason 1.2 kvgate").each(|s| s.preemptions);
        let deaths = at("Crash h100 chat 0.7 kvgate +learned").each(|s| s.deaths);
        let guarded = at("Crash h100 chat 0.7 kvgate +guard").each(|s| s.deaths);
        self.report.at_least("flood 70 %, chat 2x: victims' SLO%", &chat, 95.0);
        self.report.at_least("flood 70 %, reason 2x: victims' SLO%", &reason, 85.0);
        self.report.at_least("half batch, chat 1.5x: interactive SLO%", &interactive, 97.0);
        self.report.at_most("a quarter bypasses, reason 1.2x: preemptions/1k", &bypass, 10.0);
        let most = |sample: &[f64]| sample.iter().copied().fold(0.0, f64::max);
        self.report.line(
            "outliers, guard learned: deaths, most of a course",
            (most(&deaths), most(&deaths)),
            ("≤", 1.0),
            Must::BeSure,
        );
        self.report.line(
            "outliers, guard configured: deaths",
            (most(&guarded), most(&guarded)),
            ("≤", 0.0),
            Must::BeSure,
        );
        for (engine, name) in STALES {
            let at = |rule: &str| self.scores(&format!("Stale {engine} {name} 1.5 kvgate{rule}"));
            let fresh = at("");
            let sights = [(" stale", 0.97), (" no metrics", 0.92), (" nothing", 0.92), (" no pool", 0.92)];
            let ratios = sights.map(|(sight, bound)| (sight, logs(&at(sight), &fresh), bound));
            for (sight, logs, bound) in ratios {
                self.report.ratio(
                    &format!("{engine} {name} 1.5x{sight}: good tokens kept"),
                    &logs,
                    bound,
                    Must::Hold,
                );
            }
        }
    }

    /// Shared beginnings take no room twice, and the gateway knows.
    fn prefix(&mut self) {
        let at = |load: f64, rule: &str| self.scores(&format!("Prefix h100 chat {load} {rule}"));
        let low = at(0.8, "kvgate");
        let refused = low.each(|s| 100.0 * s.refused);
        let difference = minus(&low, &at(0.8, "none"), |s| 100.0 * s.attained);
        let over = at(2.0, "kvgate");
        let caps = CAPS.map(|cap| at(2.0, &format!("cap {cap} +ttl")));
        let best = caps.iter().max_by(|a, b| a.mean(|s| s.good_tokens).total_cmp(&b.mean(|s| s.good_tokens)));
        let logs = logs(&over, best.unwrap());
        self.report.at_most("shared prefix, chat 0.8x: refused%", &refused, 0.1);
        self.report.at_least("shared prefix, chat 0.8x: SLO% − none", &difference, -1.0);
        self.report.at_least(
            "shared prefix, chat 2x: admitted SLO%",
            &over.each(|s| 100.0 * s.admitted_attained),
            95.0,
        );
        self.report.ratio(
            "shared prefix, chat 2x: good tokens against the best cap",
            &logs,
            0.95,
            Must::Hold,
        );
    }

    /// A slow engine is not an overloaded one.
    fn slow(&mut self) {
        for load in [0.5, 0.8] {
            let scores = self.scores(&format!("Slow slow chat {load} {}", Rule::defaults().name));
            let touched = scores.each(|s| 100.0 * (s.refused + s.queued));
            let most = touched.iter().copied().fold(0.0, f64::max);
            let (ttft, itl) = (scores.mean(|s| s.ttft_half), scores.mean(|s| s.itl_half));
            let what = format!("slow engine {load}x (TTFT {ttft:.1} s, ITL {itl:.3} s): refused or queued%");
            self.report.line(&what, (mean(&touched).value, most), ("≤", 0.0), Must::BeSure);
        }
    }
}
