//! Byte-pair encoding where no pattern splits a text before (Gemma, Llama 2): the merges of the vocabulary, by
//! themselves.
//!
//! As `tokenizers` 0.23 does it (`models/bpe/model.rs` `merge_word`, `word.rs` `merge_all`): a text begins as its
//! characters, one that is no entry as the entries of its bytes, and where these are missing as the unknown token; then
//! of all neighbours that may merge those of the lowest rank do, the leftmost first. A library that keeps each word's
//! tokens in tables of its own pays for them with every text of words that nobody wrote before; here there is nothing
//! but the merges, so what a text costs depends on its length alone.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde_json::{Map, Value};

/// No id, no merge.
const NONE: u32 = u32::MAX;
const NO_MERGE: u64 = u64::MAX;
/// Of so many symbols at most the lowest rank is looked for one by one.
const FEW: usize = 32;
/// Characters of one page.
const PAGE: usize = 256;

/// What merges, and what texts begin as.
pub struct Merges {
    /// Page of a character (without its low byte), and the ids of each page's characters; the first has none.
    pages: Vec<u16>,
    ids: Vec<u32>,
    /// Ids of the bytes.
    bytes: [u32; 256],
    /// The unknown token, and whether those in a row are one.
    unknown: Option<(u32, bool)>,
    /// Two ids, and the rank and the id of what they make; open addressing.
    slots: Vec<[u64; 2]>,
    /// A bit for each hash that has a merge: most pairs have none.
    filter: Vec<u64>,
}

impl std::fmt::Debug for Merges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Merges")
    }
}

/// The two entries of a merge, written as `a b` or as a list of the two.
pub fn parts(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(both) => both.split_once(' ').filter(|(_, right)| !right.contains(' ')),
        Value::Array(both) => match both.as_slice() {
            [left, right] => left.as_str().zip(right.as_str()),
            _ => None,
        },
        _ => None,
    }
}

