//! OpenAI completions and chat completions, as vLLM 0.32.0 reads them
//! (`entrypoints/openai/{completion,chat_completion}/protocol.py`, `renderers/online_renderer.py`).
//!
//! Refused here with 400, always as the engine does (contract: `invalid_request`):
//!
//! | body | answer |
//! |---|---|
//! | not UTF-8, not JSON, empty, cut off, compressed | [`ReadError::NotJson`] |
//! | `NaN`, `Infinity`, a lone surrogate in a field that is read, UTF-16, nested deeper than 128 | [`ReadError::NotJson`] (vLLM's Python parser takes some of these: refused, so that nothing is counted one way and run another) |
//! | JSON, but no object | [`ReadError::NotAnObject`] |
//! | `prompt` a number, boolean or object, or a list neither all text, all ids, nor all lists of ids | [`ReadError::WrongType`] |
//! | `messages` no array, or an element of it no object | [`ReadError::WrongType`] |
//!
//! Left to the engine, uncounted ([`Prompt::Unread`]), because it refuses them by a rule of its own
//! or builds a prompt that cannot be seen from outside:
//!
//! | body | vLLM 0.32 |
//! |---|---|
//! | no `prompt`, `null`, `""`, `[]`, an empty id list; no `messages`, `[]` | 400 |
//! | `suffix` | 400, or a fill-in-the-middle prompt |
//! | `prompt_embeds` | 400, or embeddings |
//! | `continue_final_message` with `add_generation_prompt` (default true) | 400 |
//! | `tools` `[]` or no array, `documents` no array, `chat_template` no text, `chat_template_kwargs` no object, a boolean or integer that counts and is none, `truncate_prompt_tokens` under −1 | 400 |
//!
//! Read without complaint:
//!
//! | body | read as |
//! |---|---|
//! | a repeated key | its last value |
//! | an unknown field | nothing |
//! | `model` absent | the served model |
//! | a feature field of a wrong type (`"n": "x"`), a negative or huge number | absent; the engine decides |
//! | `["1", "2"]`; `[1.0, true, "3"]` | texts; token ids (pydantic's lax integers) |
//! | `kv_transfer_params.prompt_token_ids` in a chat | the prompt, in place of the messages |
//! | `reasoning_effort` | a template variable, with `enable_thinking` |
//! | no Content-Type, a wrong one, an unknown model, ids out of vocabulary | nothing: the engine answers 400 or 404 |

mod prompt;
mod shape;

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{ReadError, Reading, lax};
use crate::request::{Api, Prompt};

/// Names each field that is read once, as a variant and as its JSON key.
macro_rules! fields {
    ($($variant:ident $key:literal),* $(,)?) => {
        #[derive(Clone, Copy)]
        enum Field { $($variant),* }
        const KEYS: &[&str] = &[$($key),*];
    };
}

fields! {
    AddGenerationPrompt "add_generation_prompt", AddSpecialTokens "add_special_tokens",
    BestOf "best_of", ChatTemplate "chat_template", ChatTemplateKwargs "chat_template_kwargs",
    ContinueFinalMessage "continue_final_message", Documents "documents", Echo "echo",
    GuidedChoice "guided_choice", GuidedGrammar "guided_grammar", GuidedJson "guided_json",
    GuidedRegex "guided_regex", KvTransferParams "kv_transfer_params", LogitBias "logit_bias",
    Logprobs "logprobs", MaxCompletionTokens "max_completion_tokens", MaxTokens "max_tokens",
    Messages "messages", MinTokens "min_tokens", MmProcessorKwargs "mm_processor_kwargs", Model "model", N "n", Prompt "prompt",
    PromptEmbeds "prompt_embeds", PromptLogprobs "prompt_logprobs",
    ReasoningEffort "reasoning_effort", ResponseFormat "response_format", Stream "stream",
    StreamOptions "stream_options", StructuredOutputs "structured_outputs", Suffix "suffix",
    Tools "tools", TopLogprobs "top_logprobs", TruncatePromptTokens "truncate_prompt_tokens",
    UseBeamSearch "use_beam_search",
}

/// The text of each field that was given, borrowed from the body.
struct Fields<'b> {
    body: &'b str,
    raw: [Option<&'b str>; KEYS.len()],
}

impl<'b> Fields<'b> {
    /// The field's JSON text, unless it is absent or null.
    fn get(&self, field: Field) -> Option<&'b str> {
        self.raw[field as usize].filter(|raw| *raw != "null")
    }

    /// A feature: a wrong type counts as absent.
    fn count(&self, field: Field) -> Option<u32> {
        let value = lax::int(self.get(field)?)?;
        (value >= 0).then(|| u32::try_from(value).unwrap_or(u32::MAX))
    }

    /// A feature where −1 asks for everything.
    fn count_or_all(&self, field: Field) -> Option<u32> {
        if self.get(field).and_then(lax::int) == Some(-1) { Some(u32::MAX) } else { self.count(field) }
    }

    fn tokens(&self, field: Field) -> Option<u64> {
        let value = lax::int(self.get(field)?)?;
        (value >= 0).then(|| u64::try_from(value).unwrap_or(u64::MAX))
    }

    fn flag(&self, field: Field) -> bool {
        self.get(field).and_then(lax::boolean).unwrap_or(false)
    }

    /// A boolean that changes the count; `Err` where the engine refuses its type (null too).
    fn switch(&self, field: Field, default: bool) -> Result<bool, Refused> {
        let Some(raw) = self.raw[field as usize] else { return Ok(default) };
        lax::boolean(raw).ok_or("the engine refuses the type of a switch")
    }

    /// An array, where given; `Err` where it is something else.
    fn array(&self, field: Field) -> Result<Option<Vec<Value>>, Misread> {
        let Some(raw) = self.get(field) else { return Ok(None) };
        if !raw.starts_with('[') {
            return Err(Misread::Unread("the engine refuses the type of tools or documents"));
        }
        Ok(Some(self.parsed(raw)?))
    }

    /// Parses a field's text; its errors are told by their place in the whole body.
    fn parsed<T: serde::Deserialize<'b>>(&self, raw: &'b str) -> Result<T, Misread> {
        if !raw.starts_with('"') && lax::values_over(raw, MOST_VALUES) {
            return Err(Misread::Refused(ReadError::TooManyValues { limit: MOST_VALUES }));
        }
        serde_json::from_str(raw).map_err(|error| {
            let start = raw.as_ptr() as usize - self.body.as_ptr() as usize;
            Misread::Refused(not_json(&error, &self.body[..start]))
        })
    }
}

