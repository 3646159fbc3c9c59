//! A tokenizer without a pre-tokenizer (Gemma, Llama 2): all of a part is merged at once, its blanks written as `▁`.
//!
//! Where nothing can merge a part falls apart all the same ([`Pairs`]), and its words are counted one by one, by the
//! merges alone ([`Merges`]). Before a part that is not empty the Llama 2 tokenizer puts a blank; so its parts are cut
//! only behind that.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use super::merges::Merges;
use super::pairs::Pairs;
use super::runs::{self, CHUNK, Kinds, Lengths};
use super::words;

/// What a run is made of: without a pre-tokenizer of anything.
const ANYTHING: Kinds = Kinds { cases: false, joiners: true, composed: false, gpt2: false, anywhere: true };

/// Its merges, and where it has none.
#[derive(Debug)]
pub struct Unsplit {
    pairs: Pairs,
    merges: Merges,
    /// Whether a blank comes before each part.
    blank_before: bool,
    /// Tells it from all others of this process.
    number: u64,
}

impl Unsplit {
    /// Of a `tokenizer.json` (`tokenizers` 0.23); `None` where it splits texts, writes them otherwise, or
    /// merges anything but characters.
    pub fn read(file: &Value) -> Option<Self> {
        let blank_before = blanks(file.get("normalizer")?)?;
        let never = |step: &Value| {
            let by = step.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
            kind(step) == "Split" && by == Some(" ")
        };
        // A split by blanks finds none where all are written otherwise.
        if !file.get("pre_tokenizer").is_none_or(|step| step.is_null() || never(step)) {
            return None;
        }
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let pairs = Pairs::read(file)?;
        let merges = Merges::read(file.get("model")?)?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Some(Self { pairs, merges, blank_before, number })
    }

    /// A text as it is merged: what would be put before it is there, and a `▁` is the blank that it is taken for, so that
    /// each token stands for as many bytes as its entry says.
    pub fn prepared<'t>(&self, part: &'t str) -> Cow<'t, str> {
        if part.is_empty() {
            return Cow::Borrowed(part);
        }
        let marked = memchr::memmem::find(part.as_bytes(), "▁".as_bytes()).is_some();
        match (self.blank_before, marked) {
            (false, false) => Cow::Borrowed(part),
            (false, true) => Cow::Owned(part.replace('▁', " ")),
            (true, false) => Cow::Owned([" ", part].concat()),
            (true, true) => Cow::Owned([" ", &part.replace('▁', " ")].concat()),
        }
    }

    /// Whether a part that is not prepared may be cut.
    pub const fn is_cut_raw(&self) -> bool {
        !self.blank_before
    }

    /// The first place in `text` at or after byte `least`, which is greater than 0.
    pub fn place(&self, text: &str, least: usize) -> Option<usize> {
        self.pairs.place(text, least)
    }

    /// The ids of a prepared part, merged at once.
    pub fn ids(&self, prepared: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.merges.encode(prepared, &mut ids);
        ids
    }

    /// How many tokens a piece of a prepared part has, between two places.
    pub fn count(&self, piece: &str, lengths: &Lengths) -> u64 {
        if piece.len() >= 2 * CHUNK
            && let Ok(Some(count)) = runs::count(piece, lengths, ANYTHING, |text| Ok(self.ids(text)))
        {
            return count;
        }
        let mut ids = Vec::new();
        words::count(piece, &self.pairs, self.number, |word| {
            self.merges.encode(word, &mut ids);
            ids.len() as u64
        })
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or("")
}

