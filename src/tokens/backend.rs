//! The tokenizer of a model: the reference, and a faster one where it was seen to agree with it.
//!
//! The reference is Hugging Face `tokenizers` 0.23, which Python engines run today. `fastokens` gives the same
//! ids in a small part of the time (`cargo bench --bench tokens`). It is compared with the reference when a
//! model is loaded ([`selfcheck`]); where it cannot read the file or differs, it is not used.
//!
//! What it cannot read is said to it in other words where these mean the same: ids without an entry get one that no
//! text has; a splitting pattern that removes what it does not match isolates what it does, where it
//! matches everything; and NFKC is done before, with the reference's tables.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::count::CountError;
use super::cuts::{self, Cuts};
use super::files::LoadError;
use super::nfkc::nfkc;
use super::runs::{self, Kinds, Lengths};
use super::selfcheck::{self, Differences, has_corner};

/// The tokenizers of one model.
pub struct Backend {
    reference: Tokenizer,
    fast: Option<Fast>,
    /// Whether texts with a corner ([`selfcheck::CORNERS`]) are counted by the reference.
    corners: bool,
    lengths: Lengths,
    added: Vec<String>,
    /// Set when a fast count was seen to be wrong.
    distrusted: AtomicBool,
    /// Why the reference serves instead of the faster one.
    why_slow: Option<String>,
}

/// `fastokens`, and what is done to a text before.
struct Fast {
    tokenizer: fastokens::Tokenizer,
    /// Where its parts are brought to NFKC before: what tells them apart.
    nfkc: Option<Cuts>,
}

