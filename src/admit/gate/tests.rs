//! The mechanism: permits, wakers, deadlines, deaths.

use std::time::Duration;

use proptest::prelude::*;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::admit::{Policy, Unavailable};
use crate::request::Priority;

const SECOND: Duration = Duration::from_secs(1);

fn signals() -> Signals {
    Signals {
        pool: Some(Tokens(1000)),
        block: 10,
        fresh: true,
        taken: Some(Instant::now()),
        ..Signals::default()
    }
}

fn gate() -> Gate {
    let gate = Gate::new(&Settings::default(), Modes::default());
    gate.signals(signals());
    gate
}

fn ask(prompt: u64, wait: Duration) -> Ask {
    Ask {
        prompt: Tokens(prompt),
        longest: Tokens(prompt),
        max_output: Some(Tokens(100)),
        sequences: 1,
        stream: true,
        body_bytes: 1000,
        max_wait: wait,
        ttft: None,
        tenant: 0,
        priority: Priority::Interactive,
        trail: None,
    }
}

fn spawn(gate: &Gate, ask: Ask) -> JoinHandle<Result<Permit, Rejection>> {
    let gate = gate.clone();
    tokio::spawn(async move { gate.admit(ask).await })
}

/// Starts one and lets it reach the queue.
async fn queued(gate: &Gate, ask: Ask) -> JoinHandle<Result<Permit, Rejection>> {
    let before = gate.state().queued;
    let task = spawn(gate, ask);
    while gate.state().queued == before && !task.is_finished() {
        yield_now().await;
    }
    task
}

#[tokio::test(start_paused = true)]
async fn a_dropped_permit_lets_the_next_in() {
    let gate = gate();
    let first = gate.admit(ask(800, SECOND)).await.unwrap();
    assert_eq!((first.reserved(), first.waited()), (Tokens(900), Duration::ZERO));
    let next = queued(&gate, ask(800, 10 * SECOND)).await;
    advance(3 * SECOND).await;
    assert!(!next.is_finished());
    drop(first);
    let next = next.await.unwrap().unwrap();
    assert_eq!(next.waited(), 3 * SECOND);
    drop(next);
    let state = gate.state();
    assert_eq!(
        (state.in_flight, state.queued, state.queued_bytes, state.reserved_tokens),
        (0, 0, 0, Tokens(0))
    );
}

