//! The journal on disk: what was with the engine, for whoever starts after this process died.
//!
//! # Who writes
//!
//! One thread writes, for all who wait (group commit), and a request waits for its word for a bounded time:
//! a disk that hangs holds this thread and no request. That costs two thread switches more than a write on
//! the request's own thread (`cargo bench --bench ledger` prints both); but a `write(2)` to a disk that hangs
//! does not return, and would take a thread of the runtime, with all that it was to run next, along.
//!
//! # What stands there
//!
//! Segments `journal-<n>.log`, lines as in [`line`]. A new segment begins with every request that is
//! in flight and the line `carried`, which makes older segments obsolete; the one before it is kept as
//! history. So rotation, a restart and the recovery from a full disk are the same step: begin a new
//! segment with the truth in memory.

mod line;
mod queue;
mod replay;
mod trouble;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use self::line::{End, Line};
use self::queue::{Pushed, Queue};
use self::writer::{Disk, Shared, Writer};
use super::book::Book;
use super::directory::Unusable;
use super::open::Settings;
use super::record::Record;

pub(super) use self::replay::read;

/// How long a request waits for its record to be written: ten times 25 ms. Counted in turns, because a
/// process that gets no processor time has not waited for the disk.
const ACK_TURN: Duration = Duration::from_millis(25);
const ACK_TURNS: usize = 10;

/// How long closing waits for the thread.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// The handle that entries write through.
pub(super) struct Journal {
    writer: Arc<Mutex<Writer>>,
    shared: Shared,
    done: Arc<Done>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("trouble", &self.shared.trouble).finish_non_exhaustive()
    }
}

/// Set once the thread has ended and let go of the lock.
#[derive(Debug, Default)]
struct Done(Mutex<bool>, Condvar);

impl Done {
    fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.1.notify_all();
    }

    fn wait(&self, at_most: Duration) {
        let done = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.1.wait_timeout_while(done, at_most, |done| !*done));
    }
}

/// The name of segment `seq`.
fn segment_path(dir: &Path, seq: u64) -> PathBuf {
    dir.join(format!("journal-{seq}.log"))
}

/// Begins the segment `seq` and starts the thread, which owns the lock until it ends.
pub(super) fn start(
    dir: &Path,
    lock: File,
    seq: u64,
    settings: &Settings,
    book: &Arc<Book>,
) -> Result<Journal, Unusable> {
    let disk = Disk::new(dir, settings, seq, Box::new(super::directory::create));
    start_on(disk, Some(lock), book)
}

fn start_on(disk: Disk, lock: Option<File>, book: &Arc<Book>) -> Result<Journal, Unusable> {
    let dir = disk.dir().to_owned();
    let shared = Shared { book: Arc::clone(book), queue: Arc::default(), trouble: Arc::default() };
    let mut writer = Writer::new(disk, &shared);
    writer.begin().map_err(|e| Unusable::refused(&dir, e))?;
    let journal = Journal { writer: Arc::new(Mutex::new(writer)), shared, done: Arc::default() };
    let (writer, done) = (Arc::clone(&journal.writer), Arc::clone(&journal.done));
    let queue = Arc::clone(&journal.shared.queue);
    // Not joined: a write that hangs would hang the joiner. `Done` says when it has ended.
    let spawned = std::thread::Builder::new().name("kvgate-journal".to_owned()).spawn(move || {
        run(&writer, &queue);
        drop(lock);
        done.set();
    });
    if let Err(e) = spawned {
        journal.done.set();
        return Err(Unusable::refused(&dir, e));
    }
    Ok(journal)
}

/// The thread: writes until the queue is stopped; what waits then is written still.
fn run(writer: &Mutex<Writer>, queue: &Queue) {
    let lock = || writer.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let idle = lock().idle();
        let last = queue.wait(idle);
        let mut writer = lock();
        writer.commit();
        writer.renew();
        if last {
            writer.close();
            return;
        }
    }
}

impl Journal {
    /// Writes that a request goes to the engine; returns when it is written, or cannot be soon enough.
    pub(super) async fn open(&self, record: Record) {
        let Shared { trouble, queue, .. } = &self.shared;
        if !trouble.accepting() {
            trouble.lost(1);
            return;
        }
        let line = line::encode(&Line::Open(Box::new(record)));
        let late = trouble.is_late();
        let mut written = match queue.open(&line) {
            Pushed::Waiting(written) => written,
            Pushed::Full => return self.raise("the disk is too slow: the journal's queue is full"),
            Pushed::Closed => return,
        };
        if late {
            trouble.lost(1);
            return;
        }
        for _ in 0..ACK_TURNS {
            // An error of the receiver is a write that failed: whoever wrote has counted it.
            if tokio::time::timeout(ACK_TURN, &mut written).await.is_ok() {
                return;
            }
        }
        trouble.late("a record was not written within 250 ms");
    }

    /// Writes, soon, that a request ended.
    pub(super) fn end(&self, record: &Record) {
        let Shared { trouble, queue, .. } = &self.shared;
        if !trouble.accepting() {
            trouble.lost(1);
            return;
        }
        let line = line::encode(&Line::End(End::of(record)));
        if !queue.end(&line) {
            self.raise("the disk is too slow: the journal's queue is full");
        }
    }

    /// One record is lost: the thread must begin a new segment with the truth once it can.
    fn raise(&self, why: &str) {
        self.shared.trouble.raise(why, 1);
        self.shared.queue.nudge();
    }

    /// Whether the journal says what is in flight, as far as anybody knows.
    pub(super) fn is_well(&self) -> bool {
        self.shared.trouble.accepting() && !self.shared.trouble.is_late()
    }

    pub(super) fn close(&self) {
        self.shared.queue.stop();
        self.done.wait(CLOSE_WAIT);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
