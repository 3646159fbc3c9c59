//! Counts one text: exactly, at the cost of what is new in it, and no further than is asked for.

use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::Instant;

use super::backend::Backend;
use super::bounds::{File, Longest};
use super::count::CountError;
use super::cuts::{Cuts, Part};
use super::files::LoadError;
use super::runs::{self, CHUNK};
use super::segments::{Growing, Segments};
use super::selfcheck::{self, Differences};
use super::unsplit::Unsplit;
use super::upper::Upper;

/// Texts from this many bytes on are looked up by their beginnings.
const LOOK_UP_FROM: usize = 2048;
/// Parts from this many bytes on are looked up by themselves.
const PART_FROM: usize = 192;
/// Bytes between two beginnings that are kept, at least; and of one text at most so many.
const SPACING: usize = 512;
const MOST_BEGINNINGS: usize = 1024;
/// A part is counted in pieces of about this many bytes, where it has places to cut.
const PIECE: usize = 16 << 10;
/// What a run without a place costs at most, nanoseconds a byte, by the fast library and by the reference: with a
/// budget, it is not begun where it cannot end in time.
const RUN_NANOS: u64 = 200;
const SLOW_NANOS: u64 = 750;

/// How far to count.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Tokens from which on it does not matter how many more there are.
    pub enough: u64,
    /// When counting must have ended.
    pub until: Option<Instant>,
}

impl Extent {
    /// To the end.
    pub const WHOLE: Self = Self { enough: u64::MAX, until: None };
}

/// A count of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Tokens.
    pub tokens: u64,
    /// Whether there are exactly so many; else so many or more.
    pub whole: bool,
}

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    backend: Backend,
    cuts: Cuts,
    segments: Option<Segments>,
    longest: Option<Longest>,
    upper: Option<Upper>,
    /// Tokens that the post-processor puts around a text.
    around: u64,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// It is none.
    pub fn load(json: &[u8]) -> Result<Self, LoadError> {
        let invalid = |error: serde_json::Error| LoadError::Invalid {
            what: "tokenizer.json",
            reason: error.to_string(),
        };
        let file: Value = serde_json::from_slice(json).map_err(invalid)?;
        let cuts = Cuts::read(&file);
        let parts = File::deserialize(&file).ok();
        let backend = Backend::load(json, file)?;
        let cuts = if merges_the_same(&cuts, &backend) { cuts } else { cuts.at_added_only() };
        let length = |special| backend.reference_ids("a", special).map_or(0, |ids| ids.len() as u64);
        let around = length(true).saturating_sub(length(false));
        let is_entry = |entry: &str| backend.reference().token_to_id(entry).is_some();
        let upper = parts.as_ref().and_then(|parts| Upper::of(parts, around, &is_entry));
        let entries = backend.reference().get_vocab(true);
        let chars = entries.keys().map(|entry| entry.chars().count()).max().unwrap_or(1);
        let longest = parts.as_ref().and_then(|parts| Longest::of(parts, chars));
        Ok(Self { backend, cuts, segments: None, longest, upper, around })
    }

    /// Whether a text certainly has more than `limit` tokens, told from its characters alone.
    #[must_use]
    pub fn exceeds(&self, text: &str, limit: u64) -> bool {
        self.longest.is_some_and(|longest| longest.exceeds(text, limit))
    }

    /// How many tokens a text has at most, told from its bytes alone; `None` where that is not known.
    #[must_use]
    pub fn at_most(&self, text: &str, special: bool) -> Option<u64> {
        Some(self.upper?.tokens(text, special))
    }

    /// Remembers counts of texts, so many entries at most; 0: none.
    pub fn remember(&mut self, entries: usize) {
        self.segments = (entries > 0 && self.cuts.at_added()).then(|| Segments::new(entries));
    }

    /// The libraries that count.
    #[must_use]
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// What counts, and why it is the reference where it is: `merges` where nothing splits a text and its merges
    /// themselves give the ids, else the library's name.
    #[must_use]
    pub fn counted_by(&self) -> (&'static str, Option<String>) {
        if self.backend.is_fast() && self.cuts.unsplit().is_some() {
            return ("merges", None);
        }
        self.backend.path()
    }

    /// Where texts may be cut.
    #[must_use]
    pub const fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Counts kept.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.segments.as_ref().map_or(0, Segments::len)
    }

    /// Counts a text.
    ///
    /// # Errors
    /// [`CountError::Tokenizer`]; [`CountError::TooDear`] where it would not end in time.
    pub fn count(&self, text: &str, special: bool, extent: &Extent) -> Result<Counted, CountError> {
        let mut tally = Tally { of: self, extent, tokens: if special { self.around } else { 0 } };
        // What a library counted that is no longer trusted is not looked up either.
        let known = self.segments.as_ref().filter(|_| text.len() >= LOOK_UP_FROM && self.backend.is_fast());
        let whole = match known {
            Some(segments) => tally.known(segments, text)?,
            None => tally.parts(text)?,
        };
        Ok(Counted { tokens: tally.tokens, whole })
    }
}

/// A count in the making.
struct Tally<'a> {
    of: &'a Tokenizer,
    extent: &'a Extent,
    tokens: u64,
}

