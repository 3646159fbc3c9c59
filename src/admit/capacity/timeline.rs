//! KV occupancy of the engine over the decode steps to come, in blocks.
//!
//! Every running sequence grows by one token a step until it ends and gives all back, so between
//! two ends the sum only rises: its peaks are at the ends. The progress of an answer that shows no
//! tokens is known as an interval; a job then grows from its upper bound, stays at its largest
//! size, and ends by its lower bound: whatever the truth in between, the sum here is not below it.

/// The size of a block, tokens. Where it is a power of two, as engines have it, no division is needed.
#[derive(Debug, Clone, Copy)]
struct Block {
    tokens: u64,
    shift: Option<u32>,
}

impl Block {
    const fn of(tokens: u64) -> Self {
        let tokens = if tokens > 0 { tokens } else { 1 };
        Self { tokens, shift: if tokens.is_power_of_two() { Some(tokens.trailing_zeros()) } else { None } }
    }

    /// Blocks that hold so many tokens.
    const fn hold(self, tokens: u64) -> u64 {
        match self.shift {
            Some(shift) => tokens.saturating_add(self.tokens - 1) >> shift,
            None => tokens.div_ceil(self.tokens),
        }
    }
}

/// What one request holds over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The step at which it begins; 0 is now.
    pub start: u64,
    /// The last step at which it still holds its blocks.
    pub end: u64,
    /// Tokens of one sequence at `start`.
    pub tokens: u64,
    /// Tokens of one sequence at most.
    pub most: u64,
    /// Sequences.
    pub sequences: u64,
    /// Whether the last measurement of the engine's usage included it.
    pub measured: bool,
}

impl Job {
    /// Blocks held at `step`.
    const fn blocks(&self, step: u64, block: Block) -> u64 {
        if step < self.start || step > self.end {
            return 0;
        }
        let grown = self.tokens.saturating_add(step - self.start);
        let tokens = if grown < self.most { grown } else { self.most };
        self.sequences.saturating_mul(block.hold(tokens))
    }

    /// The same job, beginning at `start`.
    #[must_use]
    pub const fn at(&self, start: u64) -> Self {
        Self { start, end: start.saturating_add(self.end - self.start), ..*self }
    }

    /// The step from which on it no longer grows.
    const fn grown(&self) -> u64 {
        self.start.saturating_add(self.most.saturating_sub(self.tokens))
    }
}

/// How much may be held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// Blocks that may be held.
    pub blocks: u64,
    /// Blocks that the measured jobs hold less than they seem to (shared prefixes).
    pub shared: f64,
    /// Sequences that were measured.
    pub measured: u64,
    /// Sequences that may run at once.
    pub seats: u64,
    /// Variance of what all hold at a moment at which half of them are left, times four: blocks². 0 where
    /// every end is known.
    pub doubt: f64,
}

impl Room {
    /// Blocks that may be held while `alive` of the measured sequences are left.
    ///
    /// What k sequences share is saved k − 1 times: with each that ends, one share less.
    fn with(&self, alive: u64) -> u64 {
        if self.measured < 2 || self.shared <= 0.0 {
            return self.blocks;
        }
        let left = alive.saturating_sub(1) as f64 / (self.measured - 1) as f64;
        self.blocks.saturating_add((self.shared * left) as u64)
    }

    /// What is left free at a peak where a share of the jobs (0–1) has ended.
    ///
    /// Each of them is still there with the probability s = 1 − ended. The variance of the sum of sizes v is
    /// Σ v²·s·(1 − s): nothing at first, the most in the middle.
    fn spare(&self, ended: f64) -> u64 {
        if self.doubt <= 0.0 { 0 } else { (self.doubt * ended * (1.0 - ended)).max(0.0).sqrt() as u64 }
    }
}

/// The state at the end of one job.
#[derive(Debug, Clone, Copy)]
struct Peak {
    step: u64,
    blocks: u64,
    /// Measured sequences that are still there.
    alive: u64,
}

/// The jobs in the engine and the peaks of their sum.
#[derive(Debug, Clone)]
pub struct Timeline {
    block: Block,
    jobs: Vec<Job>,
    /// Sequences of those that have begun.
    begun: u64,
    /// One for each job's end, by step.
    peaks: Vec<Peak>,
}

impl Timeline {
    /// The timeline of jobs that have all begun (`start` = 0); O(n log n).
    #[must_use]
    pub fn new(jobs: Vec<Job>, block: u64) -> Self {
        let peaks = peaks(&jobs, Block::of(block));
        let begun = jobs.iter().map(|job| job.sequences).sum();
        Self { block: Block::of(block), jobs, begun, peaks }
    }

