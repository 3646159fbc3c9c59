//! How many sequences the engine runs at once (`max_num_seqs`), learned from its waiting queue.
//!
//! Scrapes that show requests waiting while all that run decode, for longer than the next step takes to
//! come, say how many of ours run: no more than that are let in until the next scrape. Where the same
//! number ran all the time, with KV room to spare, that number is remembered, and probed upwards by one at
//! a time. While one that runs is in prefill, a step's budget of tokens may be what the others wait for:
//! that is no matter of seats, and to hold them here would help nobody.

use std::time::Duration;

use tokio::time::Instant;

/// Requests must be seen to wait for so long, and for so many steps, to wait for a seat.
const PERSISTS: (Duration, f64) = (Duration::from_millis(500), 4.0);
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
    /// Those of them that have no first token yet.
    pub unstarted: u64,
    /// Whether the KV pool has room for another prompt.
    pub kv_room: bool,
    /// Seconds of a step, where known.
    pub step: Option<f64>,
    /// When it was taken.
    pub taken: Instant,
}

/// The hold that a scrape put on admissions.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// Our sequences in flight at most.
    most: u64,
    taken: Instant,
}

/// What is known of the engine's seats.
#[derive(Debug, Clone, Default)]
pub struct Seats {
    learned: Option<u64>,
    hold: Option<Hold>,
    /// Since when some wait while all that run decode, and since when the same number runs meanwhile.
    waits: Option<(Instant, Instant)>,
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
        if look.waiting == 0 && self.finished > 0 {
            self.learned = self.learned.map(|seats| if look.ours >= seats { seats + 1 } else { seats });
        }
        let waits = look.waiting > 0 && look.unstarted <= look.waiting;
        let same = self.last.is_some_and(|last| last.running == look.running);
        let (since, constant) = self.waits.unwrap_or((look.taken, look.taken));
        self.waits = waits.then_some((since, if same { constant } else { look.taken }));
        let steps = Duration::from_secs_f64((PERSISTS.1 * look.step.unwrap_or(0.0)).clamp(0.0, 60.0));
        let persists = |since| look.taken.saturating_duration_since(since) >= PERSISTS.0.max(steps);
        let (long, constant) =
            self.waits.map_or((false, false), |(since, same)| (persists(since), persists(same)));
        self.hold = long.then_some(Hold { most: ran, taken: look.taken });
        if constant && look.kv_room {
            self.learned = Some(ran);
        }
        self.finished = 0;
        self.last = Some(look);
    }

    /// Sequences of ours that may be in flight.
    #[must_use]
    pub fn most(&self, now: Instant) -> u64 {
        let holds = |hold: &Hold| now.saturating_duration_since(hold.taken) <= BELIEVED;
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
        Look { waiting, running, ours, unstarted: 0, kv_room: true, step: Some(0.03), taken }
    }

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn two_scrapes_with_the_same_number_running_teach_the_seats_and_a_clean_one_probes() {
        let t = Instant::now();
        let mut seats = Seats::default();
        seats.looked(look(2, 4, 6, t));
        assert_eq!((seats.learned(), seats.most(t)), (None, u64::MAX), "they may go in with the next step");
        seats.looked(look(1, 4, 5, t + after(1)));
        assert_eq!((seats.learned(), seats.most(t)), (Some(4), 4));
        seats.looked(look(0, 4, 4, t + after(2)));
        assert_eq!(seats.most(t), 4, "nothing finished: nothing to learn");
        seats.finished(1);
        seats.looked(look(0, 4, 4, t + after(3)));
        assert_eq!(seats.most(t), 5);
    }

    #[test]
    fn what_waits_for_a_steps_budget_of_tokens_teaches_nothing() {
        let t = Instant::now();
        let mut seats = Seats::default();
        for i in 0..5 {
            seats.looked(Look { unstarted: 8, ..look(5, 20, 25, t + after(i)) });
        }
        assert_eq!((seats.learned(), seats.most(t)), (None, u64::MAX));
    }

    #[test]
    fn what_waits_for_the_next_of_long_steps_teaches_nothing() {
        let t = Instant::now();
        let mut seats = Seats::default();
        for i in 0..3 {
            seats.looked(Look { step: Some(2.0), ..look(1, 4, 5, t + after(i)) });
        }
        assert_eq!((seats.learned(), seats.most(t)), (None, u64::MAX));
    }

    #[test]
    fn an_old_scrape_holds_nothing() {
        let t = Instant::now();
        let mut seats = Seats::default();
        (0..2).for_each(|i| seats.looked(Look { running: 4 + i, ..look(1, 4, 5, t + after(i)) }));
        assert_eq!((seats.learned(), seats.most(t + after(2))), (None, 4));
        assert_eq!(seats.most(t + after(7)), u64::MAX);
    }

    #[test]
    fn traffic_that_bypasses_the_gateway_leaves_one_seat() {
        let t = Instant::now();
        let mut seats = Seats::default();
        (0..2).for_each(|i| seats.looked(look(50, 8, 2, t + after(i))));
        assert_eq!(seats.most(t), 1);
    }
}
