//! Whether the disk has lately been quick enough to be written to on a thread that others need.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A write into the page cache takes microseconds; one that took longer met the disk. The margin is for
/// a writer that was put off a busy processor meanwhile.
const QUICK: Duration = Duration::from_millis(20);

/// How long the last quick write speaks for the next.
const LATELY: Duration = Duration::from_secs(1);

/// When the last quick write was.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    /// Microseconds after `began` plus one; 0: the last write was slow, or there was none.
    quick_at: AtomicU64,
    /// Whether each write is forced to the disk: then none is quick.
    sync: bool,
}

impl Pace {
    pub(super) fn new(sync: bool) -> Self {
        Self { began: Instant::now(), quick_at: AtomicU64::new(0), sync }
    }

    /// A write took so long.
    pub(super) fn took(&self, time: Duration) {
        let at = if time < QUICK { self.micros().saturating_add(1) } else { 0 };
        self.quick_at.store(at, Ordering::Relaxed);
    }

    pub(super) fn is_quick(&self) -> bool {
        let at = self.quick_at.load(Ordering::Relaxed);
        !self.sync && at > 0 && Duration::from_micros(self.micros().saturating_sub(at)) < LATELY
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX - 1)
    }
}