    /// Whether no job is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Blocks held at `step` and the measured sequences alive then; O(n).
    fn at(&self, step: u64) -> (u64, u64) {
        self.jobs.iter().filter(|job| job.start <= step && step <= job.end).fold(
            (0, 0),
            |(blocks, alive), job| {
                let alive = if job.measured { alive + job.sequences } else { alive };
                (blocks + job.blocks(step, self.block), alive)
            },
        )
    }

    /// Sequences running at `step`; O(n), but for now.
    #[must_use]
    pub fn sequences(&self, step: u64) -> u64 {
        if step == 0 {
            return self.begun;
        }
        self.jobs.iter().filter(|job| job.start <= step && step <= job.end).map(|job| job.sequences).sum()
    }

    /// The largest occupancy that is to come, blocks.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peaks.iter().map(|peak| peak.blocks).max().unwrap_or(0)
    }

    /// Whether `job` fits from its start to its end; O(n).
    #[must_use]
    pub fn fits(&self, job: &Job, room: &Room) -> bool {
        self.conflict(job, room).is_none() && self.sequences(job.start) + job.sequences <= room.seats
    }

    /// Adds a job; O(n).
    pub fn add(&mut self, job: Job) {
        for peak in &mut self.peaks {
            if job.start <= peak.step && peak.step <= job.end {
                peak.blocks += job.blocks(peak.step, self.block);
                peak.alive += if job.measured { job.sequences } else { 0 };
            }
        }
        self.jobs.push(job);
        self.begun += if job.start == 0 { job.sequences } else { 0 };
        let (blocks, alive) = self.at(job.end);
        let place = self.peaks.partition_point(|peak| peak.step < job.end);
        self.peaks.insert(place, Peak { step: job.end, blocks, alive });
    }

    /// Takes out the job in this place, in whose place the last one then is; O(n).
    pub fn remove(&mut self, place: usize) -> Job {
        let job = self.jobs.swap_remove(place);
        let end = self.peaks.partition_point(|peak| peak.step < job.end);
        self.peaks.remove(end);
        for peak in &mut self.peaks {
            if job.start <= peak.step && peak.step <= job.end {
                peak.blocks -= job.blocks(peak.step, self.block);
                peak.alive -= if job.measured { job.sequences } else { 0 };
            }
        }
        self.begun -= if job.start == 0 { job.sequences } else { 0 };
        job
    }

    /// The first step from `from` on at which `job` could begin and fit to its end.
    ///
    /// One pass over the peaks: a later start is smaller at each peak that was passed, so that none
    /// is looked at twice. With nothing else in the engine a job always fits.
    #[must_use]
    pub fn earliest(&self, job: &Job, from: u64, room: &Room) -> u64 {
        let mut job = job.at(from);
        let mut place = 0;
        loop {
            place += self.peaks[place..].partition_point(|peak| peak.step < job.start);
            let Some(peak) = self.peaks.get(place) else { return job.start };
            if room.seats < u64::MAX && self.sequences(job.start) + job.sequences > room.seats {
                job = job.at(peak.step + 1);
            } else if let Some(later) = self.pass(&job, &mut place, room) {
                job = job.at(later);
            } else {
                return job.start;
            }
        }
    }

    /// Whether `job` meets no peak that is too high, its own included.
    fn conflict(&self, job: &Job, room: &Room) -> Option<u64> {
        let mut place = self.peaks.partition_point(|peak| peak.step < job.start);
        self.pass(job, &mut place, room)
    }

    /// Goes on from `place` to the first peak at which `job` is too much: the start that resolves it.
    fn pass(&self, job: &Job, place: &mut usize, room: &Room) -> Option<u64> {
        // What may be held at any peak: few are so high that their own limit must be asked for.
        let always = room.blocks.saturating_sub(room.spare(0.5));
        while let Some(peak) = self.peaks.get(*place).filter(|peak| peak.step <= job.end) {
            let held = peak.blocks + job.blocks(peak.step, self.block);
            if held > always {
                let limit = self.limit(*place, peak, room);
                if held > limit {
                    return Some(resolve(job, peak, limit, self.block));
                }
            }
            *place += 1;
        }
        // Its own end is a peak too. The sum only rises to the next one: if it fits there, it fits.
        // After the last of the others it is alone, and fits.
        let next = self.peaks.get(*place)?;
        let own = job.blocks(job.end, self.block);
        let limit = self.limit(*place, next, room);
        if next.blocks + own <= limit {
            return None;
        }
        let (blocks, alive) = self.at(job.end);
        if blocks == 0 || blocks + own <= self.limit(*place, &Peak { step: job.end, blocks, alive }, room) {
            return None;
        }
        let lasting = Job { end: u64::MAX, ..*job };
        Some(resolve(&lasting, next, limit, self.block))
    }

    /// Blocks that may be held at the peak in this place.
    fn limit(&self, place: usize, peak: &Peak, room: &Room) -> u64 {
        let ended = place as f64 / self.peaks.len().max(1) as f64;
        room.with(peak.alive).saturating_sub(room.spare(ended))
    }
}

