//! What a course of traffic was worth: to the clients, to the tenants, and what it cost the engine.

use std::collections::BTreeMap;

use super::outcome::{Attempt, End, Outcome};
use super::policy::ITL;
use super::workload::{Request, TENANTS};

/// Mean seconds between two tokens of an answer that is worth something, where nobody waits for it.
const BATCH_ITL: f64 = 1.0;
/// Seconds after the first attempt at which a later one is too late to be worth anything.
const LATE: f64 = 10.0;

/// The figures of one course; shares are 0–1, times are seconds.
#[derive(Debug, Clone, Default)]
pub struct Score {
    /// Clients per second whose answer kept its targets.
    pub good: f64,
    /// Prompt and output tokens per second of these.
    pub good_tokens: f64,
    /// Share of the clients whose answer kept its targets.
    pub attained: f64,
    /// The same among the attempts that the engine got.
    pub admitted_attained: f64,
    /// The same for the longest tenth of the prompts.
    pub long_attained: f64,
    /// Share of the clients that were turned away, that left, whose engine died.
    pub refused: f64,
    pub left: f64,
    pub failed: f64,
    /// Share of the attempts that had to queue.
    pub queued: f64,
    /// Preemptions for each thousand attempts that the engine got.
    pub preemptions: f64,
    /// Share of the engine's computed tokens that were for nothing.
    pub waste: f64,
    /// Time to the first token: median and 99th percentile.
    pub ttft_half: f64,
    pub ttft_most: f64,
    /// 99th percentile of the gaps between tokens.
    pub gap_most: f64,
    /// Means of the gaps over an answer: median and 99th percentile.
    pub itl_half: f64,
    pub itl_most: f64,
    /// Answers that ended, per second.
    pub done: f64,
    /// Engine deaths.
    pub deaths: f64,
    /// How evenly tenants got what they asked for, up to an equal share (Jain's index).
    pub jain: f64,
    /// Share of tenant 0's clients, and of the others', whose answer kept its targets.
    pub flooder: f64,
    pub victims: f64,
    /// The same among clients that wait, and among batch work.
    pub interactive: f64,
    pub batch: f64,
    /// What the gateway's queue waited for, and why it turned away: how often.
    pub reasons: BTreeMap<&'static str, u64>,
    /// Seconds of this machine's time that it took to play.
    pub cost: f64,
}

/// One attempt that ended with an answer.
struct Answer {
    ttft: f64,
    itl: f64,
    good: bool,
}

fn answer(attempt: &Attempt, request: &Request, stretch: f64) -> Answer {
    let ttft = attempt.first - attempt.arrival;
    let gaps = f64::from(attempt.tokens.saturating_sub(1).max(1));
    let itl = (attempt.last - attempt.first) / gaps;
    let target = if request.batch { BATCH_ITL } else { ITL };
    let late = attempt.arrival - request.arrival > LATE * stretch;
    Answer { ttft, itl, good: ttft <= request.ttft && itl <= target * stretch && !late }
}

/// Why an attempt that the engine got was worth nothing.
fn missed(attempt: &Attempt, request: &Request, stretch: f64) -> Option<&'static str> {
    match attempt.end {
        End::Done if answer(attempt, request, stretch).good => None,
        End::Done if attempt.first - attempt.arrival > request.ttft => Some("missed: first token late"),
        End::Done => Some("missed: slow between tokens"),
        End::Left => Some("missed: client left"),
        End::Failed => Some("missed: engine died"),
        End::Open | End::Refused => Some("missed: not ended"),
    }
}

/// The middle and the top of a sample: its value at this share, 0 where it is empty.
pub fn quantile(sample: &mut [f64], share: f64) -> f64 {
    sample.sort_unstable_by(f64::total_cmp);
    let at = (sample.len().saturating_sub(1) as f64 * share).round() as usize;
    sample.get(at).copied().unwrap_or(0.0)
}

fn share<T>(of: &[T], holds: impl Fn(&T) -> bool) -> f64 {
    of.iter().filter(|x| holds(x)).count() as f64 / of.len().max(1) as f64
}

/// The clients that are judged: which, how the last attempt of each ended, and whether it was good.
struct Judged<'a> {
    request: &'a Request,
    last: End,
    good: bool,
}

