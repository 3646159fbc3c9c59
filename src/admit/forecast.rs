//! When a request would get in: the decision played forward over what is in flight and queued.
//!
//! Virtual time is in decode steps; the pace makes seconds of it. The forecast is kept for a
//! moment and extended by each arrival, so that a burst costs O(n) each and not O(n²); what ends
//! earlier or later than forecast shows in the next one. The play knows the KV pool and the seats; where
//! prefill is what holds the queue, the rate at which it was served of late says more, and the later
//! of the two counts.

use std::time::Duration;

use tokio::time::Instant;

use super::appointments::Appointments;
use super::capacity::{Books, Candidate, Outlook};
use super::queue::{Queue, cost};
use super::signals::Signals;

/// How far a measured wait corrects a predicted one.
const CORRECTION: std::ops::RangeInclusive<f64> = 0.5..=3.0;
/// So many of the queue are played, in the order in which they will be served; those behind them get in
/// at the rate of these.
const PLAYED: usize = 64;
/// The span over which the served cost is measured, seconds, and the weight of one.
const SPAN: f64 = 0.5;
const GAIN: f64 = 0.07;

/// What the admission knows, for the forecast.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// What is in flight.
    pub books: &'a Books,
    /// Who waits.
    pub queue: &'a Queue,
    /// The last scrape.
    pub signals: &'a Signals,
    /// Whether prefill is what holds the queue.
    pub prefill: bool,
}

/// The play.
#[derive(Debug, Clone)]
struct Play {
    /// With the queue in it.
    queued: Outlook,
    /// With the appointments too, where anybody asked.
    promised: Option<Outlook>,
    /// Cost served up to a step, in the order of the queue.
    served: Vec<(f64, u64)>,
    /// Seconds per step.
    step: f64,
    made: Instant,
}

impl Play {
    /// Steps that have passed since it was made.
    fn passed(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.made).as_secs_f64() / self.step) as u64
    }

    /// The step at which so much cost has been served.
    fn at(&self, ahead: f64) -> u64 {
        let Some((all, last)) = self.served.last().copied() else { return 0 };
        if ahead > all + 0.5 {
            // Beyond what was played: at its rate.
            return last + ((ahead - all) * last.max(1) as f64 / all.max(1.0)) as u64;
        }
        let place = self.served.partition_point(|(served, _)| *served + 0.5 < ahead);
        if ahead <= 0.0 { 0 } else { self.served.get(place).map_or(last, |(_, step)| *step) }
    }

    /// Seconds from now to `step`.
    fn seconds(&self, step: u64, now: Instant) -> f64 {
        (step as f64 * self.step - now.saturating_duration_since(self.made).as_secs_f64()).max(0.0)
    }
}

/// The cost that the queue was served per second of late.
#[derive(Debug, Clone, Default)]
struct Drain {
    rate: f64,
    spent: f64,
    since: Option<Instant>,
    /// Since when somebody has waited.
    standing: Option<Instant>,
}

impl Drain {
    fn look(&mut self, waiting: bool, now: Instant) {
        self.standing = if waiting { self.standing.or(Some(now)) } else { None };
        let since = *self.since.get_or_insert(now);
        let span = now.saturating_duration_since(since).as_secs_f64();
        if span >= SPAN {
            let rate = self.spent / span;
            if self.rate == 0.0 {
                self.rate = rate;
            } else if waiting || rate > self.rate {
                self.rate += GAIN * (rate - self.rate);
            }
            (self.spent, self.since) = (0.0, Some(now));
        }
    }

    /// Seconds that so much cost takes, where prefill holds the queue and it has stood long enough to know:
    /// the KV pool is served in waves, of which this says nothing.
    fn seconds(&self, ahead: f64, prefill: bool, now: Instant) -> f64 {
        let stood = self.standing.map_or(0.0, |since| now.saturating_duration_since(since).as_secs_f64());
        if prefill && self.rate > 0.0 && stood >= 2.0 { ahead / self.rate } else { 0.0 }
    }
}

/// What will become of those that wait.
#[derive(Debug, Clone, Default)]
pub struct Fates {
    /// Those that will be too late, with their waits from now.
    pub late: Vec<(u64, Duration)>,
    /// The waits of the others, from their arrival and before correction, seconds.
    pub predicted: Vec<(u64, f64)>,
}

/// Predicted waits, corrected by the measured ones.
#[derive(Debug, Clone)]
pub struct Forecast {
    play: Option<Play>,
    drain: Drain,
    correction: f64,
}

impl Default for Forecast {
    fn default() -> Self {
        Self { play: None, drain: Drain::default(), correction: 1.0 }
    }
}

impl Forecast {
    /// Something changed that makes the kept play wrong.
    pub fn outdated(&mut self) {
        self.play = None;
    }

    /// Looks at the queue; call it often.
    pub fn look(&mut self, waiting: bool, now: Instant) {
        self.drain.look(waiting, now);
    }

    /// A request that was predicted to wait `predicted` seconds waited `actual`.
    pub fn learn(&mut self, predicted: f64, actual: f64) {
        // Short waits say more of the tick than of the forecast.
        if predicted >= 1.0 {
            let ratio = (actual / predicted).clamp(*CORRECTION.start(), *CORRECTION.end());
            self.correction += 0.1 * (ratio - self.correction);
        }
    }

