//! Where the engine's own KV usage differs from the books, and how far the books are trusted.

use crate::admit::Signals;

/// Gain with which a larger difference is believed; a smaller one at once where that is careful.
const RISE: f64 = 0.5;
/// What is left of the trust after a scrape with new preemptions.
const DISTRUST: f64 = 0.97;
/// What a scrape without gives back.
const REGAIN: f64 = 0.004;
/// Trust never falls below this.
const LEAST_TRUST: f64 = 0.7;

/// What the books say was held when a scrape was taken, blocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Believed {
    /// Surely held: begun sequences at the least they can have generated.
    pub least: u64,
    /// At most held: all sequences at the most.
    pub most: u64,
    /// Sequences that have surely begun.
    pub begun: u64,
}

/// The differences, measured.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Blocks that begun sequences hold less than the books say: shared prefixes.
    pub shared: f64,
    /// The sequences among which they were shared.
    pub sharers: u64,
    /// Blocks that others hold: traffic that bypasses the gateway.
    pub foreign: f64,
    /// Share of the pool that may be promised, after preemptions.
    pub trust: f64,
    /// Usage that the engine shows with nothing running: not a claim on anything.
    idle_usage: f64,
}

impl Default for Measured {
    fn default() -> Self {
        Self { shared: 0.0, sharers: 0, foreign: 0.0, trust: 1.0, idle_usage: 0.0 }
    }
}

impl Measured {
    /// Takes a fresh scrape in.
    pub fn looked(&mut self, signals: &Signals, pool_blocks: u64, believed: Believed) {
        self.trust = if signals.preempted {
            (self.trust * DISTRUST).max(LEAST_TRUST)
        } else {
            (self.trust + REGAIN).min(1.0)
        };
        let Some(usage) = signals.kv_usage.filter(|usage| usage.is_finite()) else { return };
        let usage = usage.clamp(0.0, 1.0);
        if signals.running < 1.0 && signals.waiting < 1.0 {
            self.idle_usage = usage;
        } else {
            self.idle_usage = self.idle_usage.min(usage);
        }
        let held = (usage - self.idle_usage) * pool_blocks as f64;
        self.sharing(signals, held, believed);
        // The usage is of the fullest rank: with several ranks it says nothing of the sum.
        let others = held - believed.most as f64;
        let foreign = if signals.ranks > 1 || others < pool_blocks as f64 * 0.03 { 0.0 } else { others };
        self.foreign += (foreign - self.foreign) * RISE;
    }

    fn sharing(&mut self, signals: &Signals, held: f64, believed: Believed) {
        // With requests waiting, or fewer running than ours, some that the books call begun may not be.
        let comparable = signals.waiting < 1.0 && signals.running >= believed.begun as f64;
        let less = believed.least as f64 - held;
        let clearly = less > (believed.least as f64 * 0.1).max(believed.begun as f64).max(2.0);
        let shared = if comparable && believed.begun >= 2 && clearly { less } else { 0.0 };
        let gain = if shared > self.shared { RISE } else { 1.0 };
        self.shared += (shared - self.shared) * gain;
        self.sharers = believed.begun;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(usage: f64, running: f64) -> Signals {
        Signals { kv_usage: Some(usage), running, fresh: true, ..Signals::default() }
    }

    #[test]
    fn shared_prefixes_become_room_and_only_where_they_are_clear() {
        let mut m = Measured::default();
        let believed = Believed { least: 100, most: 110, begun: 10 };
        m.looked(&scrape(0.95, 10.0), 100, believed);
        assert_eq!(m.shared, 0.0);
        (0..10).for_each(|_| m.looked(&scrape(0.3, 10.0), 100, believed));
        assert!((69.0..=70.0).contains(&m.shared), "{}", m.shared);
        m.looked(&Signals { waiting: 1.0, ..scrape(0.3, 10.0) }, 100, believed);
        assert_eq!(m.shared, 0.0, "with some waiting the comparison is off");
    }

    #[test]
    fn what_others_hold_is_theirs_but_what_an_idle_engine_shows_is_nobodys() {
        let mut m = Measured::default();
        (0..10).for_each(|_| m.looked(&scrape(0.5, 3.0), 100, Believed::default()));
        assert!((49.0..=50.0).contains(&m.foreign));
        (0..10).for_each(|_| m.looked(&scrape(0.9, 0.0), 100, Believed::default()));
        assert!(m.foreign < 1.0, "cached blocks of an idle engine hold nobody up");
        (0..10).for_each(|_| m.looked(&scrape(0.95, 1.0), 100, Believed { least: 5, most: 6, begun: 1 }));
        assert!(m.foreign < 1.0);
    }

    #[test]
    fn preemptions_cost_trust_that_comes_back_slowly() {
        let mut m = Measured::default();
        (0..50).for_each(|_| {
            m.looked(&Signals { preempted: true, ..scrape(0.9, 9.0) }, 100, Believed::default())
        });
        assert_eq!(m.trust, LEAST_TRUST);
        (0..100).for_each(|_| m.looked(&scrape(0.9, 9.0), 100, Believed::default()));
        assert_eq!(m.trust, 1.0);
    }
}
