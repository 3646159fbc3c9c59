//! Reads the body of a generation request as vLLM 0.32 does, errors included.
//!
//! This is the engine's reader, kept apart from kvgate's own in `request::dialect`: what one of
//! them gets wrong the other must not hide.

use serde_json::{Map, Value};

use super::refusal::{MAX_N, Refusal};
use crate::request::ChatPrompt;

/// The two ways to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Input {
    /// Text.
    Text(String),
    /// Token ids.
    Ids(Vec<i64>),
    /// A conversation, and about how many bytes it has.
    Chat(Box<ChatPrompt>, usize),
}

/// What a body asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ask {
    /// Which API.
    pub form: Form,
    /// The model named.
    pub model: Option<String>,
    /// The prompts.
    pub inputs: Vec<Input>,
    /// Sequences for each prompt.
    pub n: u32,
    /// The output limit, and the field that set it.
    pub max_tokens: Option<(&'static str, i64)>,
    /// Least output.
    pub min_tokens: u64,
    /// Whether the model's own end is ignored.
    pub ignore_eos: bool,
    /// Whether a stream is wanted.
    pub stream: bool,
    /// Whether the stream ends with its usage.
    pub include_usage: bool,
    /// Whether each event carries the usage so far.
    pub continuous_usage: bool,
    /// Keep only so many of the last prompt tokens; -1: as many as fit.
    pub truncate: Option<i64>,
    /// Whether texts get the tokenizer's special tokens.
    pub add_special_tokens: bool,
}

/// Parses a body into an object.
///
/// # Errors
/// vLLM's answer to what is none.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if body.is_empty() {
        return Err(Refusal::NoBody);
    }
    let text = std::str::from_utf8(body).map_err(|_| Refusal::Unreadable)?;
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Refusal::WrongType { field: "", expected: "dictionary" }),
        Err(e) => {
            let before: usize =
                text.split_inclusive('\n').take(e.line().saturating_sub(1)).map(|l| l.chars().count()).sum();
            let column = if e.is_eof() { e.column() } else { e.column().saturating_sub(1) };
            Err(Refusal::NotJson { at: before + column })
        }
    }
}

impl Ask {
    /// Reads a body.
    ///
    /// # Errors
    /// What vLLM refuses before it counts.
    pub fn read(form: Form, body: &[u8]) -> Result<Self, Refusal> {
        let map = object(body)?;
        let inputs = match form {
            Form::Completion => completion_inputs(&map)?,
            Form::Chat => vec![chat_input(&map)?],
        };
        let options = map.get("stream_options").and_then(Value::as_object);
        let option = |name| options.and_then(|o| o.get(name)).and_then(Value::as_bool).unwrap_or(false);
        Ok(Self {
            form,
            model: text(&map, "model")?,
            inputs,
            n: sequences(&map)?,
            max_tokens: max_tokens(form, &map)?,
            min_tokens: integer(&map, "min_tokens")?.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
            ignore_eos: flag(&map, "ignore_eos")?.unwrap_or(false),
            stream: flag(&map, "stream")?.unwrap_or(false),
            include_usage: option("include_usage"),
            continuous_usage: option("include_usage") && option("continuous_usage_stats"),
            truncate: integer(&map, "truncate_prompt_tokens")?,
            add_special_tokens: flag(&map, "add_special_tokens")?.unwrap_or(form == Form::Completion),
        })
    }
}

/// Reads the conversation of a body.
///
/// # Errors
/// Where there is none, or none that a template could take.
pub(super) fn chat_input(map: &Map<String, Value>) -> Result<Input, Refusal> {
    let Some(messages) = map.get("messages") else {
        return Err(Refusal::Missing { field: "messages", items: map.len() });
    };
    let messages = messages.as_array().ok_or(Refusal::WrongType { field: "messages", expected: "list" })?;
    if messages.is_empty() {
        return Err(Refusal::NoMessages);
    }
    let list = |name| map.get(name).and_then(Value::as_array).cloned();
    let messages: Vec<Value> = messages.iter().map(flattened).collect::<Result<_, _>>()?;
    let bytes = messages.iter().map(|m| m["content"].as_str().map_or(64, str::len)).sum();
    let chat = ChatPrompt {
        messages,
        tools: list("tools").filter(|t| !t.is_empty()),
        documents: list("documents"),
        chat_template: None,
        processor_kwargs: false,
        template_kwargs: map
            .get("chat_template_kwargs")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default(),
        add_generation_prompt: flag(map, "add_generation_prompt")?.unwrap_or(true),
        continue_final_message: flag(map, "continue_final_message")?.unwrap_or(false),
        add_special_tokens: flag(map, "add_special_tokens")?.unwrap_or(false),
    };
    Ok(Input::Chat(Box::new(chat), bytes))
}

/// A message whose content parts are joined by line breaks (vLLM's "string" content format).
fn flattened(message: &Value) -> Result<Value, Refusal> {
    let wrong = Refusal::WrongType { field: "messages", expected: "message" };
    let mut message = message.as_object().ok_or_else(|| wrong.clone())?.clone();
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(wrong);
    }
    if let Some(Value::Array(parts)) = message.get("content") {
        let texts: Option<Vec<&str>> = parts.iter().map(|p| p.get("text").and_then(Value::as_str)).collect();
        let joined = texts.ok_or(wrong)?.join("\n");
        message.insert("content".to_owned(), joined.into());
    }
    Ok(Value::Object(message))
}

