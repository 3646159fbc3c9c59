//! The engine's step and KV-cache model, pure: no clock, lock or IO.
//!
//! What is modelled (vLLM 0.32, `vllm/v1/core/sched/scheduler.py`): running sequences are
//! scheduled first, then waiting ones in order of arrival; a prompt longer than the step's token
//! budget is computed in pieces; blocks are taken as a sequence grows; where none is free the LAST
//! running sequence loses all of its blocks and is computed anew later; no sequence is admitted in
//! a step that preempted; a waiting sequence starts only when all of its tokens so far fit
//! (`scheduler_reserve_full_isl`), and one that does not fit holds up all behind it; a prompt whose
//! beginning is cached starts after it (`prefix`). How long a step takes is in `speed`.

use std::collections::{HashMap, VecDeque};

use super::batch::{Batch, Gauges, Produced, SeqId, Share, Work};
use super::prefix::{Prefix, PrefixCache};

/// What the scheduler is bound by, and what kills it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks that sequences can hold: one fewer than the pool has.
    pub usable_blocks: u32,
    /// Sequences that run at once.
    pub max_num_seqs: usize,
    /// Tokens computed in one step.
    pub max_batched_tokens: u32,
    /// A step that computes a prompt beyond so many tokens kills the engine where it is full; the
    /// further beyond, the less full it needs to be. `None`: no prompt does.
    pub deadly_context: Option<u32>,
    /// Prompts in prefill at once that have more tokens together kill the engine. `None`: they do not.
    pub deadly_prefill: Option<u32>,
}

#[derive(Debug, Clone)]
struct Sequence {
    prompt: u32,
    generated: u32,
    target: u32,
    computed: u32,
    blocks: u32,
    prefix: Option<Prefix>,
    /// Of its blocks, the first ones that others may hold too.
    shared: u32,
    /// The most tokens it ever had computed: to compute one of them again is waste.
    high_water: u32,
    /// Tokens that were computed for it, each counted once.
    spent: u32,
}

impl Sequence {
    fn tokens(&self) -> u32 {
        self.prompt.saturating_add(self.generated)
    }
}

/// Sequences, their blocks, and who is next.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    sequences: HashMap<SeqId, Sequence>,
    waiting: VecDeque<SeqId>,
    running: Vec<SeqId>,
    free: u32,
    next: u64,
    preemptions: u64,
    cache: PrefixCache,
    work: Work,
    /// Sequences that the last plan left waiting.
    left: usize,
    gauges: Gauges,
}

