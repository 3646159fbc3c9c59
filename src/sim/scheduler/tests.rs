use proptest::prelude::*;

use super::*;

fn limits(usable_blocks: u32, max_num_seqs: usize, max_batched_tokens: u32) -> Limits {
    Limits { block_size: 16, usable_blocks, max_num_seqs, max_batched_tokens, ..Limits::default() }
}

/// Runs until nothing can be done; the tokens each sequence produced.
fn run(scheduler: &mut Scheduler) -> HashMap<SeqId, u32> {
    let mut produced = HashMap::new();
    loop {
        let batch = scheduler.plan();
        if batch.shares.is_empty() && batch.preempted.is_empty() {
            return produced;
        }
        for p in scheduler.complete(&batch) {
            *produced.entry(p.seq).or_default() += 1;
        }
    }
}

#[test]
fn a_prompt_longer_than_the_budget_takes_several_steps() {
    let mut scheduler = Scheduler::new(limits(100, 8, 64));
    scheduler.add(150, 2);
    let first = scheduler.plan();
    assert_eq!(first.tokens(), 64);
    assert!(scheduler.complete(&first).is_empty());
    let second = scheduler.plan();
    scheduler.complete(&second);
    let third = scheduler.plan();
    assert_eq!(third.tokens(), 150 - 128);
    assert_eq!(scheduler.complete(&third).len(), 1);
    let decode = scheduler.plan();
    assert!(decode.shares[0].decodes);
    assert!(scheduler.complete(&decode)[0].last);
    assert_eq!((scheduler.running(), scheduler.usage()), (0, 0.0));
}

#[test]
fn blocks_are_taken_as_a_sequence_grows() {
    let mut scheduler = Scheduler::new(limits(10, 8, 64));
    scheduler.add(16, 20);
    let batch = scheduler.plan();
    scheduler.complete(&batch);
    assert!((scheduler.usage() - 0.1).abs() < 1e-9);
    let batch = scheduler.plan();
    scheduler.complete(&batch);
    assert!((scheduler.usage() - 0.2).abs() < 1e-9, "the 17th token takes a second block");
}

#[test]
fn the_last_running_sequence_is_preempted_and_finishes_later() {
    let mut scheduler = Scheduler::new(limits(4, 8, 64));
    let first = scheduler.add(32, 17);
    let second = scheduler.add(32, 17);
    let batch = scheduler.plan();
    assert_eq!(batch.shares.len(), 2);
    scheduler.complete(&batch);
    let batch = scheduler.plan();
    assert_eq!(batch.preempted, [second]);
    assert_eq!(batch.shares.iter().map(|s| s.seq).collect::<Vec<_>>(), [first]);
    scheduler.complete(&batch);
    assert_eq!((scheduler.running(), scheduler.waiting(), scheduler.preemptions()), (1, 1, 1));
    let rest = run(&mut scheduler);
    assert_eq!((rest[&first], rest[&second]), (15, 16));
}

#[test]
fn a_prompt_that_does_not_fit_holds_up_all_behind_it() {
    let mut scheduler = Scheduler::new(limits(8, 8, 1024));
    scheduler.add(100, 10);
    scheduler.add(64, 10);
    scheduler.add(1, 1);
    let batch = scheduler.plan();
    assert_eq!(batch.shares.len(), 1);
    assert_eq!(scheduler.waiting(), 2);
}

#[test]
fn a_prompt_larger_than_the_pool_waits_for_ever() {
    let mut scheduler = Scheduler::new(limits(4, 8, 1024));
    let big = scheduler.add(65, 1);
    assert!(scheduler.plan().shares.is_empty());
    assert_eq!(scheduler.waiting(), 1);
    assert!(scheduler.abort(big));
    assert!(!scheduler.abort(big));
}

#[test]
fn no_more_run_than_may() {
    let mut scheduler = Scheduler::new(limits(100, 2, 1024));
    for _ in 0..5 {
        scheduler.add(4, 4);
    }
    scheduler.plan();
    assert_eq!((scheduler.running(), scheduler.waiting()), (2, 3));
}