/// JSON values that messages, tools or another field may hold: each takes up to a hundred times the memory
/// of its text. A conversation of 10,000 messages with parts has some 100,000.
const MOST_VALUES: usize = 200_000;

/// Why something is left to the engine.
type Refused = &'static str;

/// Why a prompt was not read.
enum Misread {
    Unread(Refused),
    Refused(ReadError),
}

impl From<Refused> for Misread {
    fn from(why: Refused) -> Self {
        Self::Unread(why)
    }
}

/// Reads a body. Cost is linear in its length; nothing but the prompt is copied.
///
/// # Errors
/// See the module's first table.
pub fn read(api: Api, body: &[u8]) -> Result<Reading, ReadError> {
    let fields = fields(body)?;
    let mut shape = shape::shape(api, &fields);
    let prompt = match api {
        Api::Chat => prompt::chat(&fields, &mut shape),
        Api::Completions | Api::Other => prompt::completion(&fields, &mut shape),
    };
    let truncate = truncation(&fields);
    let prompt = match (prompt, truncate) {
        (Err(Misread::Refused(error)), _) => return Err(error),
        (Err(Misread::Unread(why)), _) | (_, Err(why)) => Prompt::Unread { why },
        (Ok(prompt), Ok(_)) => prompt,
    };
    let include_usage = fields
        .get(Field::StreamOptions)
        .is_some_and(|raw| has_member(raw, "include_usage", |value| lax::boolean(value) == Some(true)));
    Ok(Reading { shape, prompt, truncate: truncate.ok().flatten(), include_usage })
}

fn has_member(raw: &str, key: &str, wanted: impl Fn(&str) -> bool) -> bool {
    let mut found = false;
    lax::members(raw, |name, value| {
        if name == key {
            found = wanted(value);
        }
    });
    found
}

/// Splits the body into its fields; the last of a repeated key counts, as in Python.
fn fields(body: &[u8]) -> Result<Fields<'_>, ReadError> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let body = std::str::from_utf8(body).map_err(|error| {
        let (line, column) = place(&String::from_utf8_lossy(&body[..error.valid_up_to()]));
        ReadError::NotJson { detail: "invalid UTF-8", line, column }
    })?;
    let start = body.trim_start_matches([' ', '\t', '\n', '\r']);
    if !start.starts_with('{') {
        return Err(match serde_json::from_str::<IgnoredAny>(body) {
            Ok(_) => ReadError::NotAnObject { found: lax::kind(start) },
            Err(error) => not_json(&error, ""),
        });
    }
    let mut json = serde_json::Deserializer::from_str(body);
    let raw = json.deserialize_map(Split).and_then(|raw| json.end().map(|()| raw));
    Ok(Fields { body, raw: raw.map_err(|error| not_json(&error, ""))? })
}

struct Split;

impl<'b> Visitor<'b> for Split {
    type Value = [Option<&'b str>; KEYS.len()];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut raw = [None; KEYS.len()];
        while let Some(key) = map.next_key::<Cow<'b, str>>()? {
            match KEYS.iter().position(|known| *known == key) {
                Some(at) => raw[at] = Some(map.next_value::<&RawValue>()?.get()),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(raw)
    }
}

/// The parser's error, without any of the request's text, placed after `before`.
fn not_json(error: &serde_json::Error, before: &str) -> ReadError {
    const KNOWN: &[&str] = &[
        "expected value",
        "expected `:`",
        "expected `,` or `}`",
        "expected `,` or `]`",
        "key must be a string",
        "trailing comma",
        "trailing characters",
        "lone leading surrogate in hex escape",
        "unexpected end of hex escape",
        "invalid escape",
        "invalid number",
        "number out of range",
        "control character (\\u0000-\\u001F) found while parsing a string",
        "recursion limit exceeded",
    ];
    let detail = if error.is_eof() {
        "unexpected end"
    } else {
        let text = error.to_string();
        KNOWN.iter().find(|known| text.starts_with(**known)).copied().unwrap_or("syntax error")
    };
    let (line, column) = place(before);
    if error.line() <= 1 {
        ReadError::NotJson { detail, line, column: (column + error.column()).saturating_sub(1).max(1) }
    } else {
        ReadError::NotJson { detail, line: line + error.line() - 1, column: error.column() }
    }
}

/// Line and column, from 1, of the end of a text.
fn place(before: &str) -> (usize, usize) {
    let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
    (line, before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1)
}

/// `truncate_prompt_tokens`; `Err` where the engine refuses it.
fn truncation(fields: &Fields<'_>) -> Result<Option<i64>, Refused> {
    let Some(raw) = fields.get(Field::TruncatePromptTokens) else { return Ok(None) };
    lax::int(raw)
        .and_then(|keep| i64::try_from(keep).ok())
        .filter(|keep| *keep >= -1)
        .map(Some)
        .ok_or("the engine refuses truncate_prompt_tokens")
}

#[cfg(test)]
mod tests;
