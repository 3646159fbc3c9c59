//! When a request would get in: the decision played forward over what is in flight and queued.
//!
//! Virtual time is in decode steps; the pace makes seconds of it. The forecast is kept for a
//! moment and extended by each arrival, so that a burst costs O(n) each and not O(n²); what ends
//! earlier or later than forecast shows in the next one.

use std::time::Duration;

use tokio::time::Instant;

use super::appointments::Appointments;
use super::capacity::{Books, Candidate, Outlook};
use super::queue::Queue;
use super::signals::Signals;

/// How far a measured wait corrects a predicted one.
const CORRECTION: std::ops::RangeInclusive<f64> = 0.5..=3.0;

/// The play.
#[derive(Debug, Clone)]
struct Play {
    /// With the queue in it.
    queued: Outlook,
    /// With the appointments too, where anybody asked.
    promised: Option<Outlook>,
    /// The step at which the last of the queue gets in.
    last: u64,
    /// Seconds per step.
    step: f64,
    made: Instant,
}

impl Play {
    /// Steps that have passed since it was made.
    fn passed(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.made).as_secs_f64() / self.step) as u64
    }

    /// The first step at which a further one may get in.
    fn from(&self, now: Instant) -> u64 {
        self.last.max(self.passed(now))
    }

    /// Seconds from now to `step`.
    fn seconds(&self, step: u64, now: Instant) -> f64 {
        (step as f64 * self.step - now.saturating_duration_since(self.made).as_secs_f64()).max(0.0)
    }
}

/// Predicted waits, corrected by the measured ones.
#[derive(Debug, Clone)]
pub struct Forecast {
    play: Option<Play>,
    correction: f64,
}

impl Default for Forecast {
    fn default() -> Self {
        Self { play: None, correction: 1.0 }
    }
}

impl Forecast {
    /// Something changed that makes the kept play wrong.
    pub fn outdated(&mut self) {
        self.play = None;
    }

    /// A request that was predicted to wait `predicted` seconds waited `actual`.
    pub fn learn(&mut self, predicted: f64, actual: f64) {
        // Short waits say more of the tick than of the forecast.
        if predicted >= 1.0 {
            let ratio = (actual / predicted).clamp(*CORRECTION.start(), *CORRECTION.end());
            self.correction += 0.1 * (ratio - self.correction);
        }
    }

    /// Seconds until a request at the end of the queue gets in, before and after correction;
    /// `None` while the pace is unknown.
    pub fn wait(
        &mut self,
        asked: &Candidate,
        (books, queue, signals): (&Books, &Queue, &Signals),
        now: Instant,
    ) -> Option<(f64, Duration)> {
        let correction = self.correction;
        let play = self.play((books, queue, signals), now)?;
        let at = play.queued.earliest(asked, play.from(now));
        let seconds = play.seconds(at, now);
        Some((seconds, duration(seconds * correction)))
    }

    /// A request was admitted without having queued.
    pub fn admitted(&mut self, asked: &Candidate, now: Instant) {
        let Some(play) = &mut self.play else { return };
        let at = play.passed(now);
        play.queued.add_at(asked, at);
        if let Some(promised) = &mut play.promised {
            promised.add_at(asked, at);
        }
    }

    /// A request joined the end of the queue.
    pub fn queued(&mut self, asked: &Candidate, now: Instant) {
        let Some(play) = &mut self.play else { return };
        let at = play.queued.earliest(asked, play.from(now));
        play.queued.add_at(asked, at);
        if let Some(promised) = &mut play.promised {
            promised.add_at(asked, at);
        }
        play.last = at;
    }

    /// Time until a refused request would get in, behind the queue and those refused before it.
    /// With `take` the place is taken: the next one gets a later one.
    pub fn place(
        &mut self,
        asked: &Candidate,
        (books, queue, signals): (&Books, &Queue, &Signals),
        (appointments, take): (&Appointments, bool),
        now: Instant,
    ) -> Option<Duration> {
        let correction = self.correction;
        let play = self.play((books, queue, signals), now)?;
        let (step, from, passed) = (play.step, play.from(now), play.passed(now));
        let promised = play.promised.get_or_insert_with(|| {
            let mut outlook = play.queued.clone();
            for appointment in appointments.iter() {
                let due =
                    appointment.place.saturating_duration_since(now).as_secs_f64() / (step * correction);
                let at = outlook.earliest(&appointment.asked, passed + due as u64);
                outlook.add_at(&appointment.asked, at);
            }
            outlook
        });
        let at = promised.earliest(asked, from);
        if take {
            promised.add_at(asked, at);
        }
        Some(duration(play.seconds(at, now) * correction))
    }

    /// Those of the queue that will be too late, with their waits. One that has no prediction yet is
    /// judged as on arrival (over `strict` of what it has left) and gets one; the others must be late
    /// by far (over `lax` times that and a second), because they were told that they may wait.
    pub fn hopeless(
        &mut self,
        (books, queue, signals): (&Books, &mut Queue, &Signals),
        (strict, lax): (f64, f64),
        now: Instant,
    ) -> Vec<(u64, Duration)> {
        let Some(step) = books.busy_step(now) else { return Vec::new() };
        let mut outlook = Outlook::new(books, signals, now, true);
        let (mut last, mut hopeless) = (0, Vec::new());
        for waiter in queue.iter_mut() {
            let at = outlook.earliest(&waiter.asked, last);
            let seconds = at as f64 * step;
            let wait = duration(seconds * self.correction);
            let left = waiter.deadline.saturating_duration_since(now);
            let late = match waiter.predicted {
                None => wait > left.mul_f64(strict),
                Some(_) => wait > left.mul_f64(lax) + Duration::from_secs(1),
            };
            if late {
                hopeless.push((waiter.id, wait));
                continue;
            }
            let waited = now.saturating_duration_since(waiter.since).as_secs_f64();
            waiter.predicted.get_or_insert(waited + seconds);
            outlook.add_at(&waiter.asked, at);
            last = at;
        }
        hopeless
    }

    /// The kept play, or a new one where that is too old for its size.
    fn play(
        &mut self,
        (books, queue, signals): (&Books, &Queue, &Signals),
        now: Instant,
    ) -> Option<&mut Play> {
        let step = books.busy_step(now)?;
        let size = (books.len() + queue.len()) as u64;
        let keep = Duration::from_millis(100 + size);
        if self.play.as_ref().is_none_or(|play| now.saturating_duration_since(play.made) > keep) {
            let mut queued = Outlook::new(books, signals, now, true);
            let mut last = 0;
            for waiter in queue.iter() {
                last = queued.earliest(&waiter.asked, last);
                queued.add_at(&waiter.asked, last);
            }
            self.play = Some(Play { queued, promised: None, last, step, made: now });
        }
        self.play.as_mut()
    }
}

/// Seconds as a duration, at most an hour.
fn duration(seconds: f64) -> Duration {
    Duration::from_secs_f64(if seconds.is_finite() { seconds.clamp(0.0, 3600.0) } else { 3600.0 })
}
