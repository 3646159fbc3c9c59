//! The journal's line format, version 1 (kvgate's own):
//! `kv1 <crc32 of the JSON, 8 hex digits> <its length, 8 decimal digits> <JSON>\n`.
//!
//! The JSON is `{"open":RECORD}`, `{"end":{…}}` or `{"carried":N}`. Length and checksum tell a torn,
//! damaged or foreign line from a whole one; a line that is not whole is skipped up to its newline.

use serde::{Deserialize, Serialize};

use crate::ledger::Record;
use crate::request::Outcome;

/// One line's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// A request goes to the engine.
    Open(Box<Record>),
    /// It ended.
    End(End),
    /// All that was in flight at the segment's beginning stands before this line: so many records.
    Carried(usize),
}

/// What changed since a request's `open`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) id: String,
    pub(super) t_first_token: Option<f64>,
    pub(super) t_ended: Option<f64>,
    pub(super) outcome: Option<Outcome>,
    pub(super) output_tokens: u64,
}

impl End {
    pub(super) fn of(record: &Record) -> Self {
        Self {
            id: record.id.clone(),
            t_first_token: record.t_first_token,
            t_ended: record.t_ended,
            outcome: record.outcome,
            output_tokens: record.output_tokens,
        }
    }
}

const MAGIC: &[u8] = b"kv1 ";
/// `kv1 `, checksum, space, length, space.
const HEAD: usize = 4 + 8 + 1 + 8 + 1;
/// No line of ours is longer; a longer one is damage.
const MAX_LEN: usize = 1 << 20;

/// The bytes of one line, newline included.
pub(super) fn encode(line: &Line) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.resize(HEAD, b' ');
    serde_json::to_writer(&mut out, line).expect("a record is plain data and a Vec takes all of it");
    let body = &out[HEAD..];
    let head = format!("kv1 {:08x} {:08} ", crc32fast::hash(body), body.len());
    out[..HEAD].copy_from_slice(head.as_bytes());
    out.push(b'\n');
    out
}

/// What stands at the beginning of some bytes.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// A whole line, and the rest begins here.
    Whole(Line, usize),
    /// A line of another version of kvgate; the rest begins here.
    Unknown(usize),
    /// Something else; the rest begins here.
    Damaged(usize),
}

/// Reads the line at the beginning of `bytes`, which is not empty.
pub(super) fn decode(bytes: &[u8]) -> Found {
    let next_line = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
    if let Some((json, used)) = checked(bytes) {
        return match serde_json::from_slice(json) {
            Ok(line) => Found::Whole(line, used),
            // The checksum is right: it was written so, by a version that knows more than this one.
            Err(_) => Found::Unknown(used),
        };
    }
    if other_version(bytes) { Found::Unknown(next_line) } else { Found::Damaged(next_line) }
}

/// The JSON and the bytes used, where length and checksum are right.
fn checked(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let head = bytes.get(..HEAD)?.strip_prefix(MAGIC)?;
    let (crc, len) = (number(&head[..8], 16)?, number(&head[9..17], 10)?);
    if head[8] != b' ' || head[17] != b' ' || len > MAX_LEN {
        return None;
    }
    let json = bytes.get(HEAD..HEAD + len)?;
    if usize::try_from(crc32fast::hash(json)).ok()? != crc {
        return None;
    }
    // The last newline may be missing: the record before it is whole.
    Some((json, (HEAD + len + 1).min(bytes.len())))
}

fn number(digits: &[u8], radix: u32) -> Option<usize> {
    let fine = digits.iter().all(u8::is_ascii_alphanumeric);
    usize::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok().filter(|_| fine)
}

/// `kv<digits> ` with digits other than 1.
fn other_version(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(b"kv") else { return false };
    let digits = rest.iter().take(4).take_while(|b| b.is_ascii_digit()).count();
    digits > 0 && rest.get(digits) == Some(&b' ') && !bytes.starts_with(MAGIC)
}
