//! Reading what the last run left: which requests have an `open` and no `end`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use super::line::{self, Found, Line};
use super::segment_path;
use crate::ledger::Record;

/// What the journal of the last run says.
#[derive(Debug, Default)]
pub(in crate::ledger) struct Left {
    pub(in crate::ledger) unfinished: Vec<Record>,
    pub(in crate::ledger) skipped: usize,
    pub(in crate::ledger) notes: Vec<String>,
    /// The number the next segment may take.
    pub(in crate::ledger) next_seq: u64,
}

/// So much of a segment is read even where the settings allow less: what was in flight when it began may
/// have taken more than its share.
const LEAST_READ: u64 = 64 << 20;

/// Reads every segment in `dir`, oldest first, at most `most` bytes of each. Never fails: what cannot
/// be read is noted.
pub(in crate::ledger) fn read(dir: &Path, most: u64) -> Left {
    let mut replay = Replay::default();
    let mut notes = Vec::new();
    let seqs = segments(dir);
    for &seq in &seqs {
        let path = segment_path(dir, seq);
        let mut bytes = Vec::new();
        let got = File::open(&path).and_then(|f| f.take(most.max(LEAST_READ)).read_to_end(&mut bytes));
        if let Err(e) = got {
            notes.push(format!("{}: {e}", path.display()));
        }
        replay.segment(&bytes);
    }
    if replay.unknown > 0 {
        notes.push(format!("{} journal lines are of another version of kvgate", replay.unknown));
    }
    if replay.damaged > 0 {
        notes.push(format!("{} journal lines are damaged or foreign", replay.damaged));
    }
    let skipped = replay.unknown + replay.damaged;
    let next_seq = seqs.last().map_or(1, |last| last.saturating_add(1));
    Left { unfinished: replay.unfinished(), skipped, notes, next_seq }
}

/// The numbers of the segments in `dir`, ascending.
pub(super) fn segments(dir: &Path) -> Vec<u64> {
    let Ok(names) = fs::read_dir(dir) else { return Vec::new() };
    let mut seqs: Vec<u64> = names
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            name.to_str()?.strip_prefix("journal-")?.strip_suffix(".log")?.parse().ok()
        })
        .collect();
    seqs.sort_unstable();
    seqs.dedup();
    seqs
}

/// The fold over all lines.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Open in earlier segments.
    earlier: HashMap<String, Record>,
    /// Open in this one.
    here: HashMap<String, Record>,
    pub(super) unknown: usize,
    pub(super) damaged: usize,
}

impl Replay {
    /// Takes in one segment, in the order of their numbers.
    pub(super) fn segment(&mut self, bytes: &[u8]) {
        self.earlier.extend(self.here.drain());
        let mut at = 0;
        while at < bytes.len() {
            let used = match line::decode(&bytes[at..]) {
                Found::Whole(line, used) => {
                    self.line(line);
                    used
                }
                Found::Unknown(used) => {
                    self.unknown += 1;
                    used
                }
                Found::Damaged(used) => {
                    self.damaged += 1;
                    used
                }
            };
            at += used.max(1);
        }
    }

    fn line(&mut self, line: Line) {
        match line {
            Line::Open(record) => {
                self.here.insert(record.id.clone(), *record);
            }
            Line::End(end) => {
                self.here.remove(&end.id);
                self.earlier.remove(&end.id);
            }
            // Where a carried record was damaged, an older segment may still have it.
            Line::Carried(count) if self.here.len() >= count => self.earlier.clear(),
            Line::Carried(_) => {}
        }
    }

    /// Those without an end, by arrival.
    pub(super) fn unfinished(self) -> Vec<Record> {
        let mut all = self.earlier;
        all.extend(self.here);
        let mut all: Vec<Record> = all.into_values().collect();
        all.sort_by(|a, b| a.t_arrived.total_cmp(&b.t_arrived).then_with(|| a.id.cmp(&b.id)));
        all
    }
}
