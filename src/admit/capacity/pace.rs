//! How fast the engine generates: seconds per token of one sequence, from whatever shows it.

use std::time::Duration;

use tokio::time::Instant;

/// How long a source is preferred after it last spoke.
const RECENT: Duration = Duration::from_secs(10);

/// Weight from which on the gaps of streams are believed: some eight tokens.
const ENOUGH_GAPS: f64 = 0.15;

/// A mean that forgets.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    value: f64,
    weight: f64,
    at: Option<Instant>,
}

impl Mean {
    /// Takes `value` in with `gain` (0–1); the first ones count in full, so that it starts unbiased.
    fn take(&mut self, value: f64, gain: f64, now: Instant) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        self.weight = (self.weight * (1.0 - gain)) + gain;
        self.value += (value - self.value) * (gain / self.weight).clamp(0.0, 1.0);
        self.at = Some(now);
    }

    fn known(&self) -> Option<f64> {
        self.at.map(|_| self.value)
    }

    fn recent(&self, now: Instant) -> Option<f64> {
        self.at.filter(|at| now.saturating_duration_since(*at) <= RECENT).map(|_| self.value)
    }
}

/// Progress of a plain answer is taken to be between these shares of what the pace says, until
/// answers that ended have shown how well the pace describes them.
const UNPROVEN: (f64, f64) = (0.9, 1.15);
/// Plain answers that prove it, and the least width that is then left on either side.
const PROOF: u32 = 3;
const LEAST_WIDTH: f64 = 0.03;
/// Widths are so many mean deviations.
const DEVIATIONS: f64 = 3.0;

/// Classes of how many sequences ran, by powers of two.
const CROWDS: usize = 17;

/// How much longer a step is with more sequences in it: a mean step for each power of two that was seen.
#[derive(Debug, Clone, Default)]
struct Crowds {
    steps: [Mean; CROWDS],
    last: Option<usize>,
}

impl Crowds {
    fn class(running: u64) -> usize {
        (running.max(1).ilog2() as usize).min(CROWDS - 1)
    }

    fn take(&mut self, running: u64, step: f64, gain: f64, now: Instant) {
        let class = Self::class(running);
        self.steps[class].take(step, gain, now);
        self.last = Some(class);
    }

    /// By what a step with so many is longer than those seen last; 1 where that was never seen.
    fn longer(&self, running: u64) -> f64 {
        let known = |class: usize| self.steps[class].known().filter(|step| *step > 0.0);
        let ratio = || Some(known(Self::class(running))? / known(self.last?)?);
        ratio().unwrap_or(1.0)
    }
}

/// Learned times of the engine.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    stream: Mean,
    scrape: Mean,
    plain: Mean,
    lead: Mean,
    crowds: Crowds,
    /// Requests running at the scrape before.
    running: Option<f64>,
    /// Scrapes in a row in whose time somebody was in prefill.
    mixed: u32,
    /// Steps that the engine has made up to a moment, summed over the scrapes: what varies from one
    /// to the next averages out over the life of an answer.
    clock: f64,
    clock_at: Option<Instant>,
    /// Tokens that the pace said over tokens that came, of plain answers; and its deviation.
    ratio: Mean,
    deviation: Mean,
    proofs: u32,
}

/// With fewer running, on average, a rate says nothing of one sequence.
const LEAST_RUNNING: f64 = 0.01;

/// Scrapes with prefill in them that are passed over before one is believed all the same.
const MOST_MIXED: u32 = 30;

/// When an answer began, by tokio's clock and by the engine's.
#[derive(Debug, Clone, Copy)]
pub struct Began {
    /// When it was admitted.
    pub at: Instant,
    /// [`Pace::clock`] then; known once a scrape has shown the steps around it.
    pub clock: Option<f64>,
}

/// What a scrape shows of the time since the one before.
#[derive(Debug, Clone, Copy)]
pub struct Scrape {
    /// Sequences running now.
    pub running: f64,
    /// How many of ours were in flight in that time, on average.
    pub ours: Option<f64>,
    /// Whether what runs now is just what is ours.
    pub all_ours: bool,
    /// Tokens per second that all running requests generated together.
    pub rate: Option<f64>,
    /// That none of them was in prefill: a step that computes a prompt takes many times as long as one
    /// that decodes, and tells nothing of the pace. Only where no other time has been seen for long is
    /// such a one believed.
    pub decoding: bool,
}

