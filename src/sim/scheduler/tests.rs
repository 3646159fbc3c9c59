use proptest::prelude::*;

use super::*;

fn limits(usable_blocks: u32, max_num_seqs: usize, max_batched_tokens: u32) -> Limits {
    Limits { block_size: 16, usable_blocks, max_num_seqs, max_batched_tokens }
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
    Add(u32, u32),
    Abort(usize),
    Step,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1u32..200, 1u32..60).prop_map(|(p, t)| Act::Add(p, t)),
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
                Act::Add(prompt, target) => { alive.insert(scheduler.add(prompt, target), target); }
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
                    let held: u32 = scheduler.sequences.values().map(|s| s.blocks).sum();
                    prop_assert_eq!(held + scheduler.free, blocks);
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
