//! The admission decision at the size of a busy engine: 1,000 in flight, 1,000 queued.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use kvgate::admit::{
    Action, Admission, Arrival, Ask, Books, Candidate, CapacitySettings, Kind, Outlook, QueueSettings,
    Settings, Signals, decide,
};
use kvgate::request::{Priority, Tokens};
use tokio::time::Instant;

const BLOCK: u64 = 16;
/// Events of each kind that are timed.
const EVENTS: usize = 20_000;

/// A pool that 1,000 requests of some 900 tokens nearly fill.
fn signals(now: Instant) -> Signals {
    Signals {
        pool: Some(Tokens(1_000_000)),
        block: BLOCK,
        fresh: true,
        taken: Some(now),
        ..Signals::default()
    }
}

/// 1,000 streams in flight, each somewhere on its way.
fn books(signals: &Signals, now: Instant) -> Books {
    let mut books = Books::new(CapacitySettings::default());
    books.scraped(signals, now);
    for id in 0..1000u64 {
        let candidate = asked(&books, id);
        books.admit(id, candidate, now);
        books.tokens(id, id * 7 % 300, now + Duration::from_millis(id));
    }
    books
}

fn asked(books: &Books, i: u64) -> Candidate {
    let cap = Some(Tokens(200 + i * 37 % 400));
    let kind = Kind { tenant: i % 8, prompt: 300 + i * 131 % 700, cap };
    books.candidate(i, kind, (1, true, Priority::Interactive))
}

fn ask(i: u64) -> Ask {
    let prompt = Tokens(300 + i * 131 % 700);
    Ask {
        prompt,
        longest: prompt,
        max_output: Some(Tokens(200 + i * 37 % 400)),
        sequences: 1,
        stream: true,
        body_bytes: 4000,
        max_wait: Duration::from_secs(600),
        ttft: None,
        tenant: 0,
        priority: Priority::Interactive,
        trail: None,
    }
}

fn decisions(c: &mut Criterion) {
    let now = Instant::now();
    let signals = signals(now);
    let books = books(&signals, now);
    let candidate = asked(&books, 5);
    c.bench_function("decide, 1000 in flight", |b| {
        b.iter(|| decide(black_box(&books), &signals, now, black_box(&candidate)));
    });
    let outlook = Outlook::new(&books, &signals, now, false);
    c.bench_function("decide again in the same moment, 1000 in flight", |b| {
        b.iter(|| black_box(&outlook).decide(black_box(&candidate), 0));
    });
    c.bench_function("a token, 1000 in flight", |b| {
        let mut books = books.clone();
        let mut total = 1000;
        b.iter(|| {
            total += 1;
            books.tokens(black_box(500), total, now);
        });
    });
}

fn queue(c: &mut Criterion) {
    let now = Instant::now();
    let queue = QueueSettings { requests: 1001, ..QueueSettings::default() };
    let mut full = Admission::new(&Settings { queue, ..Settings::default() }, 1);
    full.signals(signals(now), now);
    for i in 0..3000 {
        full.arrive(i, &ask(i), now);
        if i < 1000 {
            full.books.first_token(i, now);
            full.books.tokens(i, 2 + i * 7 % 190, now + Duration::from_secs(4));
        }
        if full.queued() == 1000 {
            break;
        }
    }
    let (in_flight, queued) = (full.books.len(), full.queued());
    let later = now + Duration::from_secs(10);
    full.advance(later);
    c.bench_function(&format!("advance, {in_flight} in flight and {queued} queued"), |b| {
        b.iter(|| black_box(&mut full).advance(later));
    });
    full.arrive(9999, &ask(1), later);
    full.leave(9999, later);
    c.bench_function("an arrival that queues, forecast kept", |b| {
        let arrive = |mut full: Admission| full.arrive(9999, black_box(&ask(1)), later);
        b.iter_batched(|| full.clone(), arrive, BatchSize::LargeInput);
    });
    let much_later = later + Duration::from_secs(5);
    c.bench_function("an arrival that queues, forecast played anew", |b| {
        let arrive = |mut full: Admission| full.arrive(9999, black_box(&ask(1)), much_later);
        b.iter_batched(|| full.clone(), arrive, BatchSize::LargeInput);
    });
}

/// What one event costs, under the gate's lock, while as many are in flight and as many queued: an arrival that
/// queues, and an end that lets the next one in. Prints the middle, 99 % and the worst.
fn events(size: u64) {
    let mut now = Instant::now();
    let queue = QueueSettings { requests: size as usize + 1, ..QueueSettings::default() };
    let mut full = Admission::new(&Settings { queue, ..Settings::default() }, 1);
    let pool = Some(Tokens(size * 900));
    full.signals(Signals { pool, ..signals(now) }, now);
    let (mut next, mut flying) = (0, VecDeque::new());
    while full.queued() < size as usize && next < 10 * size {
        if full.arrive(next, &ask(next), now) == Arrival::Admitted {
            full.first_token(next, now);
            flying.push_back(next);
        }
        next += 1;
    }
    let (mut arrivals, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..EVENTS {
        now += Duration::from_micros(500);
        let began = std::time::Instant::now();
        let arrival = full.arrive(next, black_box(&ask(next)), now);
        let mut went = full.advance(now);
        arrivals.push(began.elapsed());
        if arrival == Arrival::Admitted {
            went.push(Action::Admit { id: next, waited: Duration::ZERO });
        }
        next += 1;
        if let Some(id) = flying.pop_front() {
            full.books.tokens(id, 200, now);
            let began = std::time::Instant::now();
            full.completed(Some(id), (ask(id).kind(), 1), Tokens(200 + id * 37 % 400), now);
            full.leave(id, now);
            went.extend(full.advance(now));
            ends.push(began.elapsed());
        }
        for action in went {
            if let Action::Admit { id, .. } = action {
                full.first_token(id, now);
                flying.push_back(id);
            }
        }
    }
    for (what, mut took) in [("an arrival", arrivals), ("an end", ends)] {
        took.sort_unstable();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        println!(
            "{what:12} {:6} in flight {:6} queued   p50 {:8.1} µs   p99 {:8.1} µs   worst {:8.1} µs",
            full.books.len(),
            full.queued(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    let made = |_| {
        let began = std::time::Instant::now();
        black_box(Outlook::new(black_box(&full.books), &signals(now), now, false));
        began.elapsed()
    };
    let mut took: Vec<Duration> = (0..100).map(made).collect();
    took.sort_unstable();
    println!("an outlook made anew: {:.1} µs", took[50].as_secs_f64() * 1e6);
}

fn percentiles(_: &mut Criterion) {
    [100, 1_000, 10_000].into_iter().for_each(events);
}

criterion_group!(benches, percentiles, decisions, queue);
criterion_main!(benches);
