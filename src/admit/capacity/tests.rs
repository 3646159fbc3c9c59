//! The decision, case by case.

use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::*;
use crate::admit::{Kind, Signals};
use crate::request::{Priority, Tokens};

fn engine(tokens: u64, block: u64) -> Signals {
    Signals { pool: Some(Tokens(tokens)), block, fresh: true, ..Signals::default() }
}

fn candidate(books: &Books, prompt: u64, cap: Option<u64>, (sequences, stream): (u64, bool)) -> Candidate {
    let kind = Kind { tenant: 0, prompt, cap: cap.map(Tokens) };
    books.candidate(0, kind, (sequences, stream, Priority::Interactive))
}

struct Case {
    books: Books,
    signals: Signals,
    now: Instant,
    ids: u64,
}

impl Case {
    fn new(signals: Signals) -> Self {
        let now = Instant::now();
        let mut case = Self { books: Books::new(CapacitySettings::default()), signals, now, ids: 0 };
        case.scrape(|_| ());
        case
    }

    fn scrape(&mut self, change: impl FnOnce(&mut Signals)) {
        change(&mut self.signals);
        self.now += Duration::from_millis(1);
        self.signals.taken = Some(self.now);
        self.books.scraped(&self.signals, self.now);
        self.now += Duration::from_millis(1);
    }

    fn stream(&self, prompt: u64, cap: u64) -> Candidate {
        candidate(&self.books, prompt, Some(cap), (1, true))
    }

    fn decide(&self, candidate: &Candidate) -> Verdict {
        decide(&self.books, &self.signals, self.now, candidate)
    }

    fn admit(&mut self, candidate: Candidate) -> u64 {
        self.ids += 1;
        self.books.admit(self.ids, candidate, self.now);
        self.ids
    }

    /// Admits what fits; how many.
    fn fill(&mut self, candidate: Candidate) -> usize {
        (0..1000)
            .take_while(|_| matches!(self.decide(&candidate), Verdict::Admit(_)) && self.admit(candidate) > 0)
            .count()
    }
}

#[test]
fn with_nothing_in_flight_one_request_is_always_admitted() {
    let mut case = Case::new(engine(100, 10));
    case.scrape(|s| (s.waiting, s.kv_usage, s.preempted) = (9.0, Some(1.0), true));
    let huge = case.stream(1_000_000, 1_000_000);
    assert_eq!(case.decide(&huge), Verdict::Admit(Why::Alone));
    case.admit(huge);
    let tiny = case.stream(1, 1);
    assert!(matches!(case.decide(&tiny), Verdict::Hold { .. }));
}

#[test]
fn the_future_peak_and_not_the_present_use_decides() {
    let mut case = Case::new(engine(2528, 32));
    let each = case.stream(300, 400);
    assert_eq!(case.fill(each), 3, "three times 22 blocks fit into 77, four do not");
    // Near their end the three leave room for one that will be small until then.
    for id in 1..=3 {
        case.books.tokens(id, 340, case.now);
    }
    assert!(matches!(case.decide(&each), Verdict::Hold { gate: HeldBy::Kv, needed: 22, .. }));
    for id in 1..=3 {
        case.books.tokens(id, 355, case.now);
    }
    assert_eq!(case.decide(&each), Verdict::Admit(Why::Fits));
}

#[test]
fn a_plain_answer_that_outlives_its_draw_holds_what_it_has_become() {
    let mut case = Case::new(engine(100_000, 10));
    let plain = |case: &Case| candidate(&case.books, 100, None, (1, false));
    for tokens in (1..=200).map(|n| n * 5) {
        let kind = plain(&case).kind;
        case.books.predictor.learn(&kind, Tokens(tokens));
    }
    let drawn = plain(&case);
    assert!(drawn.doubt && drawn.plan < 20, "draw 0 is one of the shortest: {}", drawn.plan);
    let id = case.admit(drawn);
    let job = case.books.job(&case.books.flights[&id], case.now, false);
    assert!(job.most >= 900, "while no pace is known it may be one of the longest: {job:?}");
    for _ in 0..3 {
        case.now += Duration::from_millis(2500);
        case.scrape(|s| (s.running, s.generation_rate) = (1.0, Some(100.0)));
    }
    let job = case.books.job(&case.books.flights[&id], case.now, false);
    assert!(job.tokens >= 700 && job.end > 10, "some 700 tokens must have come, and more will: {job:?}");
}