impl Tally<'_> {
    /// Whether it goes on.
    const fn enough(&self) -> bool {
        self.tokens >= self.extent.enough
    }

    /// Counts all parts; false where it stopped before the end.
    fn parts(&mut self, text: &str) -> Result<bool, CountError> {
        for part in self.of.cuts.parts(text, 0) {
            if !self.part(part.text)? {
                return Ok(false);
            }
            self.tokens += u64::from(part.token);
        }
        Ok(true)
    }

    /// The same where counts are remembered: from the longest known beginning on.
    fn known(&mut self, segments: &Segments, text: &str) -> Result<bool, CountError> {
        let around = self.tokens;
        let marks = marks(&self.of.cuts, segments, text);
        let found = marks.iter().rev().find_map(|(end, hash)| Some((*end, segments.get(*hash)?)));
        let from = found.map_or(0, |(end, count)| {
            self.tokens += count;
            end
        });
        let mut ahead = marks.iter().skip_while(|(end, _)| *end <= from).peekable();
        for Part { text, end, token } in self.of.cuts.parts(text, from) {
            let hash = (text.len() >= PART_FROM).then(|| segments.part(text));
            match hash.and_then(|hash| segments.get(hash)) {
                Some(count) => self.tokens += count,
                None => {
                    let before = self.tokens;
                    if !self.part(text)? {
                        return Ok(false);
                    }
                    if let Some(hash) = hash {
                        segments.put(hash, self.tokens - before);
                    }
                }
            }
            self.tokens += u64::from(token);
            if let Some((_, hash)) = ahead.next_if(|(mark, _)| *mark == end) {
                segments.put(*hash, self.tokens - around);
            }
        }
        Ok(true)
    }

    /// Counts one part; false where it stopped before its end.
    fn part(&mut self, part: &str) -> Result<bool, CountError> {
        match self.of.cuts.unsplit().filter(|_| self.of.backend.is_fast()) {
            Some(unsplit) => self.pieces(&unsplit.prepared(part), Some(unsplit)),
            None => self.pieces(part, None),
        }
    }

    /// Counts a part in pieces, by its merges where they are given.
    fn pieces(&mut self, part: &str, unsplit: Option<&Unsplit>) -> Result<bool, CountError> {
        let cut_raw = self.of.cuts.unsplit().is_none_or(Unsplit::is_cut_raw);
        let mut rest = part;
        loop {
            if self.enough() {
                return Ok(rest.is_empty());
            }
            let cut =
                (rest.len() > PIECE && (cut_raw || unsplit.is_some())).then(|| self.cut(rest)).flatten();
            let (piece, after) = rest.split_at(cut.unwrap_or(rest.len()));
            // Without any known place nothing says that it is a run.
            let run = self.of.cuts.kinds().filter(|_| piece.len() >= 2 * CHUNK);
            self.in_time(piece)?;
            self.tokens += match unsplit {
                Some(unsplit) => unsplit.count(piece, self.of.backend.lengths()),
                None => self.of.backend.count(piece, run)?,
            };
            if after.is_empty() {
                return Ok(true);
            }
            rest = after;
        }
    }

    /// Where to cut a part that is longer than a piece: behind about half a piece, and before a long run.
    fn cut(&self, rest: &str) -> Option<usize> {
        let cuts = &self.of.cuts;
        let cut = cuts.place(rest, PIECE / 2);
        if cut.is_some_and(|cut| cut < 2 * CHUNK) {
            return cut;
        }
        // A blank before a run begins its pre-token.
        let run = cuts.kinds().and_then(|kinds| runs::long_run(rest, 0, kinds)).filter(|run| *run > 0);
        let before =
            run.and_then(|run| [run, run - 1].into_iter().find(|at| cuts.place(rest, *at) == Some(*at)));
        before.or(cut)
    }

    /// Whether there is time for a piece.
    fn in_time(&self, piece: &str) -> Result<(), CountError> {
        let Some(until) = self.extent.until else { return Ok(()) };
        let each = match piece.len() > 2 * PIECE {
            true if self.of.backend.is_fast_for(piece) => RUN_NANOS,
            true => SLOW_NANOS,
            false => 0,
        };
        let needed = Duration::from_nanos(piece.len() as u64 * each);
        if Instant::now() + needed > until {
            return Err(CountError::TooDear);
        }
        Ok(())
    }
}

/// Whether parts that no pattern splits have the reference's ids by their merges; true where a pattern does.
fn merges_the_same(cuts: &Cuts, backend: &Backend) -> bool {
    let Some(unsplit) = cuts.unsplit() else { return true };
    let ids = |text: &str| {
        let (mut ids, mut at) = (Vec::new(), 0);
        for part in cuts.parts(text, 0) {
            ids.extend(unsplit.ids(&unsplit.prepared(part.text)));
            let token = &text[at + part.text.len()..part.end];
            ids.extend(part.token.then(|| backend.reference().token_to_id(token)).flatten());
            at = part.end;
        }
        Ok(ids)
    };
    selfcheck::compare(backend.reference(), backend.added(), ids) == Differences::default()
}

/// The beginnings of `text` that are kept: each ends with the first added token behind a multiple of the
/// spacing (of those that can be told from there), which is a power of two, so that those of a longer text are among
/// those of a shorter.
fn marks(cuts: &Cuts, segments: &Segments, text: &str) -> Vec<(usize, u128)> {
    let spacing = (text.len() / MOST_BEGINNINGS).next_power_of_two().max(SPACING);
    let mut hash: Growing = segments.beginning();
    let mut marks: Vec<(usize, u128)> = Vec::new();
    let (mut last, mut token_behind) = (0, cuts.tokens_behind(text));
    while let Some(end) = token_behind((last / spacing + 1) * spacing) {
        hash.add(&text[last..end]);
        last = end;
        marks.push((end, hash.hash()));
    }
    marks
}

#[cfg(test)]
mod tests;
