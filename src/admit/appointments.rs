//! When the clients that were refused were told to come back: the place each has in the time to
//! come, so that k refused clients are told k different times.
//!
//! Bounded; one that is not kept is dropped a little after its time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::capacity::Candidate;

/// The longest time a client is told (the contract's).
pub const LONGEST: Duration = Duration::from_secs(60);
/// The shortest.
pub const SHORTEST: Duration = Duration::from_secs(1);

/// One client told to come back.
#[derive(Debug, Clone, Copy)]
pub struct Appointment {
    /// What it asks for.
    pub asked: Candidate,
    /// When its place is; later than `told` where that was cut at [`LONGEST`].
    pub place: Instant,
    /// When it was told to come.
    pub told: Instant,
    /// How early or late it may come and still be known.
    grace: Duration,
}

/// All of them, in the order they were made.
#[derive(Debug, Clone, Default)]
pub struct Appointments {
    made: VecDeque<Appointment>,
    most: usize,
}

impl Appointments {
    /// At most `most`; the oldest is forgotten for a new one.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { made: VecDeque::new(), most }
    }

    /// At most `most` from now on; the oldest are forgotten.
    pub fn bound(&mut self, most: usize) {
        self.most = most;
        self.made.drain(..self.made.len().saturating_sub(most.max(1)));
    }

    /// Makes one: the place is `wait` from now; returns what the client is told, spread by
    /// `jitter` (−1…1 for ±10 %) so that a crowd does not return in step.
    pub fn make(&mut self, asked: Candidate, wait: Duration, jitter: f64, now: Instant) -> Duration {
        let spread = wait.mul_f64(1.0 + 0.1 * jitter.clamp(-1.0, 1.0));
        let tell = spread.clamp(SHORTEST, LONGEST);
        let grace = SHORTEST.max(tell.mul_f64(0.15));
        if self.made.len() >= self.most.max(1) {
            self.made.pop_front();
        }
        self.made.push_back(Appointment { asked, place: now + wait, told: now + tell, grace });
        tell
    }

    /// A request arrived: takes out the appointment it keeps, if it looks like one that does.
    pub fn keep(&mut self, asked: &Candidate, now: Instant) -> Option<Appointment> {
        let off = |a: &Appointment| a.told.max(now) - a.told.min(now);
        let kept = self
            .made
            .iter()
            .enumerate()
            .filter(|(_, a)| a.asked.kind == asked.kind && off(a) <= a.grace)
            .min_by_key(|(_, a)| off(a))
            .map(|(i, _)| i)?;
        self.made.remove(kept)
    }

    /// Forgets those that were not kept.
    pub fn expire(&mut self, now: Instant) {
        self.made.retain(|a| now <= a.told + a.grace);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.made.clear();
    }

    /// Those that stand, in the order they were made.
    pub fn iter(&self) -> impl Iterator<Item = &Appointment> {
        self.made.iter()
    }

    /// How many stand.
    #[must_use]
    pub fn len(&self) -> usize {
        self.made.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::predict::Kind;
    use crate::request::Priority;

    fn asked(prompt: u64) -> Candidate {
        Candidate {
            kind: Kind { tenant: 0, prompt, cap: None },
            sequences: 1,
            stream: true,
            priority: Priority::Interactive,
            output: 10,
            plan: 10,
            likely: 10,
            draw: 0,
            doubt: false,
            cached: 0,
        }
    }

    #[test]
    fn who_comes_when_told_is_known_and_who_does_not_is_forgotten() {
        let t = Instant::now();
        let mut all = Appointments::new(2);
        assert_eq!(all.make(asked(5), Duration::from_secs(20), 0.0, t), Duration::from_secs(20));
        assert_eq!(all.make(asked(5), Duration::from_secs(90), 1.0, t), LONGEST);
        assert!(all.keep(&asked(6), t + Duration::from_secs(20)).is_none());
        assert!(all.keep(&asked(5), t + Duration::from_secs(10)).is_none());
        assert!(all.keep(&asked(5), t + Duration::from_secs(22)).is_some());
        assert!(all.keep(&asked(5), t + Duration::from_secs(22)).is_none());
        all.expire(t + Duration::from_secs(70));
        assert_eq!(all.len(), 0);
    }

    #[test]
    fn the_number_is_bounded() {
        let t = Instant::now();
        let mut all = Appointments::new(3);
        for i in 0..10 {
            all.make(asked(i), Duration::from_secs(i), 0.0, t);
        }
        assert_eq!(all.len(), 3);
    }
}
