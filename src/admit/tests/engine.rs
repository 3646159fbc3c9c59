//! A step simulator of an engine: vLLM's V1 scheduler as far as admission sees it.
//!
//! Each step: running sequences first, each needs blocks for all its tokens; where none are left
//! the last running one is preempted (recomputed later); no new one in a step that preempted; a
//! waiting one needs a seat and room for all its known tokens.

use std::collections::VecDeque;

#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub id: u64,
    pub prompt: u64,
    pub generated: u64,
    pub output: u64,
}

impl Run {
    fn tokens(&self) -> u64 {
        self.prompt + self.generated
    }
}

#[derive(Debug, Clone)]
pub struct Engine {
    pub block: u64,
    pub blocks: u64,
    pub seats: usize,
    pub running: Vec<Run>,
    pub waiting: VecDeque<Run>,
    pub preemptions: u64,
    pub generated: u64,
    pub most_waiting: usize,
    /// Tokens prefilled in the last step.
    pub prefilled: u64,
    /// Blocks of the prompt that all sequences share.
    pub shared: u64,
}

impl Engine {
    pub fn new(blocks: u64, block: u64, seats: usize) -> Self {
        Self {
            block,
            blocks,
            seats,
            running: Vec::new(),
            waiting: VecDeque::new(),
            preemptions: 0,
            generated: 0,
            most_waiting: 0,
            prefilled: 0,
            shared: 0,
        }
    }

    pub fn push(&mut self, run: Run) {
        self.waiting.push_back(run);
    }

    fn need(&self, run: &Run) -> u64 {
        run.tokens().div_ceil(self.block) - self.shared
    }

    pub fn held(&self) -> u64 {
        let shared = if self.running.is_empty() { 0 } else { self.shared };
        shared + self.running.iter().map(|run| self.need(run)).sum::<u64>()
    }

    pub fn usage(&self) -> f64 {
        self.held() as f64 / self.blocks as f64
    }

    /// One step; returns what it generated (id, total so far, ended).
    pub fn step(&mut self) -> Vec<(u64, u64, bool)> {
        let mut preempted = false;
        self.prefilled = 0;
        while self.held() > self.blocks {
            let Some(last) = self.running.pop() else { break };
            self.preemptions += 1;
            preempted = true;
            self.waiting.push_front(last);
        }
        while !preempted && self.running.len() < self.seats {
            let Some(next) = self.waiting.front() else { break };
            if self.held().max(self.shared) + self.need(next) > self.blocks {
                break;
            }
            self.prefilled += next.tokens();
            self.running.extend(self.waiting.pop_front());
        }
        self.most_waiting = self.most_waiting.max(self.waiting.len());
        let mut out = Vec::new();
        for run in &mut self.running {
            run.generated += 1;
            self.generated += 1;
            out.push((run.id, run.generated, run.generated >= run.output));
        }
        self.running.retain(|run| run.generated < run.output);
        out
    }
}
