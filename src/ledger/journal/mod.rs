//! The journal on disk: what was with the engine, for whoever starts after this process died.
//!
//! # Why a thread
//!
//! The cheapest way to get a record into the page cache is to write it where the request is handled.
//! But a `write(2)` to a disk that hangs does not return, and would take a runtime thread and its
//! request with it, where the contract is that the gateway serves on. So one thread writes, and a
//! request waits for its word for a bounded time. What waits while a write runs goes out with the
//! next one (group commit): the thread's cost is shared when it matters. `benches/ledger.rs` measures
//! both ways; the README of numbers is its output, not this comment.
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
use self::trouble::Trouble;
use self::writer::{Disk, Writer};
use super::book::Book;
use super::directory::Unusable;
use super::open::Settings;
use super::record::Record;

pub(super) use self::replay::read;

/// How long a request waits for its record to be written.
const ACK_WAIT: Duration = Duration::from_millis(100);

/// How long closing waits for the thread.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// The handle that entries write through.
#[derive(Debug)]
pub(super) struct Journal {
    queue: Arc<Queue>,
    trouble: Arc<Trouble>,
    done: Arc<Done>,
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
    let (queue, trouble, done) = (Arc::default(), Arc::default(), Arc::new(Done::default()));
    let mut writer = Writer::new(disk, Arc::clone(&queue), Arc::clone(&trouble), Arc::clone(book));
    let (dir, end) = (writer.dir().to_owned(), Arc::clone(&done));
    writer.begin().map_err(|e| Unusable::refused(&dir, e))?;
    // Not joined: a write that hangs would hang the joiner. `Done` says when it has ended.
    std::thread::Builder::new()
        .name("kvgate-journal".to_owned())
        .spawn(move || {
            writer.run();
            drop(lock);
            end.set();
        })
        .map_err(|e| Unusable::refused(&dir, e))?;
    Ok(Journal { queue, trouble, done })
}

impl Journal {
    /// Writes that a request goes to the engine; returns when it is written, or cannot be soon enough.
    pub(super) async fn open(&self, record: Record) {
        if !self.trouble.accepting() {
            self.trouble.lost(1);
            return;
        }
        match self.queue.open(&line::encode(&Line::Open(Box::new(record)))) {
            Pushed::Waiting(written) => {
                // An error here is a write that failed: the thread has counted it.
                if tokio::time::timeout(ACK_WAIT, written).await.is_err() {
                    self.raise("the disk did not take a record within 100 ms");
                }
            }
            Pushed::Full => self.raise("the disk is too slow: the journal's queue is full"),
            Pushed::Closed => {}
        }
    }

    /// Writes, soon, that a request ended.
    pub(super) fn end(&self, record: &Record) {
        if !self.trouble.accepting() {
            self.trouble.lost(1);
            return;
        }
        if !self.queue.end(&line::encode(&Line::End(End::of(record)))) {
            self.raise("the disk is too slow: the journal's queue is full");
        }
    }

    /// One record is lost: the thread must begin a new segment with the truth once it can.
    fn raise(&self, why: &str) {
        self.trouble.raise(why, 1);
        self.queue.nudge();
    }

    pub(super) fn close(&self) {
        self.queue.stop();
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
