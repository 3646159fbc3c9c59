//! What waits for the journal's thread: bounded, taken whole (group commit).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// More than this waiting means that the disk does not keep up.
const MAX_BYTES: usize = 4 << 20;

/// How long an `end` may wait for company. The promise is 50 ms at any `kill -9`; the rest is room for
/// a thread that is scheduled late.
const END_WAIT: Duration = Duration::from_millis(10);

/// What became of an `open`.
#[derive(Debug)]
pub(super) enum Pushed {
    /// It waits; the receiver hears when it is written (an error: it was not).
    Waiting(oneshot::Receiver<()>),
    /// No room.
    Full,
    /// The journal is closed.
    Closed,
}

/// Lines to be written at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) records: u64,
    acks: Vec<oneshot::Sender<()>>,
}

/// A buffer that grew beyond this is given back.
const KEEP_BYTES: usize = 256 << 10;

impl Batch {
    /// Empties it, keeping its memory; tells those who wait that their record is written, or else just
    /// lets them go.
    pub(super) fn done(&mut self, written: bool) {
        for ack in self.acks.drain(..) {
            if written {
                let _ = ack.send(());
            }
        }
        self.bytes.clear();
        self.bytes.shrink_to(KEEP_BYTES);
        self.records = 0;
    }

    fn has_room(&self, line: &[u8]) -> bool {
        self.bytes.len() + line.len() <= MAX_BYTES
    }

    fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.records += 1;
    }
}

#[derive(Debug, Default)]
struct Pending {
    batch: Batch,
    stop: bool,
    nudged: bool,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pending: Mutex<Pending>,
    wake: Condvar,
}

impl Queue {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line that somebody waits for.
    pub(super) fn open(&self, line: &[u8]) -> Pushed {
        let (ack, written) = oneshot::channel();
        let mut pending = self.pending();
        if pending.stop {
            return Pushed::Closed;
        }
        if !pending.batch.has_room(line) {
            return Pushed::Full;
        }
        pending.batch.push(line);
        pending.batch.acks.push(ack);
        // The thread looks again before it sleeps: only the first of a batch has to wake it.
        let first = pending.batch.acks.len() == 1;
        drop(pending);
        if first {
            self.wake.notify_one();
        }
        Pushed::Waiting(written)
    }

    /// Adds a line that nobody waits for; false where there is no room. A closed journal takes none.
    pub(super) fn end(&self, line: &[u8]) -> bool {
        let mut pending = self.pending();
        if pending.stop {
            return true;
        }
        if !pending.batch.has_room(line) {
            return false;
        }
        // Only the first has to wake the thread, which then sleeps for END_WAIT at most.
        let first = pending.batch.bytes.is_empty();
        pending.batch.push(line);
        drop(pending);
        if first {
            self.wake.notify_one();
        }
        true
    }

    /// Wakes the thread though nothing is to be written.
    pub(super) fn nudge(&self) {
        self.pending().nudged = true;
        self.wake.notify_one();
    }

    /// Takes no more; the thread ends after the last batch.
    pub(super) fn stop(&self) {
        self.pending().stop = true;
        self.wake.notify_one();
    }

    /// Swaps what waits into `batch`, which is empty.
    pub(super) fn take(&self, batch: &mut Batch) {
        std::mem::swap(&mut self.pending().batch, batch);
    }

    /// Waits for something to do, at most `idle` where given; true where this was the last time.
    pub(super) fn wait(&self, idle: Option<Duration>) -> bool {
        let started = Instant::now();
        let mut flush_at = None;
        let mut pending = self.pending();
        loop {
            if !pending.batch.acks.is_empty() || pending.stop || pending.nudged {
                break;
            }
            if !pending.batch.bytes.is_empty() {
                flush_at.get_or_insert_with(|| Instant::now() + END_WAIT);
            }
            let until = [flush_at, idle.map(|d| started + d)].into_iter().flatten().min();
            let Some(until) = until else {
                pending = self.wake.wait(pending).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            pending = self.wake.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        pending.nudged = false;
        pending.stop
    }
}