impl Scrape {
    /// Whether clearly more runs than is ours.
    fn foreign(&self) -> bool {
        self.ours.is_none_or(|ours| self.running > ours + 1.5)
    }
}

impl Pace {
    /// A stream generated `tokens` per sequence in `gap`, while so many sequences were `running`.
    pub fn streamed(&mut self, tokens: u64, gap: Duration, running: u64, now: Instant) {
        if tokens > 0 {
            let gain = 1.0 - 0.98f64.powi(tokens.min(1000) as i32);
            let step = gap.as_secs_f64() / tokens as f64;
            self.stream.take(step, gain, now);
            self.crowds.take(running, step, gain, now);
        }
    }

    /// The engine's own counter, a scrape later.
    pub fn scraped(&mut self, scrape: &Scrape, now: Instant) {
        let Scrape { running, ours, all_ours, rate, decoding } = *scrape;
        self.mixed = if decoding { 0 } else { self.mixed.saturating_add(1) };
        let tells = decoding || self.mixed > MOST_MIXED;
        let before = self.running.replace(running).unwrap_or(running);
        // Else there are the numbers of two moments: where they differ much, the pace is rather taken
        // for too slow.
        let little = (running - before).abs() <= 1.0 + 0.1 * before && before >= 1.0;
        let between = if little { f64::midpoint(running, before) } else { running.max(before) };
        let trusted = ours.filter(|_| all_ours);
        let gain = if trusted.is_some() || running == before { 0.3 } else { 0.05 };
        let mean = trusted.unwrap_or(between);
        if let Some(rate) = rate.filter(|rate| *rate > 0.0 && mean >= 0.5 && tells) {
            self.scrape.take(mean / rate, gain, now);
            self.crowds.take(mean.round() as u64, mean / rate, gain, now);
        }
        let mean = ours.filter(|_| all_ours || !scrape.foreign()).unwrap_or(between);
        let each = match rate {
            Some(rate) if mean >= LEAST_RUNNING => Some(rate / mean),
            Some(_) => Some(0.0),
            None => self.step(now).map(|step| 1.0 / step),
        };
        if let (Some(each), Some(before)) = (each.filter(|each| each.is_finite()), self.clock_at) {
            self.clock += each.max(0.0) * now.saturating_duration_since(before).as_secs_f64();
        }
        self.clock_at = Some(now);
    }

    /// Steps up to the last scrape, and when that was; `None` before the first.
    #[must_use]
    pub fn counted(&self) -> Option<(f64, Instant)> {
        self.clock_at.map(|at| (self.clock, at))
    }

    /// Steps that the engine has made since some beginning; `None` before the first scrape.
    #[must_use]
    pub fn clock(&self, now: Instant) -> Option<f64> {
        let since = now.saturating_duration_since(self.clock_at?).as_secs_f64();
        Some(self.clock + self.step(now).map_or(0.0, |step| since / step))
    }

    /// A plain answer of `tokens` per sequence, in the engine since `began`, ended.
    pub fn completed_plain(&mut self, tokens: u64, began: &Began, now: Instant) {
        if tokens == 0 {
            return;
        }
        // Short answers say more of the prefill than of the pace.
        if let Some((said, _)) = self.said(began, now).filter(|_| tokens >= 16) {
            let ratio = said / tokens as f64;
            let off = (ratio - self.ratio.known().unwrap_or(ratio)).abs();
            self.ratio.take(ratio, 0.1, now);
            self.deviation.take(off, 0.1, now);
            self.proofs = self.proofs.saturating_add(1);
        }
        let seconds = now.saturating_duration_since(began.at).as_secs_f64();
        self.plain.take(seconds / tokens as f64, 0.2, now);
    }

    /// Tokens per sequence of a plain answer by the steps that were counted since it began; where none
    /// were, by the pace alone, without and with the time to its first.
    fn said(&self, began: &Began, now: Instant) -> Option<(f64, f64)> {
        let step = self.step(now)?;
        if let Some(steps) = began.clock.and_then(|began| Some((self.clock(now)? - began).max(0.0))) {
            return Some((steps, steps));
        }
        let steps = now.saturating_duration_since(began.at).as_secs_f64() / step;
        Some(((steps - self.lead() / step).max(0.0), steps))
    }