#[test]
fn an_abort_between_plan_and_completion_frees_all_and_produces_nothing() {
    let mut scheduler = Scheduler::new(limits(100, 2, 1024));
    let id = scheduler.add(40, 4);
    let batch = scheduler.plan();
    assert!(scheduler.usage() > 0.0);
    scheduler.abort(id);
    assert!(scheduler.usage() == 0.0);
    assert!(scheduler.complete(&batch).is_empty());
}

#[derive(Debug, Clone)]
enum Act {
    Add(u32, u32, Option<Prefix>),
    Abort(usize),
    Step,
}

fn prefix() -> impl Strategy<Value = Option<Prefix>> {
    prop::option::of((0u64..3, 1u32..120).prop_map(|(id, tokens)| Prefix { id, tokens }))
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1u32..200, 1u32..60, prefix()).prop_map(|(p, t, prefix)| Act::Add(p, t, prefix)),
        any::<usize>().prop_map(Act::Abort),
        Just(Act::Step),
        Just(Act::Step),
    ]
}

proptest! {
    /// Whatever happens: blocks held are what the tokens need, never more than there are, the
    /// bounds hold in each step, and in the end every block is free and every sequence that could
    /// fit has produced exactly its target.
    #[test]
    fn blocks_are_conserved_and_all_that_can_finish_does(
        acts in prop::collection::vec(act(), 1..120),
        blocks in 20u32..60, seqs in 1usize..6, budget in 1u32..128,
    ) {
        let mut scheduler = Scheduler::new(limits(blocks, seqs, budget));
        let mut alive: HashMap<SeqId, u32> = HashMap::new();
        let mut made: HashMap<SeqId, u32> = HashMap::new();
        for act in acts {
            match act {
                Act::Add(prompt, target, prefix) => {
                    alive.insert(scheduler.add_with_prefix(prompt, target, prefix), target);
                }
                Act::Abort(n) => {
                    let mut ids: Vec<_> = alive.keys().copied().collect();
                    ids.sort();
                    if let Some(id) = ids.get(n % ids.len().max(1)).copied() {
                        scheduler.abort(id);
                        alive.remove(&id);
                    }
                }
                Act::Step => {
                    let batch = scheduler.plan();
                    prop_assert!(batch.tokens() <= u64::from(budget));
                    prop_assert!(scheduler.running() <= seqs);
                    let own: u32 = scheduler.sequences.values().map(|s| s.blocks - s.shared).sum();
                    let shared: u32 = (0..3).map(|id| {
                        let holders = scheduler.sequences.values().filter(|s| s.prefix.is_some_and(|p| p.id == id));
                        holders.map(|s| s.shared).max().unwrap_or(0)
                    }).sum();
                    prop_assert_eq!(own + shared + scheduler.free, blocks);
                    for p in scheduler.complete(&batch) { *made.entry(p.seq).or_default() += 1; }
                }
            }
        }
        for (id, n) in run(&mut scheduler) { *made.entry(id).or_default() += n; }
        prop_assert_eq!((scheduler.running(), scheduler.waiting()), (0, 0));
        prop_assert_eq!(scheduler.free, blocks);
        for (id, target) in alive { prop_assert_eq!(made.get(&id).copied(), Some(target)); }
    }
}

#[test]
fn the_gauges_are_those_of_the_last_step_and_do_not_know_who_came_since() {
    let mut scheduler = Scheduler::new(limits(100, 1, 64));
    scheduler.add(16, 2);
    scheduler.add(16, 2);
    let batch = scheduler.plan();
    assert_eq!(scheduler.gauges(), Gauges::default(), "the step is not over");
    scheduler.add(16, 2);
    scheduler.complete(&batch);
    assert_eq!(scheduler.gauges(), Gauges { running: 1, waiting: 1, kv_usage: 0.01 });
    assert_eq!(scheduler.waiting(), 2);
    run(&mut scheduler);
    assert_eq!(scheduler.gauges(), Gauges::default());
}

/// A system prompt of four blocks.
fn shared(id: u64) -> Option<Prefix> {
    Some(Prefix { id, tokens: 64 })
}

