//! How many sequences the engine runs at once (`max_num_seqs`), learned from its waiting queue.
//!
//! A scrape that shows requests waiting says how many of ours ran then: no more than that are let
//! in until the next scrape. Where two scrapes in a row show it with the same number running and
//! KV room to spare, that number is remembered, and probed upwards by one at a time. A prefill
//! backlog, which looks the same in one scrape, is gone in the next, or as soon as each of our
//! streams that were in it has its first token.

use std::time::Duration;

use tokio::time::Instant;

/// How long a scrape holds anything.
const BELIEVED: Duration = Duration::from_secs(5);

/// What a scrape and our own count say together.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Requests waiting in the engine.
    pub waiting: u64,
    /// Requests running in the engine.
    pub running: u64,
    /// Our sequences that were in the engine when the scrape was taken.
    pub ours: u64,
    /// Those of them that are streams without a first token.
    pub unstarted: u64,
    /// Whether the KV pool has room for another prompt.
    pub kv_room: bool,
    /// When it was taken.
    pub taken: Instant,
}

/// The hold that a scrape put on admissions.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// Our sequences in flight at most.
    most: u64,
    /// Until all streams admitted before have begun, where that explains the waiting.
    until_begun: bool,
    taken: Instant,
}

/// What is known of the engine's seats.
#[derive(Debug, Clone, Default)]
pub struct Seats {
    learned: Option<u64>,
    hold: Option<Hold>,
    last: Option<Look>,
    finished: u64,
}

impl Seats {
    /// Some of our sequences left the engine.
    pub fn finished(&mut self, sequences: u64) {
        self.finished += sequences;
    }

    /// A fresh scrape.
    pub fn looked(&mut self, look: Look) {
        let ran = look.ours.saturating_sub(look.waiting).max(1);
        if look.waiting == 0 {
            self.hold = None;
            if self.finished > 0 {
                self.learned = self.learned.map(|seats| if look.ours >= seats { seats + 1 } else { seats });
            }
        } else {
            let until_begun = look.waiting <= look.unstarted;
            self.hold = Some(Hold { most: ran, until_begun, taken: look.taken });
            let same = self.last.is_some_and(|last| last.waiting > 0 && last.running == look.running);
            // While one that runs is in prefill, a step's budget of tokens may be what the others wait for.
            let decoding = look.unstarted <= look.waiting;
            if same && look.kv_room && decoding {
                self.learned = Some(ran);
            }
        }
        self.finished = 0;
        self.last = Some(look);
    }

    /// Sequences of ours that may be in flight; `begun` says whether all our streams that were
    /// admitted before an instant have their first token.
    #[must_use]
    pub fn most(&self, now: Instant, begun: impl Fn(Instant) -> bool) -> u64 {
        let holds = |hold: &Hold| {
            now.saturating_duration_since(hold.taken) <= BELIEVED && !(hold.until_begun && begun(hold.taken))
        };
        let held = self.hold.as_ref().filter(|hold| holds(hold)).map(|hold| hold.most);
        held.unwrap_or(u64::MAX).min(self.learned.unwrap_or(u64::MAX))
    }

    /// The learned number, for the state page and the forecast.
    #[must_use]
    pub const fn learned(&self) -> Option<u64> {
        self.learned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(waiting: u64, running: u64, ours: u64, taken: Instant) -> Look {
        Look { waiting, running, ours, unstarted: 0, kv_room: true, taken }
    }

    #[test]
    fn two_scrapes_with_the_same_number_running_teach_the_seats_and_a_clean_one_probes() {
        let t = Instant::now();
        let mut seats = Seats::default();
        seats.looked(look(2, 4, 6, t));
        assert_eq!((seats.learned(), seats.most(t, |_| false)), (None, 4));
        seats.looked(look(1, 4, 5, t));
        assert_eq!((seats.learned(), seats.most(t, |_| false)), (Some(4), 4));
        seats.looked(look(0, 4, 4, t));
        assert_eq!(seats.most(t, |_| false), 4, "nothing finished: nothing to learn");
        seats.finished(1);
        seats.looked(look(0, 4, 4, t));
        assert_eq!(seats.most(t, |_| false), 5);
    }

    #[test]
    fn a_prefill_backlog_holds_only_until_its_streams_have_begun() {
        let t = Instant::now();
        let mut seats = Seats::default();
        seats.looked(Look { unstarted: 20, ..look(20, 10, 30, t) });
        assert_eq!(seats.most(t, |_| false), 10);
        assert_eq!(seats.most(t, |_| true), u64::MAX);
        seats.looked(Look { unstarted: 20, ..look(0, 30, 30, t) });
        assert_eq!(seats.most(t, |_| false), u64::MAX, "nothing was remembered");
    }

    #[test]
    fn what_waits_for_a_steps_budget_of_tokens_teaches_nothing() {
        let t = Instant::now();
        let mut seats = Seats::default();
        for _ in 0..5 {
            seats.looked(Look { unstarted: 8, ..look(5, 20, 25, t) });
        }
        assert_eq!((seats.learned(), seats.most(t, |_| true)), (None, u64::MAX));
    }

    #[test]
    fn an_old_scrape_holds_nothing() {
        let t = Instant::now();
        let mut seats = Seats::default();
        seats.looked(look(1, 4, 5, t));
        assert_eq!(seats.most(t + Duration::from_secs(6), |_| false), u64::MAX);
    }

    #[test]
    fn traffic_that_bypasses_the_gateway_leaves_one_seat() {
        let mut seats = Seats::default();
        seats.looked(look(50, 8, 2, Instant::now()));
        assert_eq!(seats.most(Instant::now(), |_| false), 1);
    }
}