/// Judges a course, beginning at `warmup`.
pub fn judge(mut outcome: Outcome, (warmup, stretch): (f64, f64)) -> Score {
    let window = |at: f64| at >= warmup && at <= outcome.horizon;
    let blank = |request| Judged { request, last: End::Open, good: false };
    let mut clients: Vec<_> = outcome.requests.iter().map(blank).collect();
    let (mut ttfts, mut itls) = (Vec::new(), Vec::new());
    let (mut sent, mut sent_good, mut all, mut queued) = (0u64, 0u64, 0u64, 0u64);
    for attempt in &outcome.attempts {
        let client = &mut clients[attempt.client];
        if !window(client.request.arrival) || attempt.end == End::Open && attempt.tokens == 0 && !attempt.sent
        {
            continue;
        }
        all += 1;
        queued += u64::from(attempt.queued);
        sent += u64::from(attempt.sent);
        client.last = attempt.end;
        if attempt.sent
            && let Some(why) = missed(attempt, client.request, stretch)
        {
            *outcome.reasons.entry(why).or_default() += 1;
        }
        if attempt.end == End::Done {
            let answer = answer(attempt, client.request, stretch);
            ttfts.push(answer.ttft);
            itls.push(answer.itl);
            client.good |= answer.good;
            sent_good += u64::from(answer.good);
        }
    }
    clients.retain(|client| window(client.request.arrival));
    let span = outcome.horizon - warmup;
    let good = || clients.iter().filter(|c| c.good);
    let tokens: u64 = good().map(|c| u64::from(c.request.prompt + c.request.output)).sum();
    let mut prompts: Vec<f64> = clients.iter().map(|c| f64::from(c.request.prompt)).collect();
    let long = quantile(&mut prompts, 0.9);
    let among = |which: &dyn Fn(&Request) -> bool| {
        let these: Vec<_> = clients.iter().filter(|c| which(c.request)).collect();
        share(&these, |c| c.good)
    };
    Score {
        good: good().count() as f64 / span,
        good_tokens: tokens as f64 / span,
        attained: share(&clients, |c| c.good),
        admitted_attained: sent_good as f64 / sent.max(1) as f64,
        long_attained: among(&|r| f64::from(r.prompt) >= long),
        refused: share(&clients, |c| c.last == End::Refused),
        left: share(&clients, |c| c.last == End::Left),
        failed: share(&clients, |c| matches!(c.last, End::Failed | End::Open)),
        queued: queued as f64 / all.max(1) as f64,
        preemptions: 1000.0 * outcome.preemptions as f64 / sent.max(1) as f64,
        waste: outcome.wasted as f64 / outcome.computed.max(1) as f64,
        ttft_half: quantile(&mut ttfts, 0.5),
        ttft_most: quantile(&mut ttfts, 0.99),
        gap_most: quantile(&mut outcome.gaps, 0.99),
        done: itls.len() as f64 / span,
        itl_half: quantile(&mut itls, 0.5),
        itl_most: quantile(&mut itls, 0.99),
        deaths: f64::from(outcome.deaths),
        jain: jain(&clients),
        flooder: among(&|r| r.tenant == 0),
        victims: among(&|r| r.tenant != 0),
        interactive: among(&|r| !r.batch),
        batch: among(&|r| r.batch),
        reasons: std::mem::take(&mut outcome.reasons),
        cost: 0.0,
    }
}

/// Jain's index over what each tenant got of its fair share.
fn jain(clients: &[Judged]) -> f64 {
    let count = |tenant, good: bool| {
        clients.iter().filter(|c| c.request.tenant == tenant && (c.good || !good)).count() as f64
    };
    let asked: Vec<f64> = (0..TENANTS).map(|t| count(t, false)).collect();
    let got: Vec<f64> = (0..TENANTS).map(|t| count(t, true)).collect();
    let fair = fair(&asked, got.iter().sum());
    let shares: Vec<f64> =
        got.iter().zip(&fair).filter(|(_, fair)| **fair > 0.0).map(|(g, f)| g / f).collect();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    if squares > 0.0 { shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * squares) } else { 0.0 }
}

/// The max-min fair shares of `total` among those who asked for so much.
fn fair(asked: &[f64], mut total: f64) -> Vec<f64> {
    let mut shares = vec![0.0; asked.len()];
    let mut open: Vec<usize> = (0..asked.len()).filter(|&i| asked[i] > 0.0).collect();
    while !open.is_empty() && total > 1e-9 {
        let share = total / open.len() as f64;
        let (small, large): (Vec<usize>, Vec<usize>) = open.iter().partition(|&&i| asked[i] <= share);
        let given = if small.is_empty() { &large } else { &small };
        for &i in given {
            shares[i] = asked[i].min(share);
            total -= shares[i];
        }
        open = if small.is_empty() { Vec::new() } else { large };
    }
    shares
}
