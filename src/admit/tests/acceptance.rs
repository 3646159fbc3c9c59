//! The acceptance case: 40 requests of 300 + 400 tokens at once, 79 blocks of 32, 4 seats.

use std::time::Duration;

use super::driver::{Load, World};
use super::engine::Engine;

fn load(stream: bool, max_wait: u64) -> Load {
    Load { prompt: 300, output: 400, cap: Some(400), stream, max_wait: Duration::from_secs(max_wait) }
}

fn forty(gate: bool, stream: bool) -> (World, f64) {
    let mut world = World::new(gate, Engine::new(79, 32, 4));
    for id in 0..40 {
        world.client(id, load(stream, 600), 0.0);
    }
    let took = world.run(1000.0);
    (world, took)
}

#[test]
fn forty_at_once_never_preempt_and_are_as_fast_as_the_bare_engine() {
    eprintln!("case     seconds  of bare  preemptions  most waiting");
    let (bare, bare_took) = forty(false, true);
    let mut rows = vec![("bare", &bare, bare_took)];
    let (streams, streams_took) = forty(true, true);
    let (plain, plain_took) = forty(true, false);
    rows.push(("streams", &streams, streams_took));
    rows.push(("plain", &plain, plain_took));
    for (name, world, took) in rows {
        let (engine, ratio) = (&world.engine, took / bare_took);
        eprintln!("{name:8} {took:7.1}  {ratio:7.3}  {:11}  {:12}", engine.preemptions, engine.most_waiting);
        if name == "bare" {
            assert!(engine.preemptions > 0, "the case is one");
            continue;
        }
        assert_eq!(engine.preemptions, 0, "{name}");
        assert!(engine.most_waiting <= 1, "{name}");
        assert!(ratio <= 1.1, "{name}");
        assert!(world.fates.values().all(|fate| fate.ended.is_some() && fate.told.is_empty()), "{name}");
    }
}

#[test]
fn with_short_deadlines_the_late_are_refused_at_once_and_told_the_truth() {
    refusals(true, true);
    refusals(false, true);
}

#[test]
fn before_anything_is_known_the_late_are_refused_as_soon_as_it_is() {
    refusals(true, false);
    refusals(false, false);
}

fn refusals(stream: bool, warm: bool) {
    let mut world = World::new(true, Engine::new(79, 32, 4));
    world.late = |id| (id % 3) as f64 * 0.01;
    for id in 1000..if warm { 1004 } else { 1000 } {
        world.client(id, load(stream, 600), 0.0);
    }
    world.run(200.0);
    let begin = world.at;
    for id in 0..40 {
        world.client(id, load(stream, 20), 0.0);
    }
    world.run(1000.0);
    let preemptions = world.engine.preemptions;
    eprintln!("stream {stream}, warm {warm}: took {:.1} s, {preemptions} preemptions", world.at - begin);
    eprintln!("client  told at  told  got in at  right by");
    let (mut wrong, mut tellings) = (0, 0);
    for (id, fate) in world.fates.range(..1000) {
        let admitted = fate.admitted.unwrap() - begin;
        for (at, told, _) in &fate.told {
            let at = at - begin;
            let ratio = (admitted - at) / told;
            eprintln!("{id:6}  {at:7.1}  {told:4.1}  {admitted:9.1}  {ratio:8.2}");
            tellings += 1;
            // The longest that may be told is 60 s: then it is right if it is not too long.
            let right = if *told >= 60.0 { ratio >= 0.5 } else { (0.5..=2.0).contains(&ratio) };
            wrong += usize::from(!right);
        }
        let least = if warm { 0.1 } else { 1.5 };
        assert!(fate.waited_for_nothing <= least, "client {id} waited {:.1} s", fate.waited_for_nothing);
    }
    assert_eq!(wrong, 0, "of {tellings}");
    assert!(tellings >= 25);
    assert_eq!(world.engine.preemptions, 0);
    assert!(world.engine.most_waiting <= 1);
}