/// Makes `fastokens` work on the calling thread alone, for this process: how many prompts are counted at once is
/// for the lanes to say. It reads that from the environment only. To be called before any other thread is started.
pub fn one_thread_a_count() {
    // SAFETY: no other thread runs yet that could read the environment.
    #[expect(unsafe_code, reason = "the library has no other way to say it")]
    unsafe {
        std::env::set_var("FASTOKENS_BPE_THREADS", "1");
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Backend {
    /// Loads a `tokenizer.json` and compares; some tenths of a second for large models.
    ///
    /// # Errors
    /// The reference cannot read it.
    pub fn load(json: &[u8], file: Value) -> Result<Self, LoadError> {
        // No thread pool of the library's own: what runs at once is the counter's business.
        tokenizers::utils::parallelism::set_parallelism(false);
        let invalid = |error: tokenizers::Error| LoadError::Invalid {
            what: "tokenizer.json",
            reason: error.to_string(),
        };
        let mut reference = Tokenizer::from_bytes(json).map_err(invalid)?;
        // Some files carry a cut or a padding; the engines switch both off.
        reference.with_truncation(None).map_err(invalid)?;
        reference.with_padding(None);
        let mut added: Vec<(u32, String)> =
            reference.get_added_tokens_decoder().into_iter().map(|(id, token)| (id, token.content)).collect();
        added.sort_unstable();
        let added: Vec<String> = added.into_iter().map(|(_, content)| content).collect();
        let byte_level = cuts::is_byte_level(&file);
        // It stands for any text: of no known length.
        let unknown = file.pointer("/model/unk_token").and_then(Value::as_str).map(str::to_owned);
        let (fast, corners, why_slow) = match load_fast(file, &reference, &added) {
            Ok((fast, corners)) => (Some(fast), corners, None),
            Err(why) => (None, false, Some(why)),
        };
        let lengths = Lengths::new(
            reference.get_vocab(false).into_iter().filter(|(entry, _)| Some(entry) != unknown.as_ref()),
            byte_level,
        );
        let distrusted = AtomicBool::new(false);
        Ok(Self { reference, fast, corners, lengths, added, distrusted, why_slow })
    }

    /// The library that counts, and why it is the reference where it is.
    #[must_use]
    pub fn path(&self) -> (&'static str, Option<String>) {
        if self.distrusted.load(Ordering::Relaxed) {
            return ("tokenizers", Some("a fast count was found to differ from the reference's".to_owned()));
        }
        match &self.fast {
            Some(_) => ("fastokens", None),
            None => ("tokenizers", self.why_slow.clone()),
        }
    }

    /// Whether texts with `ſ` or the Kelvin sign are left to the reference.
    #[must_use]
    pub const fn corners(&self) -> bool {
        self.corners
    }

    /// From now on the reference serves.
    pub fn distrust(&self) {
        self.distrusted.store(true, Ordering::Relaxed);
    }

    /// The added tokens, in order of their ids.
    #[must_use]
    pub fn added(&self) -> &[String] {
        &self.added
    }

    /// How many bytes each token stands for.
    #[must_use]
    pub const fn lengths(&self) -> &Lengths {
        &self.lengths
    }

    /// The reference.
    #[must_use]
    pub const fn reference(&self) -> &Tokenizer {
        &self.reference
    }

    /// Whether anything but the reference counts.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.fast.is_some() && !self.distrusted.load(Ordering::Relaxed)
    }

    /// The ids of a whole text by the reference.
    ///
    /// # Errors
    /// [`CountError::Tokenizer`]
    pub fn reference_ids(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, CountError> {
        let encoding = self.reference.encode_fast(text, add_special_tokens);
        let encoding = encoding.map_err(|error| CountError::Tokenizer { reason: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a whole text, special tokens of the post-processor included where asked for.
    ///
    /// # Errors
    /// [`CountError::Tokenizer`]
    pub fn ids(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, CountError> {
        match self.fast_for(text).map(|fast| fast.ids(text, add_special_tokens)) {
            Some(Ok(ids)) => Ok(ids),
            _ => self.reference_ids(text, add_special_tokens),
        }
    }

    /// How many tokens a part has, without any of the post-processor. `run` says that it is long and has no place to
    /// cut it, and what the pattern keeps together.
    ///
    /// # Errors
    /// [`CountError::Tokenizer`]
    pub fn count(&self, part: &str, run: Option<Kinds>) -> Result<u64, CountError> {
        if part.is_empty() {
            return Ok(0);
        }
        if let Some(fast) = self.fast_for(part) {
            let text = fast.normal(part);
            let ids = |text: &str| fast.normal_ids(text);
            if let Some(kinds) = run
                && let Ok(Some(count)) = runs::count(&text, &self.lengths, fast.as_normal(kinds), ids)
            {
                return Ok(count);
            }
            if let Ok(ids) = ids(&text) {
                return Ok(ids.len() as u64);
            }
        }
        Ok(self.reference_ids(part, false)?.len() as u64)
    }

    /// Whether anything but the reference counts this text.
    #[must_use]
    pub fn is_fast_for(&self, text: &str) -> bool {
        self.fast_for(text).is_some()
    }

    /// The fast one, where it may count this text.
    fn fast_for(&self, text: &str) -> Option<&Fast> {
        self.fast.as_ref().filter(|_| self.is_fast() && !(self.corners && has_corner(text)))
    }
}

/// Loads `fastokens` and compares it; also whether texts with a corner are not for it.
fn load_fast(mut file: Value, reference: &Tokenizer, added: &[String]) -> Result<(Fast, bool), String> {
    let nfkc = in_other_words(&mut file);
    let mut tokenizer = match catch_unwind(|| fastokens::Tokenizer::from_json(file)) {
        Ok(Ok(tokenizer)) => tokenizer,
        Ok(Err(error)) => return Err(format!("fastokens cannot read tokenizer.json: {error}")),
        Err(_) => return Err("fastokens cannot read tokenizer.json".to_owned()),
    };
    tokenizer.set_truncation(None);
    tokenizer.set_padding(None);
    let fast = Fast { tokenizer, nfkc };
    let Differences { strings, corners } = selfcheck::compare(reference, added, |text| fast.ids(text, false));
    if strings > 0 {
        return Err(format!("fastokens gives other ids for {strings} of the strings tried"));
    }
    Ok((fast, corners > 0))
}

/// Rewrites what `fastokens` cannot read; what tells the parts of a text apart where these are to be brought to NFKC before.
fn in_other_words(file: &mut Value) -> Option<Cuts> {
    // `tokenizers` 0.23 takes a model without a type for what it looks like.
    if let Some(model) = file.get_mut("model").and_then(Value::as_object_mut)
        && model.contains_key("merges")
    {
        // Without its type it is taken for what it is, and what is wrong with it is told.
        model.retain(|key, value| key != "type" || value.as_str() != Some("BPE"));
        // Affixes of no length are none.
        for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
            model.retain(|key, value| key != affix || value.as_str() != Some(""));
        }
        if let Some(vocab) = model.get_mut("vocab").and_then(Value::as_object_mut) {
            fill_gaps(vocab);
        }
    }
    if let Some(steps) = file.pointer_mut("/pre_tokenizer/pretokenizers").and_then(Value::as_array_mut) {
        for step in steps.iter_mut().filter(|step| cuts::is_known_split(step)) {
            step["behavior"] = json!("Isolated");
            step["invert"] = json!(false);
        }
    }
    let nfkc = file.pointer("/normalizer/type").and_then(Value::as_str) == Some("NFKC");
    // Added tokens that are matched in the normalized text would have to be told apart.
    let plain = file.get("added_tokens").and_then(Value::as_array).is_none_or(|all| {
        all.iter().all(|added| added.get("normalized").and_then(Value::as_bool) == Some(false))
    });
    let none = file.get("added_tokens").and_then(Value::as_array).is_none_or(Vec::is_empty);
    let cuts = (nfkc && plain).then(|| Cuts::read(file)).filter(|cuts| none || cuts.at_added())?;
    file["normalizer"] = Value::Null;
    Some(cuts)
}

/// Gives ids that no entry has to entries that no text has: no merge makes them, and a control character is in no
/// alphabet of bytes.
fn fill_gaps(vocab: &mut serde_json::Map<String, Value>) {
    let ids: std::collections::HashSet<u64> = vocab.values().filter_map(Value::as_u64).collect();
    let most = ids.iter().max().copied().unwrap_or(0);
    if most < 1 << 22 {
        for gap in (0..most).filter(|id| !ids.contains(id)) {
            vocab.insert(format!("\u{1}gap {gap}\u{1}"), gap.into());
        }
    }
}

impl Fast {
    fn ids(&self, text: &str, special: bool) -> Result<Vec<u32>, CountError> {
        let Some(cuts) = &self.nfkc else {
            return caught(|| self.tokenizer.encode_with_special_tokens(text, special));
        };
        let (mut ids, mut at) = (Vec::new(), 0);
        for part in cuts.parts(text, 0) {
            ids.extend(self.normal_ids(&self.normal(part.text))?);
            let token = &text[at + part.text.len()..part.end];
            ids.extend(part.token.then(|| self.tokenizer.token_to_id(token)).flatten());
            at = part.end;
        }
        Ok(self.tokenizer.post_process(ids, special))
    }

    /// A part as it is to be given to the library.
    fn normal<'t>(&self, part: &'t str) -> Cow<'t, str> {
        if self.nfkc.is_some() { nfkc(part) } else { Cow::Borrowed(part) }
    }

    /// What the pattern keeps together in such a part.
    const fn as_normal(&self, kinds: Kinds) -> Kinds {
        Kinds { composed: kinds.composed && self.nfkc.is_none(), ..kinds }
    }

    /// The ids of such a part. What NFKC made into the text of an added token is none.
    fn normal_ids(&self, part: &str) -> Result<Vec<u32>, CountError> {
        caught(|| match self.nfkc {
            Some(_) => self.tokenizer.encode_ordinary(part),
            None => self.tokenizer.encode_with_special_tokens(part, false),
        })
    }
}

/// Runs the library, which may give up.
fn caught(ids: impl FnOnce() -> Result<Vec<u32>, fastokens::Error>) -> Result<Vec<u32>, CountError> {
    match catch_unwind(AssertUnwindSafe(ids)) {
        Ok(Ok(ids)) => Ok(ids),
        Ok(Err(error)) => Err(CountError::Tokenizer { reason: error.to_string() }),
        Err(_) => Err(CountError::Tokenizer { reason: "fastokens gave up".to_owned() }),
    }
}
