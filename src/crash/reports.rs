//! Crash reports, kept: the last 50, on disk or in memory.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::report::{Cause, Report};
use crate::telemetry::{self, Event};

/// How many reports are kept; the oldest goes first.
const KEPT: usize = 50;
/// No report of ours is larger; a larger file is not one.
const MAX_BYTES: u64 = 64 << 20;

/// Why a report cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Not an id: nothing was looked for.
    #[error("{id:?} is not a report's id: they look like crash-1796000000-1")]
    BadId {
        /// What was asked for, cut at 64 characters.
        id: String,
    },
    /// There is none.
    #[error("there is no report {id}")]
    NotFound {
        /// What was asked for.
        id: String,
    },
    /// It is there and cannot be read.
    #[error("{}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's or the parser's words.
        why: String,
    },
}

/// One report, in a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The report's id.
    pub id: String,
    /// When the engine died, Unix seconds.
    pub t: f64,
    /// The cause.
    pub cause: Cause,
    /// What confirmed the death.
    pub confirmed_by: Vec<String>,
    /// How many requests were with the engine.
    pub in_flight: usize,
    /// The id of the first suspect.
    pub first_suspect: Option<String>,
}

impl Summary {
    fn of(report: &Report) -> Self {
        Self {
            id: report.id.clone(),
            t: report.t,
            cause: report.cause,
            confirmed_by: report.confirmed_by.clone(),
            in_flight: report.in_flight.len(),
            first_suspect: report.suspects.first().map(|s| s.id.clone()),
        }
    }
}

/// All reports, newest first.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Listing {
    /// Those that could be read.
    pub reports: Vec<Summary>,
    /// What was passed over, and why.
    pub skipped: Vec<String>,
}

/// Where reports are kept; clones are the same place.
#[derive(Debug, Clone)]
pub struct Reports(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: Option<PathBuf>,
    /// Those that are not on disk.
    memory: Mutex<VecDeque<Report>>,
}

impl Reports {
    /// Reports in `reports/` under the state directory `dir`, or in memory. Makes nothing until the
    /// first report: a directory that cannot be written is told then.
    #[must_use]
    pub fn open(dir: Option<&Path>) -> Self {
        let dir = dir.map(|d| d.join("reports"));
        Self(Arc::new(Inner { dir, memory: Mutex::default() }))
    }

    /// Keeps a report and gives the id it has now: its own, or the next that was free. What the disk
    /// does not take is kept in memory, and said.
    pub fn write(&self, mut report: Report) -> String {
        let mut memory = self.memory();
        let (stem, mut n) = match parse(&report.id) {
            Some((seconds, n)) => (format!("crash-{seconds}"), n),
            None => ("crash-0".to_owned(), 1),
        };
        loop {
            report.id = format!("{stem}-{n}");
            let on_disk = self.path(&report.id).is_some_and(|p| p.exists());
            if !on_disk && !memory.iter().any(|r| r.id == report.id) {
                break;
            }
            n = n.saturating_add(1);
        }
        let id = report.id.clone();
        let Some(dir) = &self.0.dir else {
            remember(&mut memory, report);
            return id;
        };
        if let Err(e) = store(dir, &report) {
            let error = format!("crash report {id}: {}: {e}", dir.display());
            telemetry::emit(Event::LedgerWriteError { error: &error, records: 1 });
            remember(&mut memory, report);
        }
        id
    }

    /// Every report, newest first; files that are not reports are skipped with a note.
    #[must_use]
    pub fn list(&self) -> Listing {
        let mut listing = Listing::default();
        listing.reports.extend(self.memory().iter().map(Summary::of));
        for id in self.0.dir.as_deref().map(ids).unwrap_or_default() {
            match self.get(&id) {
                Ok(report) if report.id == id => listing.reports.push(Summary::of(&report)),
                Ok(_) => listing.skipped.push(format!("{id}: another report's content")),
                Err(e) => listing.skipped.push(e.to_string()),
            }
        }
        listing.reports.sort_by_key(|s| std::cmp::Reverse(parse(&s.id)));
        listing
    }

    /// One report.
    ///
    /// # Errors
    /// Where `id` is not an id (no path is made of it then), names none, or its file is damaged.
    pub fn get(&self, id: &str) -> Result<Report, ReportError> {
        if parse(id).is_none() {
            return Err(ReportError::BadId { id: id.chars().take(64).collect() });
        }
        if let Some(report) = self.memory().iter().find(|r| r.id == id) {
            return Ok(report.clone());
        }
        let not_found = || ReportError::NotFound { id: id.to_owned() };
        let path = self.path(id).ok_or_else(not_found)?;
        match load(&path) {
            Ok(report) => Ok(report),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(not_found()),
            Err(e) => Err(ReportError::Unreadable { path, why: e.to_string() }),
        }
    }

    fn path(&self, id: &str) -> Option<PathBuf> {
        parse(id)?;
        Some(self.0.dir.as_ref()?.join(format!("{id}.json")))
    }

    fn memory(&self) -> MutexGuard<'_, VecDeque<Report>> {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember(memory: &mut VecDeque<Report>, report: Report) {
    if memory.len() == KEPT {
        memory.pop_front();
    }
    memory.push_back(report);
}

/// The two numbers of `crash-<seconds>-<n>`, written as we write them; anything else is no id.
fn parse(id: &str) -> Option<(u64, u64)> {
    let (seconds, n) = id.strip_prefix("crash-")?.split_once('-')?;
    let number = |digits: &str| digits.parse::<u64>().ok().filter(|n| n.to_string() == digits);
    Some((number(seconds)?, number(n)?))
}

/// The ids that have files, oldest first.
fn ids(dir: &Path) -> Vec<String> {
    let Ok(names) = fs::read_dir(dir) else { return Vec::new() };
    let mut ids: Vec<_> = names
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let id = name.to_str()?.strip_suffix(".json")?;
            Some((parse(id)?, id.to_owned()))
        })
        .collect();
    ids.sort_unstable();
    ids.into_iter().map(|(_, id)| id).collect()
}

fn load(path: &Path) -> io::Result<Report> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(io::Error::from)
}

/// Writes beside, then renames: a report is there whole or not at all. Then the oldest go.
fn store(dir: &Path, report: &Report) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let beside = dir.join(format!("{}.{}.tmp", report.id, std::process::id()));
    let written = write_file(&beside, report)
        .and_then(|()| fs::rename(&beside, dir.join(format!("{}.json", report.id))));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    let all = ids(dir);
    for id in &all[..all.len().saturating_sub(KEPT)] {
        let _ = fs::remove_file(dir.join(format!("{id}.json")));
    }
    written
}

fn write_file(path: &Path, report: &Report) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    file.write_all(&text)?;
    file.sync_all()
}