/// The start at which `job` is small enough at `peak`, or begins after it.
const fn resolve(job: &Job, peak: &Peak, limit: u64, block: Block) -> u64 {
    let free = limit.saturating_sub(peak.blocks);
    let tokens = (free / if job.sequences > 0 { job.sequences } else { 1 }).saturating_mul(block.tokens);
    if tokens < job.tokens {
        return peak.step.saturating_add(1);
    }
    let start = peak.step.saturating_sub(tokens - job.tokens);
    if start > job.start { start } else { job.start.saturating_add(1) }
}

/// Weighted counts by residue, with sums over a range (a Fenwick tree).
struct Residues(Vec<u64>);

impl Residues {
    fn add(&mut self, residue: u64, weight: u64) {
        let mut i = residue as usize + 1;
        while i < self.0.len() {
            self.0[i] += weight;
            i += i & i.wrapping_neg();
        }
    }

    /// The sum over residues up to and including `residue`.
    fn up_to(&self, residue: u64) -> u64 {
        let mut i = (residue as usize + 1).min(self.0.len() - 1);
        let mut sum = 0;
        while i > 0 {
            sum += self.0[i];
            i &= i - 1;
        }
        sum
    }
}

/// The growing jobs of a moment: the sum of ⌈(v + t) / block⌉ over them, for any t.
struct Growing {
    block: u64,
    sequences: u64,
    whole: u64,
    residues: Residues,
}

impl Growing {
    fn add(&mut self, job: &Job) {
        self.sequences += job.sequences;
        self.whole += job.sequences * (job.tokens / self.block);
        self.residues.add(job.tokens % self.block, job.sequences);
    }

    /// With v = block·q + m and t = block·Q + M the term is q + Q + ⌈(m + M) / block⌉.
    fn blocks(&self, step: u64) -> u64 {
        let (whole, rest) = (step / self.block, step % self.block);
        let carried = if rest == 0 {
            self.sequences - self.residues.up_to(0)
        } else {
            self.sequences + self.sequences - self.residues.up_to(self.block - rest)
        };
        self.whole + whole * self.sequences + carried
    }
}

/// A step of each job with the job's place, the last step first: plain numbers sort without a look at the jobs.
fn from_the_last(jobs: &[Job], step: impl Fn(&Job) -> u64) -> Vec<(u64, u32)> {
    let mut all: Vec<(u64, u32)> = jobs.iter().map(step).zip(0..).collect();
    all.sort_unstable_by_key(|(step, _)| std::cmp::Reverse(*step));
    all
}