#[test]
fn an_unknown_pool_is_limited_by_number_and_by_what_waits_in_the_engine() {
    let mut case = Case::new(Signals { fresh: true, ..Signals::default() });
    let each = case.stream(100_000, 1000);
    assert_eq!(case.fill(each), 64);
    let mut case = Case::new(Signals { fresh: true, ..Signals::default() });
    (0..10).for_each(|_| _ = case.admit(each));
    (1..=9).for_each(|id| assert!(case.books.first_token(id, case.now)));
    case.scrape(|s| (s.running, s.waiting) = (8.0, 2.0));
    case.now += Duration::from_secs(1);
    case.scrape(|s| (s.running, s.waiting) = (9.0, 1.0));
    assert!(matches!(case.decide(&each), Verdict::Hold { .. }));
    case.scrape(|s| (s.running, s.waiting) = (10.0, 0.0));
    assert_eq!(case.decide(&each), Verdict::Admit(Why::PoolUnknown));
}

#[test]
fn stale_signals_hold_nothing() {
    let mut case = Case::new(engine(1_000_000, 16));
    let each = case.stream(100, 100);
    case.admit(each);
    case.scrape(|s| (s.running, s.waiting, s.kv_usage) = (1.0, 5.0, Some(1.0)));
    case.now += Duration::from_secs(1);
    case.scrape(|_| ());
    assert!(matches!(case.decide(&each), Verdict::Hold { gate: HeldBy::Seats, .. }));
    case.signals.fresh = false;
    assert_eq!(case.decide(&each), Verdict::Admit(Why::Fits));
}

#[test]
fn an_engine_that_holds_clearly_less_than_the_books_say_has_room() {
    let mut case = Case::new(engine(10_000, 10));
    let each = case.stream(900, 100);
    assert_eq!(case.fill(each), 9);
    (1..=9).for_each(|id| assert!(case.books.first_token(id, case.now)));
    // All of them share a prefix of 800 tokens: 80 blocks once, and 11 for each.
    for _ in 0..8 {
        case.scrape(|s| (s.running, s.kv_usage) = (9.0, Some(0.179)));
    }
    let more = case.fill(each);
    assert!(
        (4..=7).contains(&more),
        "what is in flight leaves room by its sharing, the new ones count in full: {more}"
    );
}

#[test]
fn what_was_promised_to_those_in_flight_is_not_given_away_because_the_engine_looks_idle() {
    let mut case = Case::new(engine(2528, 32));
    let each = case.stream(300, 400);
    case.fill(each);
    (1..=3).for_each(|id| assert!(case.books.first_token(id, case.now)));
    case.scrape(|s| (s.running, s.kv_usage) = (3.0, Some(30.0 / 79.0)));
    assert!(matches!(case.decide(&each), Verdict::Hold { .. }));
}

#[test]
fn the_sequences_of_one_request_all_count() {
    let mut case = Case::new(engine(1000, 10));
    case.admit(case.stream(10, 200));
    let four = candidate(&case.books, 100, Some(100), (4, true));
    assert!(matches!(case.decide(&four), Verdict::Admit(_)), "4 x 20 + 11 of 98 blocks");
    let four = candidate(&case.books, 100, Some(160), (4, true));
    assert!(matches!(case.decide(&four), Verdict::Hold { needed: 104, .. }));
}

#[test]
fn with_several_ranks_one_sequence_must_fit_into_one() {
    let mut case = Case::new(Signals { ranks: 2, ..engine(2000, 10) });
    case.admit(case.stream(10, 10));
    assert!(matches!(case.decide(&case.stream(900, 200)), Verdict::Hold { .. }));
    assert!(matches!(case.decide(&case.stream(700, 200)), Verdict::Admit(_)));
}