#[test]
fn a_cached_beginning_is_neither_computed_nor_held_twice() {
    let mut scheduler = Scheduler::new(limits(20, 8, 1024));
    scheduler.add_with_prefix(80, 10, shared(1));
    scheduler.add_with_prefix(80, 10, shared(1));
    scheduler.add_with_prefix(80, 10, shared(2));
    let batch = scheduler.plan();
    assert_eq!(
        batch.shares.iter().map(|s| (s.computed, s.tokens)).collect::<Vec<_>>(),
        [(0, 80), (64, 16), (0, 80)]
    );
    assert!((scheduler.usage() - 11.0 / 20.0).abs() < 1e-9, "five, one and five blocks");
    assert_eq!(scheduler.work().cached, 64);
    run(&mut scheduler);
    assert_eq!((scheduler.running(), scheduler.usage()), (0, 0.0));
}

#[test]
fn a_beginning_stays_cached_until_its_blocks_are_needed() {
    let mut scheduler = Scheduler::new(limits(10, 8, 1024));
    scheduler.add_with_prefix(80, 1, shared(1));
    run(&mut scheduler);
    scheduler.add(5 * 16, 1);
    run(&mut scheduler);
    scheduler.add_with_prefix(80, 1, shared(1));
    let hit = scheduler.plan();
    assert_eq!(hit.shares[0].computed, 64, "other blocks were free longer");
    scheduler.complete(&hit);
    scheduler.add(10 * 16 - 1, 1);
    run(&mut scheduler);
    scheduler.add_with_prefix(80, 1, shared(1));
    assert_eq!(scheduler.plan().shares[0].computed, 0, "all blocks were handed out since");
}

#[test]
fn a_prompt_that_is_all_cached_still_computes_its_last_token() {
    let mut scheduler = Scheduler::new(limits(20, 8, 1024));
    scheduler.add_with_prefix(64, 4, shared(1));
    let first = scheduler.plan();
    scheduler.complete(&first);
    scheduler.add_with_prefix(64, 4, shared(1));
    let batch = scheduler.plan();
    assert_eq!((batch.shares[1].computed, batch.shares[1].tokens), (48, 16));
}

#[test]
fn what_was_computed_for_nothing_is_counted() {
    let mut scheduler = Scheduler::new(limits(4, 8, 64));
    let first = scheduler.add(32, 17);
    let second = scheduler.add(32, 17);
    for _ in 0..2 {
        let batch = scheduler.plan();
        scheduler.complete(&batch);
    }
    scheduler.abort(first);
    let again = scheduler.plan();
    assert_eq!(again.shares.iter().map(|s| (s.seq, s.tokens)).collect::<Vec<_>>(), [(second, 33)]);
    scheduler.complete(&again);
    let work = scheduler.work();
    assert_eq!((work.computed, work.recomputed, work.abandoned), (32 + 32 + 1 + 33, 32, 33));
}

#[test]
fn a_long_prompt_in_a_full_step_and_too_many_prompts_at_once_are_deadly() {
    let mortal =
        |context, prefill| Limits { deadly_context: context, deadly_prefill: prefill, ..limits(100, 8, 64) };
    let plan = |limits, prompts: &[u32], steps| {
        let mut scheduler = Scheduler::new(limits);
        prompts.iter().for_each(|&prompt| _ = scheduler.add(prompt, 4));
        for _ in 0..steps {
            let batch = scheduler.plan();
            assert!(!scheduler.deadly(&batch));
            scheduler.complete(&batch);
        }
        let batch = scheduler.plan();
        scheduler.deadly(&batch)
    };
    assert!(plan(mortal(Some(100), None), &[192], 1), "a full step beyond 100 tokens");
    assert!(!plan(mortal(Some(100), None), &[110], 1), "the rest of it does not fill the step");
    assert!(!plan(mortal(None, None), &[192], 1));
    assert!(plan(mortal(None, Some(100)), &[40, 70], 0));
    assert!(!plan(mortal(None, Some(110)), &[40, 70], 0));
    let mut scheduler = Scheduler::new(mortal(None, Some(100)));
    scheduler.add(40, 4);
    let first = scheduler.plan();
    scheduler.complete(&first);
    scheduler.add(70, 4);
    let second = scheduler.plan();
    assert!(!scheduler.deadly(&second), "the first one decodes by then");
}