    /// Tokens that a plain answer has generated per sequence: at least, at most. `None` while the
    /// pace is unknown.
    #[must_use]
    pub fn progress(&self, began: &Began, now: Instant) -> Option<(f64, f64)> {
        let (said, without_lead) = self.said(began, now)?;
        let (least, most) = if self.proofs < PROOF {
            UNPROVEN
        } else {
            let width = (DEVIATIONS * self.deviation.value).max(LEAST_WIDTH);
            let ratio = self.ratio.value.max(0.1);
            ((1.0 - width).max(0.0) / ratio, (1.0 + width) / ratio)
        };
        Some((said * least, without_lead * most))
    }

    /// The first token came `after` the request was admitted.
    pub fn first_token(&mut self, after: Duration, now: Instant) {
        self.lead.take(after.as_secs_f64(), 0.1, now);
    }

    /// Seconds per token of one sequence, where anything has shown it.
    #[must_use]
    pub fn step(&self, now: Instant) -> Option<f64> {
        // The first gaps of a stream may hold somebody else's prefill.
        let stream = Some(&self.stream).filter(|stream| stream.weight >= ENOUGH_GAPS);
        let sources = [stream, Some(&self.scrape), Some(&self.plain)];
        let recent = sources.iter().flatten().find_map(|source| source.recent(now));
        recent
            .or_else(|| sources.iter().flatten().find_map(|source| source.known()))
            .filter(|step| *step > 0.0)
    }

    /// The same while so many sequences run together.
    #[must_use]
    pub fn step_with(&self, running: u64, now: Instant) -> Option<f64> {
        Some(self.step(now)? * self.crowds.longer(running))
    }

    /// Seconds from admission to the first token; zero where no stream has shown it.
    #[must_use]
    pub fn lead(&self) -> f64 {
        self.lead.known().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn scrape(running: f64, rate: f64) -> Scrape {
        Scrape { running, ours: None, all_ours: false, rate: Some(rate), decoding: true }
    }

    #[test]
    fn plain_progress_is_a_wide_interval_until_answers_have_proved_the_pace() {
        let mut t = Instant::now();
        let mut pace = Pace::default();
        let began = Began { at: t, clock: pace.clock(t) };
        assert_eq!(pace.progress(&began, t), None);
        pace.scraped(&scrape(4.0, 80.0), t);
        let began = Began { at: t, clock: pace.clock(t) };
        assert_eq!((pace.step(t), began.clock), (Some(0.05), Some(0.0)));
        t += 10 * SECOND;
        let (least, most) = pace.progress(&began, t).unwrap();
        assert!((least - 180.0).abs() < 1e-6 && (most - 230.0).abs() < 1e-6, "{least} {most}");
        // 200 steps make 180 tokens each time: the ratio takes it in.
        (0..5).for_each(|_| pace.completed_plain(180, &began, t));
        let (least, most) = pace.progress(&began, t).unwrap();
        assert!(least < 180.0 && most > 180.0 && most - least < 15.0, "{least} {most}");
    }

    #[test]
    fn a_pace_seen_with_one_becomes_that_of_a_crowd_that_was_seen_before() {
        let t = Instant::now();
        let mut pace = Pace::default();
        (0..50).for_each(|_| pace.streamed(1, Duration::from_millis(28), 4, t));
        (0..400).for_each(|_| pace.streamed(1, Duration::from_millis(16), 1, t));
        let near = |step: Option<f64>, seconds: f64| (step.unwrap() - seconds).abs() < 1e-3;
        assert!(near(pace.step_with(1, t), 0.016) && near(pace.step_with(5, t), 0.028));
        assert!(near(pace.step_with(16, t), 0.016), "never seen: as it is");
    }

    #[test]
    fn the_clock_sums_what_each_scrape_shows() {
        let mut t = Instant::now();
        let mut pace = Pace::default();
        for (running, rate) in [(4.0, 80.0), (4.0, 40.0), (4.0, 120.0), (3.0, 70.0)] {
            pace.scraped(&scrape(running, rate), t);
            t += SECOND;
        }
        let clock = pace.clock(t - SECOND).unwrap();
        assert_eq!(pace.counted(), Some((clock, t - SECOND)));
        assert!((clock - (10.0 + 30.0 + 20.0)).abs() < 1e-9, "{clock}");
        assert!(pace.clock(t).unwrap() > clock + 10.0);
        pace.scraped(&scrape(4.0, 0.0), t);
        assert_eq!(pace.counted(), Some((clock, t)), "no token, no step");
    }
}