    /// Seconds until a request that joins the queue now gets in, before and after correction;
    /// `None` while the pace is unknown.
    pub fn wait(&mut self, asked: &Candidate, known: Known<'_>, now: Instant) -> Option<(f64, Duration)> {
        let correction = self.correction;
        let ahead = known.queue.ahead(asked, &known.books.shares);
        let drained = self.drain.seconds(ahead, known.prefill, now);
        let play = self.play(known, now)?;
        let at = play.queued.earliest(asked, play.at(ahead).max(play.passed(now)));
        let seconds = play.seconds(at, now).max(drained);
        Some((seconds, duration(seconds * correction)))
    }

    /// A request was admitted without having queued.
    pub fn admitted(&mut self, asked: &Candidate, now: Instant) {
        self.drain.spent += cost(asked);
        let Some(play) = &mut self.play else { return };
        let at = play.passed(now);
        play.queued.add_at(asked, at);
        if let Some(promised) = &mut play.promised {
            promised.add_at(asked, at);
        }
    }

    /// A request was admitted from the queue.
    pub fn served(&mut self, asked: &Candidate) {
        self.drain.spent += cost(asked);
    }

    /// A request joined the queue, with so much cost before it.
    pub fn queued(&mut self, asked: &Candidate, ahead: f64, now: Instant) {
        let Some(play) = &mut self.play else { return };
        let all = play.served.last().map_or(0.0, |(served, _)| *served);
        if ahead + 0.5 < all || play.served.len() >= PLAYED {
            // Somebody is behind it, or it is behind what is played.
            self.play = self.play.take().filter(|play| play.served.len() >= PLAYED && ahead + 0.5 >= all);
            return;
        }
        let at = play.queued.earliest(asked, play.at(all).max(play.passed(now)));
        play.queued.add_at(asked, at);
        if let Some(promised) = &mut play.promised {
            promised.add_at(asked, at);
        }
        play.served.push((all + cost(asked), at));
    }

    /// Time until a refused request would get in, behind the queue and those refused before it.
    /// With `take` the place is taken: the next one gets a later one.
    pub fn place(
        &mut self,
        asked: &Candidate,
        known: Known<'_>,
        (appointments, take): (&Appointments, bool),
        now: Instant,
    ) -> Option<Duration> {
        let correction = self.correction;
        let ahead = known.queue.ahead(asked, &known.books.shares);
        let drained = self.drain.seconds(ahead + if take { cost(asked) } else { 0.0 }, known.prefill, now);
        let play = self.play(known, now)?;
        let (step, from, passed) = (play.step, play.at(ahead), play.passed(now));
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
        let at = promised.earliest(asked, from.max(passed));
        if take {
            promised.add_at(asked, at);
        }
        Some(duration(play.seconds(at, now).max(drained) * correction))
    }

    /// Those of the queue that will be too late, with their waits, and the predictions of the others. One
    /// that has no prediction yet is judged as on arrival (over `strict` of what it has left); the
    /// others must be late by far (over `lax` times that and a second), because they were told that
    /// they may wait.
    pub fn hopeless(&mut self, known: Known<'_>, (strict, lax): (f64, f64), now: Instant) -> Fates {
        let mut fates = Fates::default();
        let Some(step) = known.books.busy_step(now) else { return fates };
        let mut outlook = Outlook::new(known.books, known.signals, now, true);
        let (mut last, mut served, mut played) = (0, 0.0, 0);
        for waiter in known.queue.in_order(&known.books.shares, usize::MAX) {
            let at = if played < PLAYED {
                outlook.earliest(&waiter.asked, last)
            } else {
                last + (waiter.cost() * last.max(1) as f64 / f64::max(served, 1.0)) as u64
            };
            let seconds = (at as f64 * step).max(self.drain.seconds(served, known.prefill, now));
            let wait = duration(seconds * self.correction);
            let left = waiter.deadline.saturating_duration_since(now);
            let late = match waiter.predicted {
                None => wait > left.mul_f64(strict),
                Some(_) => wait > left.mul_f64(lax) + Duration::from_secs(1),
            };
            if late {
                fates.late.push((waiter.id, wait));
                continue;
            }
            let waited = now.saturating_duration_since(waiter.since).as_secs_f64();
            fates.predicted.push((waiter.id, waited + seconds));
            if played < PLAYED {
                outlook.add_at(&waiter.asked, at);
                played += 1;
            }
            served += waiter.cost();
            last = at;
        }
        fates
    }

    /// The kept play, or a new one where that is too old for its size.
    fn play(&mut self, known: Known<'_>, now: Instant) -> Option<&mut Play> {
        let step = known.books.busy_step(now)?;
        let size = (known.books.len() + known.queue.len()) as u64;
        let keep = Duration::from_millis(100 + size);
        if self.play.as_ref().is_none_or(|play| now.saturating_duration_since(play.made) > keep) {
            let mut queued = Outlook::new(known.books, known.signals, now, true);
            let (mut last, mut all) = (0, 0.0);
            let mut served = Vec::new();
            for waiter in known.queue.in_order(&known.books.shares, PLAYED) {
                last = queued.earliest(&waiter.asked, last);
                queued.add_at(&waiter.asked, last);
                all += waiter.cost();
                served.push((all, last));
            }
            self.play = Some(Play { queued, promised: None, served, step, made: now });
        }
        self.play.as_mut()
    }
}

/// Seconds as a duration, at most an hour.
fn duration(seconds: f64) -> Duration {
    Duration::from_secs_f64(if seconds.is_finite() { seconds.clamp(0.0, 3600.0) } else { 3600.0 })
}
