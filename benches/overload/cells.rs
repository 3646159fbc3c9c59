//! Cells: one rule under one traffic, over several courses of chance, on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::engine::Engine;
use super::outcome::Manner;
use super::policy::Rule;
use super::score::{Score, judge};
use super::workload::{Special, Traffic, Workload, requests};
use super::world;

/// What is run.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The engine.
    pub engine: Engine,
    /// The traffic's kind.
    pub workload: Workload,
    /// Its rate, as a multiple of what the bare engine can do.
    pub load: f64,
    /// What is special about it.
    pub special: Special,
    /// How its clients behave.
    pub manner: Manner,
    /// Which rule is in force.
    pub rule: Rule,
}

impl Cell {
    /// Plain traffic.
    pub fn new(engine: &Engine, workload: Workload, load: f64, rule: Rule) -> Self {
        let (special, manner) = (Special::default(), Manner::default());
        Self { engine: engine.clone(), workload, load, special, manner, rule }
    }

    /// Requests per second.
    pub fn rate(&self) -> f64 {
        self.load * self.engine.throughput(self.workload.mix, self.special.prefix)
    }

    /// The traffic of one course.
    pub fn traffic(&self, seed: u64) -> Traffic {
        let (workload, special) = (self.workload, self.special);
        Traffic { workload, rate: self.rate(), seed, stretch: self.engine.stretch, special }
    }

    fn run(&self, seed: u64) -> Score {
        let requests = requests(&self.traffic(seed), &self.engine.settings);
        let outcome = world::run(&self.engine, &self.rule, requests, self.manner, seed);
        let stretch = self.engine.stretch;
        judge(outcome, (self.workload.warmup() * stretch, stretch))
    }
}

/// Which courses of chance are run.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl Seeds {
    /// All of them: far apart, so that no other series shares one.
    pub fn all(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |n| self.first + 7919 * n)
    }
}

/// The scores of each cell, seed by seed.
pub fn run(cells: &[Cell], seeds: Seeds) -> Vec<Scores> {
    let jobs: Vec<(usize, u64)> =
        (0..cells.len()).flat_map(|cell| seeds.all().map(move |seed| (cell, seed))).collect();
    // Measured before, so that no two threads do it at once.
    cells.iter().for_each(|cell| _ = cell.rate());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![None; jobs.len()]);
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(cell, seed)) = jobs.get(place) else { return };
            let begun = Instant::now();
            let mut score = cells[cell].run(seed);
            score.cost = begun.elapsed().as_secs_f64();
            done.lock().unwrap()[place] = Some(score);
            // Long series say how far they are.
            if jobs.len() > 100 && (place + 1).is_multiple_of(jobs.len() / 10) {
                eprintln!("{} of {}", place + 1, jobs.len());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let scores: Vec<Score> = done.into_inner().unwrap().into_iter().map(Option::unwrap).collect();
    scores.chunks(seeds.count as usize).map(|chunk| Scores(chunk.to_vec())).collect()
}

/// The scores of one cell.
#[derive(Debug, Clone)]
pub struct Scores(pub Vec<Score>);

/// A mean and the half-width of its 95 % confidence interval.
#[derive(Debug, Clone, Copy)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Half of the interval's width (Student's t); infinite for a single value.
    pub half: f64,
}

/// One figure of a score.
pub type Figure = fn(&Score) -> f64;

impl Scores {
    /// One figure, seed by seed.
    pub fn each(&self, figure: Figure) -> Vec<f64> {
        self.0.iter().map(figure).collect()
    }

    /// Its mean.
    pub fn mean(&self, figure: Figure) -> f64 {
        mean(&self.each(figure)).value
    }
}

/// The mean of a sample with its confidence.
pub fn mean(sample: &[f64]) -> Mean {
    let n = sample.len() as f64;
    let value = sample.iter().sum::<f64>() / n;
    let variance = sample.iter().map(|x| (x - value).powi(2)).sum::<f64>() / (n - 1.0);
    let half =
        if sample.len() < 2 { f64::INFINITY } else { student(sample.len() - 1) * (variance / n).sqrt() };
    Mean { value, half }
}

/// How far a mean may be from its one-sided 95 % confidence limit (Student's t); infinite for one value.
pub fn limit(sample: &[f64]) -> f64 {
    const TABLE: [f64; 10] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812];
    let Some(degrees) = sample.len().checked_sub(1).filter(|degrees| *degrees > 0) else {
        return f64::INFINITY;
    };
    let two_sided = mean(sample).half / student(degrees);
    TABLE.get(degrees - 1).copied().unwrap_or(1.8) * two_sided
}

/// The 97.5 % quantile of Student's t distribution.
fn student(degrees: usize) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    TABLE.get(degrees - 1).copied().unwrap_or(2.1)
}