/// The peaks of jobs that have all begun, from the last end to the first.
fn peaks(jobs: &[Job], block: Block) -> Vec<Peak> {
    let by_end = from_the_last(jobs, |job| job.end);
    let by_grown = from_the_last(jobs, |job| job.grown().min(job.end));
    let residues = Residues(vec![0; block.tokens as usize + 1]);
    let mut growing = Growing { block: block.tokens, sequences: 0, whole: 0, residues };
    let (mut full, mut alive, mut ended, mut grown) = (0, 0, 0, 0);
    let mut peaks = Vec::with_capacity(jobs.len() + 1);
    for (step, _) in by_end.iter().copied() {
        while let Some((_, place)) = by_end.get(ended).filter(|(end, _)| *end >= step) {
            let job = &jobs[*place as usize];
            full += job.sequences * block.hold(job.most.max(job.tokens));
            alive += if job.measured { job.sequences } else { 0 };
            ended += 1;
        }
        while let Some((_, place)) = by_grown.get(grown).filter(|(grown, _)| *grown >= step) {
            let job = &jobs[*place as usize];
            full -= job.sequences * block.hold(job.most.max(job.tokens));
            growing.add(job);
            grown += 1;
        }
        peaks.push(Peak { step, blocks: full + growing.blocks(step), alive });
    }
    peaks.reverse();
    peaks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn jobs() -> impl Strategy<Value = Vec<Job>> {
        let job = (1u64..300, 0u64..200, 0u64..60, 1u64..4, any::<bool>());
        proptest::collection::vec(job, 0..25).prop_map(|all| {
            let build = |(tokens, grow, stay, sequences, measured)| Job {
                start: 0,
                end: grow + stay,
                tokens,
                most: tokens + grow,
                sequences,
                measured,
            };
            all.into_iter().map(build).collect()
        })
    }

    fn room(blocks: u64) -> Room {
        Room { blocks, shared: 0.0, measured: 0, seats: u64::MAX, doubt: 0.0 }
    }

    proptest! {
        #[test]
        fn the_peaks_are_those_of_the_plain_sum(jobs in jobs(), block in 1u64..40) {
            let timeline = Timeline::new(jobs.clone(), block);
            for peak in &timeline.peaks {
                prop_assert_eq!((peak.blocks, peak.alive), timeline.at(peak.step), "at {}", peak.step);
            }
            let longest = (0..=260).map(|step| timeline.at(step).0).max().unwrap_or(0);
            prop_assert_eq!(timeline.peak(), longest);
        }

        #[test]
        fn a_job_fits_exactly_where_no_step_is_over(jobs in jobs(), block in 1u64..40, spare in 0u64..60,
            tokens in 1u64..200, grow in 0u64..200, from in 0u64..100) {
            let timeline = Timeline::new(jobs, block);
            let limit = timeline.peak().max((tokens + grow).div_ceil(block)) + spare;
            let job = Job { start: 0, end: grow, tokens, most: tokens + grow, sequences: 1, measured: false };
            let fits_at = |start: u64| {
                let job = job.at(start);
                (start..=job.end).all(|step| {
                    let held = timeline.at(step).0;
                    held == 0 || held + job.blocks(step, Block::of(block)) <= limit
                })
            };
            prop_assert_eq!(timeline.fits(&job.at(from), &room(limit)), fits_at(from));
            let first = timeline.earliest(&job, from, &room(limit));
            prop_assert!(fits_at(first));
            prop_assert!((from..first).all(|start| !fits_at(start)), "{first} is not the first");
            let mut added = timeline.clone();
            added.add(job.at(first));
            prop_assert!(added.peak() <= limit);
            let plain = (0..=700).map(|step| added.at(step).0).max().unwrap_or(0);
            prop_assert_eq!(added.peak(), plain);
        }

        #[test]
        fn without_a_job_it_is_as_if_that_had_never_been(jobs in jobs(), block in 1u64..40, place in 0usize..25,
            added in (1u64..200, 0u64..200)) {
            let (tokens, grow) = added;
            let job = Job { start: 0, end: grow, tokens, most: tokens + grow, sequences: 1, measured: false };
            let mut timeline = Timeline::new(jobs, block);
            timeline.add(job);
            timeline.remove(place % timeline.jobs.len());
            let anew = Timeline::new(timeline.jobs.clone(), block);
            prop_assert_eq!((timeline.peak(), timeline.sequences(0)), (anew.peak(), anew.sequences(0)));
            for peak in &timeline.peaks {
                prop_assert_eq!((peak.blocks, peak.alive), anew.at(peak.step));
            }
            prop_assert_eq!(timeline.earliest(&job, 0, &room(100)), anew.earliest(&job, 0, &room(100)));
        }

        #[test]
        fn seats_are_never_exceeded(jobs in jobs(), seats in 1u64..20, sequences in 1u64..4) {
            let timeline = Timeline::new(jobs, 16);
            let job = Job { start: 0, end: 50, tokens: 10, most: 60, sequences, measured: false };
            let room = Room { seats, ..room(u64::MAX / 4) };
            let start = timeline.earliest(&job, 0, &room);
            prop_assert!(timeline.sequences(start) == 0 || timeline.sequences(start) + sequences <= seats);
        }
    }

    #[test]
    fn what_is_shared_is_saved_once_less_with_each_that_ends() {
        let room = Room { blocks: 100, shared: 30.0, measured: 4, seats: 9, doubt: 0.0 };
        assert_eq!([4, 3, 2, 1, 0].map(|alive| room.with(alive)), [130, 120, 110, 100, 100]);
    }
}