#[tokio::test(start_paused = true)]
async fn the_places_of_answers_that_broke_are_offered_once_the_engine_is_known_to_live() {
    let gate = gate();
    let broken = gate.admit(ask(800, SECOND)).await.unwrap();
    let next = queued(&gate, ask(800, 60 * SECOND)).await;
    broken.suspect();
    drop(broken);
    let later = queued(&gate, ask(1, 60 * SECOND)).await;
    gate.tick();
    yield_now().await;
    assert_eq!((gate.state().in_flight, gate.state().queued), (0, 2), "nobody goes to what may be dead");
    advance(SECOND / 2).await;
    gate.signals(signals());
    assert!(next.await.unwrap().is_ok(), "a scrape shows that it lives");
    assert!(later.await.unwrap().is_ok());
    // Without any scrape it is two seconds.
    let broken = gate.admit(ask(800, SECOND)).await.unwrap();
    broken.suspect();
    drop(broken);
    let next = queued(&gate, ask(800, 60 * SECOND)).await;
    advance(3 * SECOND).await;
    gate.tick();
    assert!(next.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_kept_even_if_nobody_ticks() {
    let gate = gate();
    let _first = gate.admit(ask(800, SECOND)).await.unwrap();
    let begin = Instant::now();
    let late = gate.admit(ask(800, 7 * SECOND)).await.unwrap_err();
    assert_eq!(begin.elapsed(), 7 * SECOND);
    assert!(matches!(late, Rejection::DeadlinePassed { waited, .. } if waited == 7 * SECOND));
    let told = late.retry_after().unwrap();
    assert!(told >= SECOND && told <= 60 * SECOND);
    assert_eq!(gate.state().queued, 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_future_gives_its_place_back_at_once() {
    let gate = gate();
    let first = gate.admit(ask(800, SECOND)).await.unwrap();
    let gone = queued(&gate, ask(800, 60 * SECOND)).await;
    let second = queued(&gate, ask(700, 60 * SECOND)).await;
    assert_eq!(gate.state().queued, 2);
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    assert_eq!(gate.state().queued, 1);
    drop(first);
    assert!(second.await.unwrap().is_ok());
    assert_eq!(gate.state().in_flight, 0, "its permit went with the task");
}

#[tokio::test(start_paused = true)]
async fn a_future_dropped_after_it_was_let_in_returns_its_permit() {
    let gate = gate();
    let first = gate.admit(ask(800, SECOND)).await.unwrap();
    let next = queued(&gate, ask(800, 60 * SECOND)).await;
    drop(first);
    assert_eq!(gate.state().in_flight, 1, "it is let in, and has not run yet");
    next.abort();
    let _ = next.await;
    assert_eq!(gate.state().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_even_where_a_later_one_would_fit() {
    let gate = gate();
    let first = gate.admit(ask(600, SECOND)).await.unwrap();
    let large = queued(&gate, ask(800, 60 * SECOND)).await;
    let small = queued(&gate, ask(10, 60 * SECOND)).await;
    gate.tick();
    assert_eq!(gate.state().queued, 2);
    assert_eq!(gate.state().held_by, Some("kv"));
    drop(first);
    let large = large.await.unwrap().unwrap();
    assert!(!small.is_finished());
    drop(large);
    assert!(small.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_in_requests_and_bytes() {
    let mut settings = Settings::default();
    (settings.queue.requests, settings.queue.bytes) = (3, 2500);
    let gate = Gate::new(&settings, Modes::default());
    gate.signals(signals());
    let _first = gate.admit(ask(800, SECOND)).await.unwrap();
    let mut waiting =
        vec![queued(&gate, ask(800, 60 * SECOND)).await, queued(&gate, ask(800, 60 * SECOND)).await];
    let full = gate.admit(ask(800, 60 * SECOND)).await.unwrap_err();
    assert!(matches!(full, Rejection::QueueFull { queued: 2, limit: 3, .. }), "by bytes");
    waiting.push(queued(&gate, Ask { body_bytes: 1, ..ask(800, 60 * SECOND) }).await);
    let full = gate.admit(Ask { body_bytes: 1, ..ask(800, 60 * SECOND) }).await.unwrap_err();
    assert!(matches!(full, Rejection::QueueFull { queued: 3, .. }), "by requests");
    assert_eq!(gate.state().queued_bytes, 2001);
}

#[tokio::test(start_paused = true)]
async fn when_the_engine_dies_all_that_wait_are_told_at_once_and_dead_permits_return_nothing() {
    let gate = gate();
    let first = gate.admit(ask(800, SECOND)).await.unwrap();
    let waiting = [queued(&gate, ask(800, 60 * SECOND)).await, queued(&gate, ask(800, 60 * SECOND)).await];
    gate.engine_gone(Some(40 * SECOND));
    for task in waiting {
        let why = task.await.unwrap().unwrap_err();
        assert_eq!(why, Rejection::EngineUnavailable { retry_after: 40 * SECOND, why: Unavailable::Loading });
    }
    assert!(gate.admit(ask(1, SECOND)).await.is_err());
    gate.signals(Signals { incarnation: 1, ..signals() });
    let new = gate.admit(ask(800, SECOND)).await.unwrap();
    first.tokens(Tokens(50));
    drop(first);
    assert_eq!((gate.state().in_flight, gate.state().reserved_tokens), (1, Tokens(900)));
    drop(new);
    assert_eq!(gate.state().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_not_ready_is_said_so_and_nothing_waits_for_it() {
    let gate = gate();
    gate.signals(Signals { state_ready: false, retry_after: Some(300 * SECOND), ..signals() });
    let why = gate.admit(ask(1, 60 * SECOND)).await.unwrap_err();
    assert_eq!((why.reason(), why.retry_after()), ("engine_unavailable", Some(60 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn before_the_first_scrape_requests_pass() {
    let gate = Gate::new(&Settings::default(), Modes::default());
    let permits = [gate.admit(ask(1, SECOND)).await.unwrap(), gate.admit(ask(1, SECOND)).await.unwrap()];
    gate.signals(Signals { incarnation: 7, ..signals() });
    assert_eq!(gate.state().in_flight, 2, "the first look at an engine is no new life");
    drop(permits);
}

#[tokio::test(start_paused = true)]
async fn draining_admits_nobody_and_lets_those_in_flight_end() {
    let gate = gate();
    let first = gate.admit(ask(800, SECOND)).await.unwrap();
    let waiting = queued(&gate, ask(800, 60 * SECOND)).await;
    gate.drain();
    assert!(matches!(waiting.await.unwrap(), Err(Rejection::Draining { .. })));
    assert!(matches!(gate.admit(ask(1, SECOND)).await, Err(Rejection::Draining { .. })));
    assert_eq!(gate.state().in_flight, 1);
    drop(first);
    assert_eq!(gate.state().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn time_alone_lets_in_as_those_in_flight_near_their_end() {
    let gate = gate();
    tokio::spawn(gate.clone().run());
    let first = gate.admit(ask(700, SECOND)).await.unwrap();
    let next = queued(&gate, ask(150, 60 * SECOND)).await;
    for total in 1..=95 {
        sleep(Duration::from_millis(20)).await;
        first.tokens(Tokens(total));
    }
    sleep(Duration::from_millis(60)).await;
    assert!(next.is_finished(), "{gate:?}: 80 and 16 blocks fit into 98 where the first has 5 tokens to go");
}

#[tokio::test(start_paused = true)]
async fn who_cannot_make_it_is_told_at_once_where_the_pace_is_known_and_as_soon_as_it_becomes_known() {
    let gate = gate();
    tokio::spawn(gate.clone().run());
    let first = gate.admit(ask(800, SECOND)).await.unwrap();
    let begin = Instant::now();
    let blind = queued(&gate, ask(800, 10 * SECOND)).await;
    for total in 1..=10 {
        sleep(Duration::from_millis(500)).await;
        first.tokens(Tokens(total));
    }
    // 90 tokens to go at half a second each.
    let why = blind.await.unwrap().unwrap_err();
    assert!(matches!(why, Rejection::WaitTooLong { .. }) && begin.elapsed() < 6 * SECOND, "{why}");
    let begin = Instant::now();
    let two = [gate.admit(ask(800, 10 * SECOND)).await, gate.admit(ask(800, 10 * SECOND)).await];
    assert_eq!(begin.elapsed(), Duration::ZERO);
    // The one evicted before was told the first place.
    for why in two.map(Result::unwrap_err) {
        assert_eq!(why.retry_after(), Some(60 * SECOND));
    }
    let told = why.retry_after().unwrap().as_secs();
    assert!((38..=52).contains(&told), "{told}");
}

#[tokio::test(start_paused = true)]
async fn in_shadow_all_pass_and_the_permit_knows_what_would_have_been() {
    let modes = Modes::default();
    modes.set(Rule::Capacity, Mode::Shadow);
    let mut settings = Settings::default();
    settings.queue.requests = 1;
    let gate = Gate::new(&settings, modes);
    gate.signals(signals());
    let fits = gate.admit(ask(800, SECOND)).await.unwrap();
    let would_wait = gate.admit(ask(800, 5 * SECOND)).await.unwrap();
    let would_not = gate.admit(ask(800, SECOND)).await.unwrap();
    assert_eq!((fits.would_refuse(), would_wait.would_refuse()), (None, None));
    assert_eq!(would_not.would_refuse(), Some("engine_saturated"));
    assert_eq!(gate.state().in_flight, 1, "the counterfactual books hold what would have been let in");
    advance(6 * SECOND).await;
    gate.tick();
    assert_eq!(would_wait.would_refuse(), Some("engine_saturated"));
    drop((fits, would_wait, would_not));
    assert_eq!((gate.state().in_flight, gate.state().queued), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_panic_button_lets_all_go() {
    for mode in [Mode::Off, Mode::Shadow] {
        let modes = Modes::default();
        let gate = Gate::new(&Settings::default(), modes.clone());
        gate.signals(signals());
        tokio::spawn(gate.clone().run());
        let first = gate.admit(ask(800, SECOND)).await.unwrap();
        let waiting = queued(&gate, ask(800, 60 * SECOND)).await;
        modes.set_all(mode);
        let begin = Instant::now();
        let second = waiting.await.unwrap().unwrap();
        assert!(begin.elapsed() <= 2 * TICK);
        let third = gate.admit(ask(800, SECOND)).await.unwrap();
        drop((first, second, third));
        assert_eq!((gate.state().in_flight, gate.state().queued), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_lets_in_whom_it_makes_room_for_and_sends_nobody_away() {
    let gate = gate();
    let mut settings = Settings::default();
    let _first = gate.admit(ask(500, SECOND)).await.unwrap();
    let next = queued(&gate, ask(380, 60 * SECOND)).await;
    let last = queued(&gate, ask(900, 60 * SECOND)).await;
    (settings.queue.requests, settings.capacity.pool_share) = (1, 0.9);
    gate.reload(&settings);
    assert_eq!((gate.state().in_flight, gate.state().queued), (1, 2), "both keep their places");
    let refused = gate.admit(ask(1, 60 * SECOND)).await.unwrap_err();
    assert!(matches!(refused, Rejection::QueueFull { .. }), "{refused:?}");
    settings.capacity.policy = Policy::None;
    gate.reload(&settings);
    assert!(next.await.unwrap().is_ok() && last.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_a_death_taught_can_be_forgotten() {
    let gate = gate();
    let killer = gate.admit(ask(800, SECOND)).await.unwrap();
    gate.engine_gone(None);
    drop(killer);
    assert_eq!(gate.guard(), Some(Tokens(400)));
    gate.forget_guard();
    assert_eq!((gate.guard(), gate.state().guard_tokens), (None, None));
    gate.signals(Signals { incarnation: 1, ..signals() });
    let many: Vec<_> = (0..6).map(|_| spawn(&gate, ask(10, 60 * SECOND))).collect();
    let mut permits = Vec::new();
    for task in many {
        permits.push(task.await.unwrap().unwrap());
    }
    permits.iter().for_each(Permit::first_token);
    gate.signals(Signals { kv_usage: Some(0.95), waiting: 3.0, incarnation: 1, ..signals() });
    gate.engine_gone(None);
    assert_eq!(gate.state().cut_to, Some(4));
    gate.forget_cut();
    assert_eq!(gate.state().cut_to, None);
}

/// What a test does next.
#[derive(Debug, Clone)]
enum Act {
    Ask(u64, u64),
    Finish(usize),
    Cancel(usize),
    Tokens(usize, u64),
    Gone,
    Ready(u64),
    Mode(u8),
    Reload(usize, u64, f64, u8),
    Wait(u64),
    Tick,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (1u64..900, 0u64..20).prop_map(|(prompt, wait)| Act::Ask(prompt, wait)),
        5 => any::<usize>().prop_map(Act::Finish),
        2 => any::<usize>().prop_map(Act::Cancel),
        3 => (any::<usize>(), 0u64..200).prop_map(|(which, total)| Act::Tokens(which, total)),
        1 => Just(Act::Gone),
        2 => (0u64..3).prop_map(Act::Ready),
        1 => (0u8..4).prop_map(Act::Mode),
        1 => (0usize..20, 1u64..2000, 0.5f64..1.0, 0u8..3).prop_map(|(most, output, share, policy)| {
            Act::Reload(most, output, share, policy)
        }),
        2 => (0u64..5000).prop_map(Act::Wait),
        2 => Just(Act::Tick),
    ]
}

/// Settings with another queue, other lengths, another share of the pool, and another rule.
fn reloaded(most: usize, output: u64, share: f64, policy: u8) -> Settings {
    let mut settings = Settings::default();
    (settings.queue.requests, settings.queue.appointments) = (most, most);
    settings.queue.bytes = most as u64 * 1000;
    settings.capacity.default_output_tokens = output;
    settings.capacity.pool_share = share;
    settings.capacity.policy = [Policy::Kvgate, Policy::None, Policy::KvAndQueue][usize::from(policy)];
    settings.slo.ttft_seconds = (policy == 0).then_some(2.0);
    settings
}

async fn play(acts: Vec<Act>) {
    let modes = Modes::default();
    let gate = Gate::new(&Settings::default(), modes.clone());
    gate.signals(signals());
    let (mut tasks, mut permits) = (Vec::new(), Vec::<Permit>::new());
    for act in acts {
        match act {
            Act::Ask(prompt, wait) => tasks.push(spawn(&gate, ask(prompt, Duration::from_secs(wait)))),
            Act::Finish(which) if !permits.is_empty() => {
                let permit = permits.swap_remove(which % permits.len());
                permit.completed(Tokens(which as u64 % 100));
            }
            Act::Cancel(which) if !tasks.is_empty() => {
                let task: JoinHandle<_> = tasks.swap_remove(which % tasks.len());
                task.abort();
                let _ = task.await;
            }
            Act::Tokens(which, total) if !permits.is_empty() => {
                permits[which % permits.len()].tokens(Tokens(total))
            }
            Act::Gone => gate.engine_gone(None),
            Act::Ready(incarnation) => gate.signals(Signals { incarnation, ..signals() }),
            Act::Mode(n) => modes.set(
                Rule::Capacity,
                if n == 0 {
                    Mode::Off
                } else if n == 1 {
                    Mode::Shadow
                } else {
                    Mode::Enforce
                },
            ),
            Act::Reload(most, output, share, policy) => {
                let waited = gate.state().queued;
                gate.reload(&reloaded(most, output, share, policy));
                assert!(gate.state().queued <= waited, "a reload lets in, and queues nobody");
            }
            Act::Wait(millis) => advance(Duration::from_millis(millis)).await,
            Act::Tick => gate.tick(),
            _ => {}
        }
        yield_now().await;
        let mut left = Vec::new();
        for task in tasks {
            if task.is_finished() {
                permits.extend(task.await.unwrap());
            } else {
                left.push(task);
            }
        }
        tasks = left;
        let state = gate.state();
        assert!(state.in_flight <= permits.len() + tasks.len(), "nothing in the books without a permit");
        assert!(state.queued <= permits.len() + tasks.len());
    }
    permits.clear();
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
    let state = gate.state();
    assert_eq!(
        (state.in_flight, state.queued, state.queued_bytes, state.reserved_tokens),
        (0, 0, 0, Tokens::ZERO),
        "permits out are permits back"
    );
    let state = gate.lock();
    assert!(state.wakers.is_empty() && state.would.is_empty());
}

proptest! {
    #[test]
    fn permits_out_are_permits_back_under_any_order(acts in proptest::collection::vec(act(), 0..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(acts));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_leave_nothing_behind() {
    let gate = gate();
    let ticks = tokio::spawn(gate.clone().run());
    let tasks: Vec<_> = (0..400u64)
        .map(|i| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let Ok(permit) = gate.admit(ask(50 + i % 300, 5 * SECOND)).await else { return };
                for total in 1..=(i % 20) {
                    permit.tokens(Tokens(total));
                    yield_now().await;
                }
                permit.completed(Tokens(i % 20));
            })
        })
        .collect();
    for (i, task) in tasks.into_iter().enumerate() {
        if i % 7 == 0 {
            task.abort();
        }
        let _ = task.await;
    }
    ticks.abort();
    let state = gate.state();
    assert_eq!((state.in_flight, state.queued, state.queued_bytes), (0, 0, 0));
}