impl Scheduler {
    /// An idle engine.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            free: limits.usable_blocks,
            next: 0,
            preemptions: 0,
            cache: PrefixCache::default(),
            work: Work::default(),
            left: 0,
            gauges: Gauges::default(),
        }
    }

    /// A sequence of `prompt` tokens that will produce `target`; both count as at least 1.
    pub fn add(&mut self, prompt: u32, target: u32) -> SeqId {
        self.add_with_prefix(prompt, target, None)
    }

    /// The same for a prompt that begins with `prefix`.
    pub fn add_with_prefix(&mut self, prompt: u32, target: u32, prefix: Option<Prefix>) -> SeqId {
        let id = SeqId(self.next);
        self.next += 1;
        let prompt = prompt.max(1);
        let sequence = Sequence {
            prompt,
            generated: 0,
            target: target.max(1),
            computed: 0,
            blocks: 0,
            prefix: prefix.map(|p| Prefix { tokens: p.tokens.min(prompt), ..p }),
            shared: 0,
            high_water: 0,
            spent: 0,
        };
        self.sequences.insert(id, sequence);
        self.waiting.push_back(id);
        id
    }

    /// Forgets a sequence and frees its blocks at once; false where it was gone already.
    pub fn abort(&mut self, id: SeqId) -> bool {
        let Some(sequence) = self.remove(id) else { return false };
        self.work.abandoned += u64::from(sequence.spent);
        true
    }

    fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(&id)?;
        self.give_back(&mut sequence);
        self.waiting.retain(|&w| w != id);
        self.running.retain(|&r| r != id);
        Some(sequence)
    }

    /// Frees the blocks of a sequence that nobody else holds.
    fn give_back(&mut self, sequence: &mut Sequence) {
        self.free += sequence.blocks - sequence.shared;
        if let Some(prefix) = sequence.prefix.filter(|_| sequence.shared > 0) {
            self.free += self.cache.give_back(prefix.id, sequence.shared, self.free);
        }
        sequence.blocks = 0;
        sequence.shared = 0;
        sequence.computed = 0;
    }

    /// Builds the next step; one without shares means that nothing can be done.
    pub fn plan(&mut self) -> Batch {
        let mut batch = Batch::default();
        let mut budget = self.limits.max_batched_tokens;
        self.plan_running(&mut batch, &mut budget);
        if batch.preempted.is_empty() {
            self.plan_waiting(&mut batch, &mut budget);
        }
        self.left = self.waiting.len();
        if batch.shares.is_empty() {
            self.show();
        }
        batch
    }

    fn show(&mut self) {
        self.gauges = Gauges { running: self.running.len(), waiting: self.left, kv_usage: self.usage() };
    }

    /// What the gauges show.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        self.gauges
    }

    fn plan_running(&mut self, batch: &mut Batch, budget: &mut u32) {
        let mut place = 0;
        while place < self.running.len() && *budget > 0 {
            let id = self.running[place];
            let Some(sequence) = self.sequences.get(&id) else { break };
            let tokens = (sequence.tokens() - sequence.computed).min(*budget);
            let needed = self.blocks(sequence.computed + tokens).saturating_sub(sequence.blocks);
            while needed > self.free {
                let Some(last) = self.preempt_last() else { return };
                batch.preempted.push(last);
                if last == id {
                    return;
                }
            }
            batch.shares.push(self.grow(id, tokens, needed, false));
            *budget -= tokens;
            place += 1;
        }
    }

    fn plan_waiting(&mut self, batch: &mut Batch, budget: &mut u32) {
        while *budget > 0 && self.running.len() < self.limits.max_num_seqs {
            let Some(&id) = self.waiting.front() else { return };
            let Some(sequence) = self.sequences.get(&id) else { return };
            let total = sequence.tokens();
            let (found, unheld) = self.found(sequence);
            if self.blocks(total) - found + unheld > self.free {
                return;
            }
            self.waiting.pop_front();
            self.running.push(id);
            self.hold(id, found, unheld);
            let cached = found * self.limits.block_size;
            let tokens = (total - cached).min(*budget);
            batch.shares.push(self.grow(id, tokens, self.blocks(cached + tokens) - found, true));
            *budget -= tokens;
        }
    }

    /// Cached blocks with which a waiting sequence can begin, and how many of them nobody holds. Its last
    /// token is computed in any case.
    fn found(&self, sequence: &Sequence) -> (u32, u32) {
        let Some(prefix) = sequence.prefix else { return (0, 0) };
        let most = prefix.tokens.min(sequence.tokens() - 1) / self.limits.block_size;
        self.cache.found(prefix.id, most)
    }

    /// A sequence begins with cached blocks.
    fn hold(&mut self, id: SeqId, found: u32, unheld: u32) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| found > 0) else { return };
        let Some(prefix) = sequence.prefix else { return };
        self.cache.hold(prefix.id, found);
        self.free -= unheld;
        sequence.blocks = found;
        sequence.shared = found;
        sequence.computed = found * self.limits.block_size;
        self.work.cached += u64::from(sequence.computed);
    }

    fn blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.limits.block_size)
    }

    /// Gives a sequence its blocks for this step.
    fn grow(&mut self, id: SeqId, tokens: u32, needed: u32, new: bool) -> Share {
        self.free -= needed;
        self.cache.handed_out(needed);
        let sequence = self.sequences.get_mut(&id).expect("scheduled sequences exist");
        sequence.blocks += needed;
        if let Some(prefix) = sequence.prefix {
            let full = prefix.tokens.min(sequence.computed + tokens) / self.limits.block_size;
            while sequence.shared < full && self.cache.publish(prefix.id, sequence.shared) {
                sequence.shared += 1;
            }
        }
        let decodes = tokens == 1 && sequence.computed >= sequence.prompt;
        Share { seq: id, tokens, computed: sequence.computed, new, decodes }
    }

    /// Throws out the sequence that started to run last: it waits again, first in line.
    fn preempt_last(&mut self) -> Option<SeqId> {
        let id = self.running.pop()?;
        let mut sequence = self.sequences.remove(&id)?;
        self.give_back(&mut sequence);
        self.sequences.insert(id, sequence);
        self.preemptions += 1;
        self.waiting.push_front(id);
        Some(id)
    }

    /// The step is done: whoever has all tokens computed produced one. Sequences aborted since the
    /// plan are passed over.
    pub fn complete(&mut self, batch: &Batch) -> Vec<Produced> {
        let mut produced = Vec::new();
        for share in &batch.shares {
            let Some(sequence) = self.sequences.get_mut(&share.seq) else { continue };
            sequence.computed += share.tokens;
            let again = sequence.high_water.min(sequence.computed).saturating_sub(share.computed);
            sequence.high_water = sequence.high_water.max(sequence.computed);
            sequence.spent += share.tokens - again;
            self.work.computed += u64::from(share.tokens);
            self.work.recomputed += u64::from(again);
            if sequence.computed < sequence.tokens() {
                continue;
            }
            sequence.generated += 1;
            let last = sequence.generated >= sequence.target;
            produced.push(Produced { seq: share.seq, generated: sequence.generated, last });
        }
        for done in produced.iter().filter(|p| p.last) {
            self.remove(done.seq);
        }
        self.show();
        produced
    }

    /// Whether the step is too much for the engine's memory: it dies instead of making it.
    ///
    /// Two shapes, as crash reports have them: one long prompt in a full step, and too many prompts in
    /// prefill at once.
    #[must_use]
    pub fn deadly(&self, batch: &Batch) -> bool {
        let prompts = || batch.shares.iter().filter(|s| !s.decodes);
        let longest = prompts().map(|s| s.computed + s.tokens).max().unwrap_or(0);
        let long = self.limits.deadly_context.filter(|most| longest > *most).is_some_and(|most| {
            let tokens: u32 = prompts().map(|s| s.tokens).sum();
            let full = f64::from(tokens) / f64::from(self.limits.max_batched_tokens.max(1));
            full + f64::from(longest - most) / f64::from(most.max(1)) > 1.0
        });
        let many = self.limits.deadly_prefill.is_some_and(|most| {
            let running = self.running.iter().filter_map(|id| self.sequences.get(id));
            let prompts = running.filter(|s| s.computed < s.prompt).map(|s| u64::from(s.prompt));
            prompts.sum::<u64>() > u64::from(most)
        });
        long || many
    }

    /// Tokens computed so far.
    #[must_use]
    pub fn work(&self) -> Work {
        self.work
    }

    /// Sequences that hold blocks.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait, preempted ones among them.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Preemptions so far.
    #[must_use]
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Share of the usable blocks in use, 0 to 1.
    #[must_use]
    pub fn usage(&self) -> f64 {
        let usable = self.limits.usable_blocks;
        if usable == 0 { 0.0 } else { f64::from(usable - self.free) / f64::from(usable) }
    }
}

#[cfg(test)]
mod tests;
