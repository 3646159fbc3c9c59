//! What stands on disk: the current segment, and the step to the next one.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::line::{self, Line};
use super::queue::{Batch, Queue};
use super::trouble::Trouble;
use super::{replay, segment_path};
use crate::ledger::Settings;
use crate::ledger::book::Book;

/// How long after a failure the disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

type Create = Box<dyn FnMut(&Path) -> io::Result<File> + Send>;

/// Where segments go.
pub(super) struct Disk {
    dir: PathBuf,
    segment_bytes: u64,
    sync: bool,
    /// The last segment that was begun whole; at first the last run's last.
    current: u64,
    next: u64,
    create: Create,
}

impl Disk {
    /// Two segments at most exist at a time, so each may have half of the bytes.
    pub(super) fn new(dir: &Path, settings: &Settings, next: u64, create: Create) -> Self {
        let segment_bytes = settings.journal_bytes.max(65_536) / 2;
        Self {
            dir: dir.to_owned(),
            segment_bytes,
            sync: settings.sync,
            current: next.saturating_sub(1),
            next,
            create,
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins a segment with `bytes`.
    fn begin(&mut self, bytes: &[u8]) -> io::Result<Segment> {
        let seq = self.next;
        let path = segment_path(&self.dir, seq);
        self.next = self.next.saturating_add(1);
        let file = (self.create)(&path)?;
        // Where much is in flight, what was carried must not by itself be a reason to rotate again.
        let full_at = self.segment_bytes.max(2 * bytes.len() as u64);
        let mut segment = Segment { file, size: 0, full_at, sync: self.sync };
        if let Err(e) = segment.append(bytes) {
            let _ = fs::remove_file(&path);
            return Err(e);
        }
        if self.sync {
            File::open(&self.dir)?.sync_all()?;
        }
        self.prune();
        self.current = seq;
        Ok(segment)
    }

    /// Removes the segments before the current one: all that they hold is history.
    fn prune(&self) {
        for seq in replay::segments(&self.dir).into_iter().filter(|&seq| seq < self.current) {
            let _ = fs::remove_file(segment_path(&self.dir, seq));
        }
    }
}

struct Segment {
    file: File,
    size: u64,
    full_at: u64,
    sync: bool,
}

impl Segment {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        if self.sync { self.file.sync_data() } else { Ok(()) }
    }
}

/// What the writer shares with those who hand it their lines.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) book: Arc<Book>,
    pub(super) queue: Arc<Queue>,
    pub(super) trouble: Arc<Trouble>,
}

/// Owns the current segment.
pub(super) struct Writer {
    disk: Disk,
    segment: Option<Segment>,
    retry_at: Instant,
    /// Empty; kept for its memory.
    batch: Batch,
    queue: Arc<Queue>,
    trouble: Arc<Trouble>,
    book: Arc<Book>,
}

impl Writer {
    pub(super) fn new(disk: Disk, with: &Shared) -> Self {
        let Shared { book, queue, trouble } = with.clone();
        let (segment, retry_at, batch) = (None, Instant::now(), Batch::default());
        Self { disk, segment, retry_at, batch, queue, trouble, book }
    }

    /// How long to sleep where nothing comes: in trouble, until the next try.
    pub(super) fn idle(&self) -> Option<Duration> {
        let fine = self.segment.is_some() && self.trouble.accepting();
        (!fine).then(|| self.retry_at.saturating_duration_since(Instant::now()))
    }

    /// Writes what waits in the queue, for all who wait.
    pub(super) fn commit(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        self.queue.take(&mut batch);
        let written = batch.bytes.is_empty() || self.append(&batch.bytes, batch.records);
        batch.done(written);
        self.batch = batch;
    }

    fn append(&mut self, bytes: &[u8], records: u64) -> bool {
        let Some(segment) = &mut self.segment else {
            self.trouble.lost(records);
            return false;
        };
        let result = segment.append(bytes);
        match result {
            Ok(()) => self.trouble.on_time(),
            Err(ref e) => self.fail(e, records),
        }
        result.is_ok()
    }

    /// Whether a new segment is due: this one is full, or there is none, or what it says is not all.
    pub(super) fn is_due(&self) -> bool {
        !self.trouble.accepting() || self.segment.as_ref().is_none_or(|s| s.size >= s.full_at)
    }

    /// Begins a new segment where one is due and the disk is to be tried again. For the thread.
    pub(super) fn renew(&mut self) {
        if !self.is_due() || Instant::now() < self.retry_at {
            return;
        }
        match self.begin() {
            Ok(()) => self.trouble.clear(),
            Err(e) => {
                self.fail(&e, 0);
                // Perhaps the disk is full: history is the first to go, what is in flight stays.
                self.disk.prune();
            }
        }
    }

    /// Writes no more: the directory may be another's from now on.
    pub(super) fn close(&mut self) {
        self.segment = None;
    }

    fn fail(&mut self, error: &io::Error, records: u64) {
        self.segment = None;
        self.retry_at = Instant::now() + RETRY;
        self.trouble.raise(&format!("{}: {error}", self.disk.dir.display()), records);
    }

    /// Begins a new segment with all that is with the engine.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.trouble.accept();
        // What waits is older than the truth that follows.
        let mut waiting = std::mem::take(&mut self.batch);
        self.queue.take(&mut waiting);
        let sent = self.book.sent();
        let mut bytes = Vec::new();
        for slot in &sent {
            bytes.extend_from_slice(&line::encode(&Line::Open(Box::new(slot.record()))));
        }
        bytes.extend_from_slice(&line::encode(&Line::Carried(sent.len())));
        let begun = self.disk.begin(&bytes);
        if begun.is_err() {
            self.trouble.lost(waiting.records);
        }
        waiting.done(begun.is_ok());
        self.batch = waiting;
        self.segment = Some(begun?);
        Ok(())
    }
}
