//! Blocks that prompts with the same beginning share (prefix caching), pure.
//!
//! As vLLM 0.32 has it (`vllm/v1/core/kv_cache_manager.py`, `vllm/v1/core/block_pool.py`): full blocks only;
//! a block can be found from the step in which it is computed; one that nobody holds is free and can
//! be found until it is handed out anew, the one given back first before the others.

use std::collections::HashMap;

/// Beginnings remembered before those that are wholly lost are dropped.
const MOST_PREFIXES: usize = 1024;

/// The beginning that a prompt has in common with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Which one: equal for prompts that begin alike.
    pub id: u64,
    /// Its tokens; only its full blocks are shared.
    pub tokens: u32,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    holders: u32,
    /// Without holders it is gone once so many blocks have been handed out in all.
    gone_at: u64,
}

/// Who holds which shared block.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    prefixes: HashMap<u64, Vec<Block>>,
    handed_out: u64,
}

impl PrefixCache {
    /// Blocks at the beginning of `prefix` that can be found, at most `most`; and how many of these
    /// nobody holds.
    pub fn found(&self, prefix: u64, most: u32) -> (u32, u32) {
        let Some(blocks) = self.prefixes.get(&prefix) else { return (0, 0) };
        let found = blocks.iter().take(most as usize).take_while(|b| self.findable(b));
        let (mut all, mut free) = (0, 0);
        for block in found {
            all += 1;
            free += u32::from(block.holders == 0);
        }
        (all, free)
    }

    fn findable(&self, block: &Block) -> bool {
        block.holders > 0 || self.handed_out < block.gone_at
    }

    /// One more holds the first `blocks` of a prefix, which were found.
    pub fn hold(&mut self, prefix: u64, blocks: u32) {
        let Some(held) = self.prefixes.get_mut(&prefix) else { return };
        for block in held.iter_mut().take(blocks as usize) {
            block.holders += 1;
        }
    }

    /// A sequence that holds the first `at` blocks of a prefix computes the next one: true where it can
    /// be found from now on, false where another one is found in its place.
    pub fn publish(&mut self, prefix: u64, at: u32) -> bool {
        if !self.prefixes.contains_key(&prefix) && self.prefixes.len() >= MOST_PREFIXES {
            let handed_out = self.handed_out;
            self.prefixes.retain(|_, blocks| blocks.iter().any(|b| b.holders > 0 || handed_out < b.gone_at));
        }
        let handed_out = self.handed_out;
        let blocks = self.prefixes.entry(prefix).or_default();
        let new = Block { holders: 1, gone_at: 0 };
        match blocks.get_mut(at as usize) {
            Some(block) if block.holders > 0 || handed_out < block.gone_at => false,
            Some(block) => {
                *block = new;
                true
            }
            None => {
                blocks.push(new);
                true
            }
        }
    }

    /// One fewer holds the first `blocks` of a prefix; how many of them nobody holds now. `free` is how
    /// many blocks are free without these.
    pub fn give_back(&mut self, prefix: u64, blocks: u32, free: u32) -> u32 {
        let Some(held) = self.prefixes.get_mut(&prefix) else { return 0 };
        let mut freed = 0;
        // vLLM gives a sequence's blocks back from its end: the beginning stays longest.
        for block in held.iter_mut().take(blocks as usize).rev() {
            block.holders -= 1;
            if block.holders == 0 {
                freed += 1;
                block.gone_at = self.handed_out + u64::from(free + freed);
            }
        }
        freed
    }

    /// So many free blocks were handed out.
    pub fn handed_out(&mut self, blocks: u32) {
        self.handed_out += u64::from(blocks);
    }
}
