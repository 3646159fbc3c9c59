//! The ledger itself: opened once, shared by all.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use tokio::time::Instant;

use super::book::Book;
use super::directory::{self, Unusable};
use super::entry::{Arrival, Entry};
use super::journal::{self, Journal};
use super::record::{Flight, Record};
use crate::telemetry::{self, Alarm, Event};

/// Where the ledger is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The directory for journal, tenant key and crash reports, made where missing; none: memory only.
    pub state_dir: Option<PathBuf>,
    /// Bytes the journal may take on disk in all; at least 65,536. Default 64 MiB.
    pub journal_bytes: u64,
    /// Whether each record is forced to the disk (survives the node, costs a disk flush per request);
    /// else it survives the death of process and container. Default false.
    pub sync: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { state_dir: None, journal_bytes: 64 << 20, sync: false }
    }
}

/// What the last run left behind.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// The requests that were with the engine when the last run stopped, by arrival.
    pub unfinished: Vec<Record>,
    /// Damaged or foreign pieces of the journal that were passed over.
    pub skipped: usize,
    /// Whether this run has a journal on disk.
    pub durable: bool,
    /// What the operator should know: why there is no journal, what was skipped.
    pub note: Option<String>,
}

/// All requests in flight; clones are the same ledger.
#[derive(Debug, Clone)]
pub struct Ledger(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    book: Arc<Book>,
    journal: Option<Journal>,
}

impl Ledger {
    /// Opens the ledger and reads what the last run left. It never fails: without a usable directory
    /// it is in memory only, which [`Recovered::note`] and the alarm say.
    #[must_use]
    pub fn open(settings: &Settings) -> (Self, Recovered) {
        let book = Arc::new(Book::default());
        let Some(dir) = settings.state_dir.as_deref() else {
            let note = Some(Unusable::NotConfigured.to_string());
            return (Self::with(book, None), Recovered { note, ..Recovered::default() });
        };
        let (journal, recovered) = on_disk(dir, settings, &book);
        (Self::with(book, journal), recovered)
    }

    /// A ledger in memory only.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::with(Arc::new(Book::default()), None)
    }

    pub(super) fn with(book: Arc<Book>, journal: Option<Journal>) -> Self {
        Self(Arc::new(Inner { book, journal }))
    }

    /// A request arrived.
    #[must_use]
    pub fn arrive(&self, arrival: Arrival) -> Entry {
        Entry::new(self.clone(), self.0.book.arrive(arrival))
    }

    /// Every request that has arrived and not ended, by arrival; queued ones too.
    #[must_use]
    pub fn in_flight(&self) -> Vec<Record> {
        self.0.book.in_flight()
    }

    /// The last 1,024 that ended, oldest first; refusals are left out.
    #[must_use]
    pub fn ended_recently(&self) -> Vec<Record> {
        self.0.book.ended()
    }

    /// [`Ledger::ended_recently`] and then [`Ledger::in_flight`], as of one moment, with their instants.
    #[must_use]
    pub fn flights(&self) -> Vec<Flight> {
        self.0.book.flights()
    }

    /// Since when the engine has had requests of ours, where it has any.
    #[must_use]
    pub fn busy_since(&self) -> Option<Instant> {
        self.flights().iter().filter(|f| f.ended.is_none()).filter_map(|f| f.admitted).min()
    }

    /// Whether there is a journal on disk, and what was written to it of late came through in time.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.0.journal.as_ref().is_some_and(Journal::is_well)
    }

    /// Writes out what is buffered and closes the journal, within two seconds; entries go on in memory.
    /// Blocks: for the end of a clean shutdown.
    pub fn close(&self) {
        if let Some(journal) = &self.0.journal {
            journal.close();
        }
    }

    pub(super) fn book(&self) -> &Book {
        &self.0.book
    }

    pub(super) fn journal(&self) -> Option<&Journal> {
        self.0.journal.as_ref()
    }
}

fn on_disk(dir: &Path, settings: &Settings, book: &Arc<Book>) -> (Option<Journal>, Recovered) {
    let lock = directory::lock(dir);
    if let Err(taken @ Unusable::Taken { .. }) = &lock {
        // The journal there is another's, and alive: reading it would report requests that are well.
        let note = memory_only(taken);
        return (None, Recovered { note: Some(note), ..Recovered::default() });
    }
    let left = journal::read(dir, settings.journal_bytes);
    let started = lock.and_then(|lock| journal::start(dir, lock, left.next_seq, settings, book));
    let mut notes = left.notes;
    let journal = started.map_err(|e| notes.push(memory_only(&e))).ok();
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    let durable = journal.is_some();
    (journal, Recovered { unfinished: left.unfinished, skipped: left.skipped, durable, note })
}

fn memory_only(why: &Unusable) -> String {
    let note = format!("the ledger is in memory only: {why}");
    telemetry::emit(Event::Alarm { alarm: Alarm::LedgerWrite, active: true, detail: &note });
    note
}
