//! The acceptance case: 40 requests of 300 + 400 tokens at once, 79 blocks of 32, 4 seats.

use std::time::Duration;

use super::driver::{Load, World};
use super::engine::Engine;

/// Machines on which the case is played.
const MACHINES: u64 = 15;

fn load(stream: bool, max_wait: u64) -> Load {
    Load { prompt: 300, output: 400, cap: Some(400), stream, max_wait: Duration::from_secs(max_wait) }
}

fn world(gate: bool, rough: bool) -> World {
    let mut world = World::new(gate, Engine::new(79, 32, 4));
    if rough {
        // Steps that vary, prefill that takes as long as it does on a CPU, answers seen late.
        (world.noise, world.prefill, world.lag) = (0.3, 0.000_5, 2);
    }
    world
}

fn forty(gate: bool, stream: bool, rough: bool) -> (World, f64) {
    let mut world = world(gate, rough);
    for id in 0..40 {
        world.client(id, load(stream, 600), 0.0);
    }
    let took = world.run(1000.0);
    (world, took)
}

#[test]
fn forty_at_once_never_preempt_and_are_as_fast_as_the_bare_engine() {
    compare(false);
}

#[test]
fn neither_do_they_where_steps_vary_and_prefill_takes_its_time() {
    compare(true);
}

fn compare(rough: bool) {
    let (bare, bare_took) = forty(false, true, rough);
    let (streams, streams_took) = forty(true, true, rough);
    let (plain, plain_took) = forty(true, false, rough);
    let mut table = String::from("case     seconds  of bare  preemptions  most waiting\n");
    let rows =
        [("bare", &bare, bare_took), ("streams", &streams, streams_took), ("plain", &plain, plain_took)];
    for (name, world, took) in rows {
        let (engine, ratio) = (&world.engine, took / bare_took);
        table += &format!(
            "{name:8} {took:7.1}  {ratio:7.3}  {:11}  {:12}\n",
            engine.preemptions, engine.most_waiting
        );
    }
    eprintln!("rough: {rough}\n{table}");
    assert!(bare.engine.preemptions > 0, "the case is one");
    for (world, took) in [(&streams, streams_took), (&plain, plain_took)] {
        assert_eq!(world.engine.preemptions, 0);
        assert!(world.engine.most_waiting <= 1);
        assert!(took <= 1.1 * bare_took);
        assert!(world.fates.values().all(|fate| fate.ended.is_some() && fate.told.is_empty()));
    }
}

/// One machine of many: how much slower a step is with four, how it varies, how long a prompt takes.
fn machine(gate: bool, seed: u64) -> World {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = world(gate, true);
    world.seed(seed);
    (world.batch, world.drift) = (random.f64() * 0.3, random.f64());
    (world.noise, world.prefill) = (random.f64() * 0.3, random.f64() * 0.003);
    world
}

#[test]
fn nor_on_any_machine_after_a_single_stream_that_was_faster_than_four_together() {
    let mut table = String::from("streams of 4  of bare: mean  worst  preemptions\n");
    let mut preempted = 0;
    for streams in 0..3 {
        let (mut sum, mut worst, mut preemptions) = (0.0, 0.0_f64, 0);
        for seed in 0..MACHINES {
            let crowd = |gate| {
                let mut world = machine(gate, seed);
                world.client(1000, Load { prompt: 50, output: 100, ..load(true, 600) }, 0.0);
                world.run(200.0);
                for id in 0..40 {
                    world.client(id, load(id % 4 < streams, 600), 0.0);
                }
                (world.run(1000.0), world.engine.preemptions)
            };
            let ((bare, _), (took, more)) = (crowd(false), crowd(true));
            preemptions += more;
            (sum, worst) = (sum + took / bare, worst.max(took / bare));
        }
        let mean = sum / MACHINES as f64;
        table += &format!("{streams:12}  {mean:13.3}  {worst:5.3}  {preemptions:11}\n");
        preempted += preemptions;
    }
    eprintln!("{table}");
    assert_eq!(preempted, 0, "{table}");
}

#[test]
fn with_short_deadlines_the_late_are_refused_at_once_and_told_the_truth() {
    for rough in [false, true] {
        refusals(true, true, rough);
        refusals(false, true, rough);
    }
}

#[test]
fn before_anything_is_known_the_late_are_refused_as_soon_as_it_is() {
    for rough in [false, true] {
        refusals(true, false, rough);
        refusals(false, false, rough);
    }
}

fn refusals(stream: bool, warm: bool, rough: bool) {
    let mut world = world(true, rough);
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
    eprintln!(
        "stream {stream}, warm {warm}, rough {rough}: took {:.1} s, {preemptions} preemptions",
        world.at - begin
    );
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
        // Cold, the pace is known after a scrape without prefill; plain answers do not show when that ends.
        let least = if warm { 0.1 } else { 3.5 };
        assert!(fate.waited_for_nothing <= least, "client {id} waited {:.1} s", fate.waited_for_nothing);
    }
    assert_eq!(wrong, 0, "of {tellings}");
    assert!(tellings >= 25);
    assert_eq!(world.engine.preemptions, 0);
    assert!(world.engine.most_waiting <= 1);
}