/// Whether a normalizer that does no more than write blanks as `▁` puts one before each part; `None` for any other.
fn blanks(normalizer: &Value) -> Option<bool> {
    let text = |step: &Value, name: &str| step.get(name).and_then(Value::as_str).map(str::to_owned);
    let replaces = |step: &Value| {
        let pattern = step.get("pattern").and_then(|pattern| text(pattern, "String"));
        kind(step) == "Replace"
            && pattern.as_deref() == Some(" ")
            && text(step, "content").as_deref() == Some("▁")
    };
    let prepends = |step: &Value| kind(step) == "Prepend" && text(step, "prepend").as_deref() == Some("▁");
    if kind(normalizer) != "Sequence" {
        return replaces(normalizer).then_some(false);
    }
    match normalizer.get("normalizers")?.as_array()?.as_slice() {
        [one] if replaces(one) => Some(false),
        [first, second] if prepends(first) && replaces(second) => Some(true),
        _ => None,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use tokenizers::Tokenizer;

    /// What a vocabulary begins with: `b`, `é` and the byte E2 are missing where something is.
    pub fn file(merges: &[(u32, u32)], whole: bool, fuses: bool, prepends: bool) -> Value {
        let mut entries: Vec<String> = ["<unk>", "▁", "a", "c", "d", "的", "\n"].map(String::from).to_vec();
        entries.extend(whole.then(|| "b".to_owned()));
        entries
            .extend((0..=255).map(super::super::merges::byte_entry).filter(|byte| whole || byte != "<0xE2>"));
        let mut made: Vec<[String; 2]> = Vec::new();
        let mut letters: Vec<String> = entries[1..7].to_vec();
        for (left, right) in merges {
            let of = |n: u32| letters[n as usize % letters.len()].clone();
            let pair = [of(*left), of(*right)];
            let both = pair.concat();
            if !entries.contains(&both) {
                entries.push(both.clone());
                letters.push(both);
            }
            made.push(pair);
        }
        let vocab: serde_json::Map<String, Value> =
            entries.into_iter().enumerate().map(|(id, entry)| (entry, id.into())).collect();
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend =
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]});
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": if prepends { prepend } else { replace }, "pre_tokenizer": null, "post_processor": null,
            "decoder": null,
            "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": fuses, "byte_fallback": true,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "vocab": vocab, "merges": made},
        })
    }

    fn reference(file: &Value) -> Tokenizer {
        Tokenizer::from_bytes(file.to_string()).unwrap()
    }

    fn lengths(file: &Value) -> Lengths {
        let entries = file["model"]["vocab"].as_object().unwrap().iter();
        let known = entries.filter(|(entry, _)| *entry != "<unk>");
        Lengths::new(known.map(|(entry, id)| (entry.clone(), id.as_u64().unwrap() as u32)), false)
    }

    const LETTERS: [&str; 13] = ["a", "a", "c", "c", "d", "b", " ", " ", "的", "é", "▁", "\n", "\u{200b}"];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn a_text_has_the_ids_and_the_count_of_the_reference(
            merges in prop::collection::vec((any::<u32>(), any::<u32>()), 0..30),
            text in prop::collection::vec(0..LETTERS.len(), 0..120),
            (whole, fuses, prepends) in any::<(bool, bool, bool)>(),
        ) {
            let file = file(&merges, whole, fuses, prepends);
            let text: String = text.into_iter().map(|letter| LETTERS[letter]).collect();
            let wanted = reference(&file).encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            let unsplit = Unsplit::read(&file).unwrap();
            let prepared = unsplit.prepared(&text);
            prop_assert_eq!(unsplit.ids(&prepared), &wanted[..]);
            prop_assert_eq!(unsplit.count(&prepared, &lengths(&file)), wanted.len() as u64);
            // And cut at each place.
            let mut counted = 0;
            let mut rest = &*prepared;
            while let Some(place) = unsplit.place(rest, 1) {
                counted += unsplit.ids(&rest[..place]).len();
                rest = &rest[place..];
            }
            prop_assert_eq!(counted + unsplit.ids(rest).len(), wanted.len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn a_long_run_is_counted_in_chunks(
            merges in prop::collection::vec((any::<u32>(), any::<u32>()), 20..40), seed in any::<u64>(), letters in 2usize..13,
        ) {
            let file = file(&merges, true, true, true);
            let mut random = fastrand::Rng::with_seed(seed);
            let text: String = (0..5 * CHUNK).map(|_| LETTERS[random.usize(0..letters)]).collect();
            let wanted = reference(&file).encode_fast(text.as_str(), false).unwrap().get_ids().len();
            let unsplit = Unsplit::read(&file).unwrap();
            prop_assert_eq!(unsplit.count(&unsplit.prepared(&text), &lengths(&file)), wanted as u64);
        }
    }

    #[test]
    fn a_blank_that_is_no_entry_is_the_bytes_of_what_it_is_written_as() {
        let mut file = file(&[], true, true, false);
        file["model"]["vocab"].as_object_mut().unwrap().remove("▁");
        let wanted = reference(&file).encode_fast("a c", false).unwrap().get_ids().to_vec();
        assert_eq!((Unsplit::read(&file).unwrap().ids("a c"), wanted.len()), (wanted, 5));
    }

    #[test]
    fn what_splits_texts_or_writes_them_otherwise_is_none() {
        let good = file(&[(1, 2)], true, true, true);
        assert!(Unsplit::read(&good).is_some());
        let wrong = [
            ("/pre_tokenizer", json!({"type": "Whitespace"})),
            ("/normalizer", Value::Null),
            ("/normalizer/normalizers/0/prepend", json!("_")),
            ("/normalizer/normalizers/1/content", json!("_")),
            ("/normalizer/normalizers", json!([])),
            ("/model/merges/0", json!(["x", "y"])),
            ("/model/unk_token", json!("<none>")),
        ];
        for (place, value) in wrong {
            let mut file = good.clone();
            *file.pointer_mut(place).unwrap() = value;
            assert!(Unsplit::read(&file).is_none(), "{place}");
        }
        let mut never = good;
        never["pre_tokenizer"] = json!({"type": "Split", "pattern": {"String": " "}});
        assert!(Unsplit::read(&never).is_some());
    }
}