/// The entry of a byte.
pub fn byte_entry(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

const fn hash(pair: u64) -> u64 {
    let mixed = pair.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Merges {
    /// Of the model of a `tokenizer.json` (`tokenizers` 0.23) that is BPE without affixes; `None` where it does not
    /// hold together.
    pub fn read(model: &Value) -> Option<Self> {
        let vocab = model.get("vocab")?.as_object()?;
        let flag = |name: &str| model.get(name).and_then(Value::as_bool).unwrap_or(false);
        let unknown = match model.get("unk_token").and_then(Value::as_str) {
            Some(token) => Some((id(vocab, token)?, flag("fuse_unk"))),
            None => None,
        };
        let mut bytes = [NONE; 256];
        if flag("byte_fallback") {
            for (byte, place) in (0..=255).zip(&mut bytes) {
                *place = id(vocab, &byte_entry(byte)).unwrap_or(NONE);
            }
        }
        let merges = model.get("merges").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let room = (merges.len() * 2).next_power_of_two().max(64);
        let (slots, filter) = (vec![[NO_MERGE; 2]; room], vec![0; room / 8]);
        let mut read = Self { pages: vec![0; 0x1100], ids: vec![NONE; PAGE], bytes, unknown, slots, filter };
        for (rank, merge) in merges.iter().enumerate() {
            let (left, right) = parts(merge)?;
            let made = id(vocab, &format!("{left}{right}"))?;
            read.add(id(vocab, left)?, id(vocab, right)?, (rank as u64) << 32 | u64::from(made));
        }
        for entry in vocab.keys() {
            let mut chars = entry.chars();
            if let (Some(only), None) = (chars.next(), chars.next()) {
                read.begin(only, id(vocab, entry)?);
            }
        }
        Some(read)
    }

    /// A character that is an entry.
    fn begin(&mut self, c: char, id: u32) {
        let (page, within) = (c as usize / PAGE, c as usize % PAGE);
        if self.pages[page] == 0 {
            self.pages[page] = (self.ids.len() / PAGE) as u16;
            self.ids.resize(self.ids.len() + PAGE, NONE);
        }
        self.ids[usize::from(self.pages[page]) * PAGE + within] = id;
    }

    /// The last of two merges of the same pair is the one that holds.
    fn add(&mut self, left: u32, right: u32, merge: u64) {
        let pair = u64::from(left) << 32 | u64::from(right);
        let hash = hash(pair);
        let bit = self.bit(hash);
        self.filter[bit / 64] |= 1 << (bit % 64);
        let mut at = hash as usize & (self.slots.len() - 1);
        while self.slots[at][1] != NO_MERGE && self.slots[at][0] != pair {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = [pair, merge];
    }

    #[inline]
    fn bit(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.filter.len() * 64 - 1)
    }

    /// The rank, above, and the id of what two make.
    #[inline]
    fn of(&self, left: u32, right: u32) -> u64 {
        let pair = u64::from(left) << 32 | u64::from(right);
        let hash = hash(pair);
        let bit = self.bit(hash);
        if self.filter[bit / 64] >> (bit % 64) & 1 == 0 {
            return NO_MERGE;
        }
        let mut at = hash as usize & (self.slots.len() - 1);
        loop {
            let [there, merge] = self.slots[at];
            if there == pair || merge == NO_MERGE {
                return merge;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// The id of a character that is an entry.
    #[inline]
    fn char(&self, c: char) -> u32 {
        self.ids[usize::from(self.pages[c as usize / PAGE]) * PAGE + c as usize % PAGE]
    }

    /// Puts the ids of a text in place of what `ids` holds.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        ids.clear();
        self.characters(text, ids);
        match ids.len() {
            0 | 1 => {}
            2..=FEW => self.merge_few(ids),
            _ => self.merge_many(ids),
        }
    }

    /// What a text begins as, a blank written as `▁`. An unknown token comes before the next character that is an entry.
    fn characters(&self, text: &str, ids: &mut Vec<u32>) {
        let mut before = None;
        for c in text.chars().map(|c| if c == ' ' { '▁' } else { c }) {
            let id = self.char(c);
            if id != NONE {
                ids.extend(before.take());
                ids.push(id);
                continue;
            }
            let mut encoded = [0; 4];
            let bytes = c.encode_utf8(&mut encoded).bytes().map(|byte| self.bytes[usize::from(byte)]);
            if bytes.clone().all(|id| id != NONE) {
                ids.extend(bytes);
            } else if let Some((unknown, fuses)) = self.unknown {
                ids.extend(before.replace(unknown).filter(|_| !fuses));
            }
        }
        ids.extend(before);
    }

    fn merge_few(&self, ids: &mut Vec<u32>) {
        // Of each and the next one.
        let mut merges = [NO_MERGE; FEW];
        ids.windows(2).zip(&mut merges).for_each(|(two, merge)| *merge = self.of(two[0], two[1]));
        loop {
            let (mut at, mut least) = (0, NO_MERGE);
            for (place, merge) in merges[..ids.len() - 1].iter().enumerate() {
                if *merge < least {
                    (at, least) = (place, *merge);
                }
            }
            if least == NO_MERGE {
                return;
            }
            ids[at] = least as u32;
            ids.remove(at + 1);
            merges.copy_within(at + 1..ids.len(), at);
            if at > 0 {
                merges[at - 1] = self.of(ids[at - 1], ids[at]);
            }
            if at + 1 < ids.len() {
                merges[at] = self.of(ids[at], ids[at + 1]);
            }
        }
    }

    fn merge_many(&self, ids: &mut Vec<u32>) {
        let count = ids.len();
        // The neighbours of each that is there: the first has none before, the last none behind.
        let (mut before, mut behind): (Vec<u32>, Vec<u32>) =
            ((0..count as u32).map(|at| at.wrapping_sub(1)).collect(), (1..=count as u32).collect());
        let entry = |merge: u64, at: usize| merge >> 32 << 32 | at as u64;
        let first = ids.windows(2).enumerate().map(|(at, two)| (self.of(two[0], two[1]), at));
        let mut first: Vec<u64> =
            first.filter(|(merge, _)| *merge != NO_MERGE).map(|(merge, at)| entry(merge, at)).collect();
        // Those of the characters are sorted once; only what comes of merges is in a heap.
        first.sort_unstable_by(|one, other| other.cmp(one));
        let mut heap: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        while let Some(top) = least(&mut first, &mut heap) {
            let at = top as u32 as usize;
            let next = behind[at] as usize;
            if ids[at] == NONE || next >= count {
                continue;
            }
            // What stood there may have merged with others since.
            let merge = self.of(ids[at], ids[next]);
            if merge == NO_MERGE || merge >> 32 != top >> 32 {
                continue;
            }
            (ids[at], ids[next]) = (merge as u32, NONE);
            let after = behind[next] as usize;
            behind[at] = after as u32;
            if after < count {
                before[after] = at as u32;
                let merge = self.of(ids[at], ids[after]);
                heap.extend((merge != NO_MERGE).then(|| Reverse(entry(merge, at))));
            }
            let previous = before[at] as usize;
            if previous < count {
                let merge = self.of(ids[previous], ids[at]);
                heap.extend((merge != NO_MERGE).then(|| Reverse(entry(merge, previous))));
            }
        }
        ids.retain(|id| *id != NONE);
    }
}

/// Takes the least of both; the first ones are sorted, the least last.
fn least(first: &mut Vec<u64>, heap: &mut BinaryHeap<Reverse<u64>>) -> Option<u64> {
    match (first.last(), heap.peek()) {
        (Some(one), Some(Reverse(other))) if other < one => heap.pop().map(|Reverse(entry)| entry),
        (None, _) => heap.pop().map(|Reverse(entry)| entry),
        _ => first.pop(),
    }
}

fn id(vocab: &Map<String, Value>, entry: &str) -> Option<u32> {
    vocab.get(entry)?.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < NONE)
}
