use super::*;

fn sample(taken: Instant, running: f64, steps: f64) -> Sample {
    let page = format!("vllm:num_requests_running {running}\nvllm:iteration_tokens_total_count {steps}\n");
    crate::engine::dialect::vllm::sample(page.as_bytes(), taken).unwrap()
}

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn input(state: State) -> LivezInput {
    LivezInput {
        state,
        unready_for: Duration::ZERO,
        dead_for: None,
        refused: false,
        sleeping: false,
        load: None,
        first_load_allowance: s(3600),
        stalled: None,
        longest_step: Duration::ZERO,
        hang: s(120),
    }
}

#[test]
fn a_loading_engine_lives_up_to_its_allowance() {
    for (load, unready, live) in [
        (None, 3599, true),
        (None, 3601, false),
        (Some(100), 299, true),
        (Some(100), 301, false),
        (Some(1), 59, true),
    ] {
        for state in [State::Connecting, State::Loading] {
            let verdict = livez(&LivezInput {
                load: load.map(s),
                unready_for: s(unready),
                refused: true,
                ..input(state)
            });
            assert_eq!(verdict.is_live(), live, "{load:?} {unready}");
        }
    }
}

#[test]
fn an_engine_that_died_is_dead_for_a_notice_and_then_loads_again() {
    let down = |dead| LivezInput {
        refused: true,
        dead_for: Some(s(dead)),
        unready_for: s(dead),
        load: Some(s(100)),
        ..input(State::Down)
    };
    assert_eq!(livez(&down(1)), Verdict::Dead("refuses_connections"));
    assert_eq!(livez(&down(30)), Verdict::Live("loading"));
    assert_eq!(livez(&down(400)), Verdict::Dead("load_took_too_long"));
    let kept_alive = LivezInput { refused: false, ..down(30) };
    assert_eq!(livez(&kept_alive), Verdict::Dead("engine_dead"));
}

#[test]
fn work_without_a_step_is_a_hang_after_the_larger_bound() {
    let at = |stalled, longest| LivezInput {
        stalled: Some(s(stalled)),
        longest_step: s(longest),
        ..input(State::Ready)
    };
    assert_eq!(livez(&at(119, 0)), Verdict::Live("serving"));
    assert_eq!(livez(&at(120, 0)), Verdict::Dead("no_step"));
    assert_eq!(livez(&at(179, 60)), Verdict::Live("serving"));
    assert_eq!(livez(&at(180, 60)), Verdict::Dead("no_step"));
    let asleep = LivezInput { sleeping: true, ..at(999, 0) };
    assert_eq!(livez(&asleep), Verdict::Live("sleeping"));
}

#[test]
fn an_idle_engine_never_stalls_and_a_frozen_one_does() {
    let zero = Instant::now();
    let mut p = Progress::default();
    for t in 0..500 {
        p = p.next(&sample(zero + s(t), 0.0, 7.0));
    }
    assert_eq!(p.stalled(None), None);
    for t in 500..700 {
        p = p.next(&sample(zero + s(t), 2.0, 7.0));
    }
    assert_eq!(p.stalled(None), Some(s(199)));
    p = p.next(&sample(zero + s(701), 2.0, 8.0));
    assert_eq!((p.stalled(None), p.longest()), (Some(s(0)), s(201)));
}

#[test]
fn our_own_requests_count_as_work_where_the_gauges_lag() {
    let zero = Instant::now();
    let p = Progress::default().next(&sample(zero, 0.0, 7.0)).next(&sample(zero + s(130), 0.0, 7.0));
    assert_eq!(p.stalled(None), None);
    assert_eq!(p.stalled(Some(zero + s(10))), Some(s(120)));
    assert_eq!(p.served(zero + s(100)).stalled(Some(zero)), Some(s(30)));
}

#[test]
fn scrapes_that_fail_are_not_missing_steps() {
    let zero = Instant::now();
    let p = Progress::default().next(&sample(zero, 2.0, 7.0)).next(&sample(zero + s(1), 2.0, 7.0));
    // Nothing is folded for an hour: what is known stays what was seen.
    assert_eq!(p.stalled(Some(zero)), Some(s(1)));
}

#[test]
fn an_engine_without_counters_never_stalls() {
    let page = b"vllm:num_requests_running 2\n";
    let zero = Instant::now();
    let read = |at| crate::engine::dialect::vllm::sample(page, at).unwrap();
    let p = Progress::default().next(&read(zero)).next(&read(zero + s(500)));
    assert_eq!(p.stalled(Some(zero)), None);
}