#[test]
fn a_plain_answer_without_a_pace_holds_its_whole_claim() {
    let mut case = Case::new(engine(2528, 32));
    let plain = candidate(&case.books, 300, Some(400), (1, false));
    assert_eq!(case.fill(plain), 3);
    case.now += Duration::from_secs(1000);
    assert!(matches!(case.decide(&plain), Verdict::Hold { .. }));
    // The engine's own counter shows the pace, over a time in which nobody was in prefill: they must be
    // nearly done.
    case.scrape(|s| (s.running, s.generation_rate) = (3.0, Some(85.0)));
    case.scrape(|_| ());
    assert!(matches!(case.decide(&plain), Verdict::Admit(_)));
}

#[test]
fn what_comes_at_once_says_nothing_of_the_pace() {
    let mut case = Case::new(engine(2528, 32));
    let (plain, stream) =
        (candidate(&case.books, 300, None, (1, false)), candidate(&case.books, 300, None, (1, true)));
    let (plain, stream) = (case.admit(plain), case.admit(stream));
    for token in 1..=100 {
        case.now += Duration::from_millis(30);
        case.books.tokens(stream, token, case.now);
    }
    let known = (case.books.pace.step(case.now), case.books.pace.lead());
    case.books.first_token(plain, case.now);
    case.now += Duration::from_micros(5);
    case.books.tokens(plain, 400, case.now);
    case.books.corrected(stream, 400, case.now);
    assert_eq!((case.books.pace.step(case.now), case.books.pace.lead()), known);
    assert_eq!(case.books.flights[&stream].generated, 400);
}

#[test]
fn the_clock_may_stand_still_or_go_back() {
    let mut case = Case::new(engine(2528, 32));
    let each = candidate(&case.books, 300, None, (1, false));
    case.admit(each);
    case.scrape(|s| (s.running, s.generation_rate) = (1.0, Some(30.0)));
    let before = case.now.checked_sub(Duration::from_secs(1)).unwrap_or(case.now);
    let _ = decide(&case.books, &case.signals, before, &each);
    case.books.first_token(1, before);
    case.books.tokens(1, 10, before);
    case.books.completed(1, 10, before);
    assert!(case.books.leave(1, before) && !case.books.leave(1, before));
}

proptest! {
    #[test]
    fn no_numbers_make_it_panic(
        pool in proptest::option::of(any::<u64>()), block in 0u64..5000, ranks in any::<u32>(), waiting in any::<f64>(),
        running in any::<f64>(), usage in proptest::option::of(any::<f64>()), rate in proptest::option::of(any::<f64>()),
        asks in proptest::collection::vec((0u64..u64::MAX / 4, proptest::option::of(any::<u64>()), 1u64..20, any::<bool>(), any::<u64>()), 0..12),
    ) {
        let signals = Signals {
            pool: pool.map(Tokens), block, ranks, waiting, running, kv_usage: usage, generation_rate: rate,
            fresh: true, ..Signals::default()
        };
        let mut case = Case::new(signals);
        for (prompt, cap, sequences, stream, tokens) in asks {
            let candidate = candidate(&case.books, prompt, cap, (sequences, stream));
            let _ = case.decide(&candidate);
            let id = case.admit(candidate);
            case.books.tokens(id, tokens, case.now);
            case.scrape(|s| s.preempted = !s.preempted);
            let _ = case.decide(&candidate);
            let _ = Outlook::new(&case.books, &case.signals, case.now, true).earliest(&candidate, 0);
            case.books.completed(id, tokens, case.now);
            if tokens % 3 == 0 {
                prop_assert!(case.books.leave(id, case.now) && !case.books.leave(id, case.now));
            }
            let each = case.books.flights.values().map(|flight| flight.asked.reserved());
            prop_assert_eq!(case.books.reserved(), each.sum());
        }
    }
}