fn completion_inputs(map: &Map<String, Value>) -> Result<Vec<Input>, Refusal> {
    let wrong = Refusal::WrongType { field: "prompt", expected: "string" };
    let ids = |list: &[Value]| -> Option<Vec<i64>> { list.iter().map(Value::as_i64).collect() };
    match map.get("prompt") {
        None | Some(Value::Null) => Err(Refusal::NoPrompt),
        Some(Value::String(text)) if text.is_empty() => Err(Refusal::NoPrompt),
        Some(Value::String(text)) => Ok(vec![Input::Text(text.clone())]),
        Some(Value::Array(list)) => match list.first() {
            None => Err(Refusal::NoPrompts),
            Some(Value::Number(_)) => Ok(vec![Input::Ids(ids(list).ok_or(wrong)?)]),
            Some(Value::String(_)) => list
                .iter()
                .map(|v| v.as_str().map(|t| Input::Text(t.to_owned())).ok_or_else(|| wrong.clone()))
                .collect(),
            Some(_) => list
                .iter()
                .map(|v| v.as_array().and_then(|l| ids(l)).map(Input::Ids).ok_or_else(|| wrong.clone()))
                .collect(),
        },
        Some(_) => Err(wrong),
    }
}

/// The output limit: a completion without one has 16, a chat as many as fit.
fn max_tokens(form: Form, map: &Map<String, Value>) -> Result<Option<(&'static str, i64)>, Refusal> {
    if form == Form::Chat
        && let Some(n) = integer(map, "max_completion_tokens")?
    {
        return Ok(Some(("max_completion_tokens", n)));
    }
    let given = integer(map, "max_tokens")?;
    let default = (form == Form::Completion).then_some(16);
    Ok(given.or(default).map(|n| ("max_tokens", n)))
}

fn sequences(map: &Map<String, Value>) -> Result<u32, Refusal> {
    let n = integer(map, "n")?.unwrap_or(1);
    match n {
        ..=0 => Err(Refusal::TooFewSequences { n }),
        1..=MAX_N => Ok(u32::try_from(n).unwrap_or(1)),
        _ => Err(Refusal::TooManySequences { n }),
    }
}

fn integer(map: &Map<String, Value>, field: &'static str) -> Result<Option<i64>, Refusal> {
    match map.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => v.as_i64().map(Some).ok_or(Refusal::WrongType { field, expected: "integer" }),
    }
}

/// A boolean field.
///
/// # Errors
/// Where it is something else.
pub(super) fn flag(map: &Map<String, Value>, field: &'static str) -> Result<Option<bool>, Refusal> {
    match map.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => v.as_bool().map(Some).ok_or(Refusal::WrongType { field, expected: "boolean" }),
    }
}

/// A text field.
///
/// # Errors
/// Where it is something else.
pub(super) fn text(map: &Map<String, Value>, field: &'static str) -> Result<Option<String>, Refusal> {
    match map.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(s)) => Ok(Some(s.clone())),
        Some(_) => Err(Refusal::WrongType { field, expected: "string" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(body: &str) -> Result<Ask, Refusal> {
        Ask::read(Form::Completion, body.as_bytes())
    }

    #[test]
    fn every_form_of_prompt_is_read() {
        let inputs = |body: &str| completion(body).unwrap().inputs;
        assert_eq!(inputs(r#"{"prompt":"a"}"#), [Input::Text("a".into())]);
        assert_eq!(inputs(r#"{"prompt":["a","b"]}"#).len(), 2);
        assert_eq!(inputs(r#"{"prompt":[1,2]}"#), [Input::Ids(vec![1, 2])]);
        assert_eq!(inputs(r#"{"prompt":[[1],[2]]}"#).len(), 2);
        assert_eq!(completion(r#"{"prompt":""}"#), Err(Refusal::NoPrompt));
        assert_eq!(completion(r#"{"prompt":[]}"#), Err(Refusal::NoPrompts));
        assert!(completion(r#"{"prompt":["Hi",[1,2]]}"#).is_err());
    }

    #[test]
    fn a_completion_without_a_limit_has_sixteen_tokens_and_a_chat_has_none() {
        assert_eq!(completion(r#"{"prompt":"a"}"#).unwrap().max_tokens, Some(("max_tokens", 16)));
        let body = br#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#;
        let ask = Ask::read(Form::Chat, body).unwrap();
        assert_eq!(ask.max_tokens, None);
        assert!(matches!(&ask.inputs[0], Input::Chat(c, 1) if c.messages[0]["content"] == "a"));
    }

    #[test]
    fn the_place_of_an_error_in_the_json_is_told() {
        let body = r#"{"model": "tiny", "messages": ["#;
        assert_eq!(Ask::read(Form::Chat, body.as_bytes()), Err(Refusal::NotJson { at: 31 }));
        assert_eq!(Ask::read(Form::Chat, b""), Err(Refusal::NoBody));
        assert_eq!(Ask::read(Form::Chat, b"\xff"), Err(Refusal::Unreadable));
    }
}
