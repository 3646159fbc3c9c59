//! Who comes when, and wants what: lengths of real traffic, and arrivals scaled to a rate.

use std::sync::LazyLock;

use kvgate::sim::{Prefix, Settings};

use super::random::Random;

/// Seconds to the first token that a client gives an idle engine beyond twice its prefill.
const TTFT: f64 = 2.0;
/// The same for batch work.
const BATCH_TTFT: f64 = 60.0;
/// Seconds that a client waits for the first token at least, and how many times its target.
const PATIENCE: (f64, f64) = (10.0, 5.0);
/// Share of the requests that name no output limit.
const UNDECLARED: f64 = 0.4;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mix {
    /// Conversations (Azure 2023).
    Chat,
    /// Code completion: long prompts, short answers (Azure 2023).
    Code,
    /// Very long conversations (Mooncake): 12,000 prompt tokens on average.
    Long,
    /// Synthetic: short prompts, answers of 900 tokens in the median and up to 16,000.
    Reason,
    /// 55 % chat, 20 % code, 10 % long, 15 % reasoning.
    Mixed,
}

/// When it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arrivals {
    /// Independent of each other.
    Poisson,
    /// Gaps from a gamma distribution with a coefficient of variation of 3.
    Bursty,
    /// Ten seconds in forty at 2.5 times the mean rate, the rest at half of it.
    OnOff,
    /// The gaps of the trace itself, scaled.
    Trace,
}

/// A kind of traffic, and how long it is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Workload {
    /// What.
    pub mix: Mix,
    /// When.
    pub arrivals: Arrivals,
    /// Seconds of arrivals.
    pub seconds: u32,
}

impl Workload {
    /// Seconds at the beginning that are not judged: the engine is not full yet.
    pub fn warmup(&self) -> f64 {
        let settled: f64 = if self.mix == Mix::Reason { 150.0 } else { 40.0 };
        settled.min(f64::from(self.seconds) / 4.0)
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Seconds from the beginning.
    pub arrival: f64,
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens it will have.
    pub output: u32,
    /// The output limit it names.
    pub max_output: Option<u32>,
    /// Whose it is.
    pub tenant: u64,
    /// Whether nobody waits for it.
    pub batch: bool,
    /// Seconds to the first token after which it is worth nothing.
    pub ttft: f64,
    /// Seconds to the first token after which its client leaves.
    pub patience: f64,
    /// What its prompt shares with others.
    pub prefix: Option<Prefix>,
}

/// Traffic to be made.
#[derive(Debug, Clone, Copy)]
pub struct Traffic {
    /// Its kind.
    pub workload: Workload,
    /// Requests per second.
    pub rate: f64,
    /// Which course of chance.
    pub seed: u64,
    /// By how much all of its times are longer.
    pub stretch: f64,
    /// What is special about it.
    pub special: Special,
}

/// Departures from plain traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Special {
    /// Share of the requests that are tenant 0's, where it floods.
    pub flood: f64,
    /// Share of the requests that are batch work.
    pub batch: f64,
    /// Share of the requests whose prompt has 92,000 to 120,000 tokens.
    pub outliers: f64,
    /// Tokens that each prompt of a tenant begins with, beside its own.
    pub prefix: u32,
}

/// Tenants.
pub const TENANTS: u64 = 8;

struct Row {
    source: Mix,
    at: f64,
    prompt: u32,
    output: u32,
}

static TRACE: LazyLock<[Vec<Row>; 3]> = LazyLock::new(|| {
    let rows = |source: Mix, name: &str| {
        let lines = include_str!("trace.csv").lines().filter(|l| l.starts_with(name));
        let row = |line: &str| {
            let mut numbers = line.split(',').skip(1).map(|n| n.parse::<u32>().unwrap());
            let mut next = || numbers.next().unwrap();
            Row { source, at: f64::from(next()) / 1e3, prompt: next().max(1), output: next().max(1) }
        };
        lines.map(row).collect()
    };
    [rows(Mix::Chat, "conv,"), rows(Mix::Code, "code,"), rows(Mix::Long, "long,")]
});

/// Where the lengths of a mix come from.
struct Lengths {
    random: Random,
    place: [usize; 3],
}

impl Lengths {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x1e57);
        let place = [0, 1, 2].map(|i| random.below(TRACE[i].len()));
        Self { random, place }
    }

    fn traced(&mut self, mix: Mix) -> (u32, u32) {
        let source = TRACE.iter().position(|rows| rows[0].source == mix).unwrap();
        self.place[source] = (self.place[source] + 1) % TRACE[source].len();
        let row = &TRACE[source][self.place[source]];
        (row.prompt, row.output)
    }

    fn of(&mut self, mix: Mix) -> (u32, u32) {
        match mix {
            Mix::Reason => (
                self.random.log_normal(400.0, 1.0).clamp(8.0, 8000.0) as u32,
                self.random.log_normal(900.0, 1.0).clamp(16.0, 16_000.0) as u32,
            ),
            mix => self.traced(mix),
        }
    }
}

/// When requests come, up to `seconds`.
fn arrivals(kind: Arrivals, (rate, seconds): (f64, f64), pattern: &[Row], random: &mut Random) -> Vec<f64> {
    if kind == Arrivals::Trace {
        return replayed((rate, seconds), pattern, random);
    }
    let mut times = Vec::new();
    let mut at = 0.0f64;
    loop {
        at += match kind {
            Arrivals::Bursty => random.gamma(1.0 / 9.0) * 9.0 / rate,
            Arrivals::OnOff => {
                let (period, duty, peak) = (40.0, 0.25, 2.5);
                let busy = (at / period).fract() < duty;
                let factor = if busy { peak } else { (1.0 - duty * peak) / (1.0 - duty) };
                random.exponential(1.0 / (rate * factor)).min(period / 4.0)
            }
            Arrivals::Poisson | Arrivals::Trace => random.exponential(1.0 / rate),
        };
        if at > seconds {
            return times;
        }
        times.push(at);
    }
}

/// The trace's own gaps from a random place on, over and over.
fn replayed((rate, seconds): (f64, f64), pattern: &[Row], random: &mut Random) -> Vec<f64> {
    let span = pattern.last().unwrap().at;
    let scale = pattern.len() as f64 / span / rate;
    let (mut base, mut place) = (0.0, random.below(pattern.len() / 2));
    let first = pattern[place].at;
    let mut times = Vec::new();
    loop {
        let at = base + (pattern[place].at - first) * scale;
        if at > seconds {
            return times;
        }
        times.push(at);
        place += 1;
        if place == pattern.len() {
            base += span * scale;
            place = 0;
        }
    }
}

/// The requests of a course of traffic, by arrival.
pub fn requests(traffic: &Traffic, engine: &Settings) -> Vec<Request> {
    let workload = traffic.workload;
    let mut random = Random::new(traffic.seed);
    let mut lengths = Lengths::new(traffic.seed);
    let pattern = match workload.mix {
        Mix::Code => &TRACE[1],
        Mix::Long => &TRACE[2],
        _ => &TRACE[0],
    };
    let span = (traffic.rate, f64::from(workload.seconds) * traffic.stretch);
    let times = arrivals(workload.arrivals, span, pattern, &mut random);
    times.into_iter().map(|at| request(at, traffic, (&mut lengths, &mut random), engine)).collect()
}

fn request(
    arrival: f64,
    traffic: &Traffic,
    (lengths, random): (&mut Lengths, &mut Random),
    engine: &Settings,
) -> Request {
    let special = traffic.special;
    let mut tenant = tenant(special.flood, random);
    let mut mix = traffic.workload.mix;
    if mix == Mix::Mixed {
        // A tenant is an application, as keys are.
        let (part, owner) = match random.share() {
            x if x < 0.55 => (Mix::Chat, tenant % 4),
            x if x < 0.75 => (Mix::Code, 4 + tenant % 2),
            x if x < 0.85 => (Mix::Long, 6),
            _ => (Mix::Reason, 7),
        };
        mix = part;
        tenant = if special.flood > 0.0 { tenant } else { owner };
    }
    let (mut prompt, mut output) = lengths.of(mix);
    if random.share() < special.outliers {
        prompt = random.between(92_000.0, 120_000.0) as u32;
    }
    let context = engine.max_model_len as u32;
    output = output.min(context / 4);
    prompt = (prompt + special.prefix).min(context - output - 8);
    let max_output = limit(output, context - prompt, random);
    let batch = random.share() < special.batch;
    let first = if batch { BATCH_TTFT } else { TTFT };
    let ttft = first * traffic.stretch + 2.0 * engine.prefill_time(prompt).as_secs_f64();
    let patience = (PATIENCE.0 * traffic.stretch).max(PATIENCE.1 * ttft);
    let prefix = (special.prefix > 0).then_some(Prefix { id: tenant, tokens: special.prefix });
    Request { arrival, prompt, output, max_output, tenant, batch, ttft, patience, prefix }
}

fn tenant(flood: f64, random: &mut Random) -> u64 {
    if random.share() < flood {
        return 0;
    }
    let first = u64::from(flood > 0.0);
    first + random.below((TENANTS - first) as usize) as u64
}

/// The output limit that a client names: one to four times what it will get, rounded up to a usual one.
fn limit(output: u32, room: u32, random: &mut Random) -> Option<u32> {
    if random.share() < UNDECLARED {
        return None;
    }
    let wanted = f64::from(output) * random.between(1.0, 4.0);
    let usual = [256u32, 512, 1024, 2048, 4096, 8192, 16_384];
    let limit = usual.into_iter().find(|&n| f64::from(n) >= wanted).unwrap_or(16_384);
    Some(limit.max(output).min(room))
}
