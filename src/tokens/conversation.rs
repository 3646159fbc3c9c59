//! From a request's messages to what the chat template sees, as vLLM 0.32.0 does it
//! (`renderers/chat_utils.py` `parse_chat_messages`, `renderers/hf.py` `safe_apply_chat_template`,
//! `entrypoints/generate/base/protocol.py` for the tools).

pub(super) mod media;

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::images::ImageRef;
pub use media::Contents;
use media::{MEDIA, image, with_images};

/// A conversation, ready for the template.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation<'a> {
    /// The messages.
    pub messages: Vec<Value>,
    /// Whether parts other than text were left out: the engine sees more than is rendered.
    pub media: bool,
    /// The images, in the order in which the engine takes them.
    pub images: Vec<ImageRef<'a>>,
    /// Whether there are parts that are neither text nor an image of a known kind: sound, video,
    /// embeddings. Their cost is not known.
    pub other_media: bool,
}

/// Reads the messages. Images are borrowed from them.
///
/// # Errors
/// Says what the engine refuses with 400.
pub fn parse_as(messages: &[Value], contents: Contents) -> Result<Conversation<'_>, &'static str> {
    let mut conversation = Conversation {
        messages: Vec::with_capacity(messages.len()),
        media: false,
        images: Vec::new(),
        other_media: false,
    };
    for message in messages {
        let message = message.as_object().ok_or("a message is no object")?;
        let parsed = one(message, contents, &mut conversation)?;
        conversation.messages.push(Value::Object(parsed));
    }
    Ok(conversation)
}

fn one<'a>(
    message: &'a Map<String, Value>,
    contents: Contents,
    conversation: &mut Conversation<'a>,
) -> Result<Map<String, Value>, &'static str> {
    let role = message.get("role").and_then(Value::as_str).ok_or("a message has no role")?;
    let mut parts = parts(message.get("content"))?;
    if role == "system" {
        parts = without_billing_header(parts);
    }
    let lists = contents == Contents::Lists;
    let before = conversation.images.len();
    let mut content = Vec::with_capacity(parts.len());
    for part in parts {
        content.extend(one_part(part, lists, conversation)?);
    }
    let mut out = Map::new();
    out.insert("role".to_owned(), role.into());
    let text_only = content.iter().all(|part| part.get("type").is_none_or(|kind| kind == "text"));
    let content = if !lists || (role == "tool" && text_only) {
        let text = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
        let text = content.iter().filter_map(text).collect::<Vec<_>>().join("\n");
        let images = conversation.images.len() - before;
        Value::from(match contents {
            Contents::Text { image: Some(image) } if images > 0 => with_images(text, image, images)?,
            _ => text,
        })
    } else {
        Value::Array(content)
    };
    out.insert("content".to_owned(), content);
    rest(role, message, &mut out)?;
    Ok(out)
}

/// The fields beside role and content.
fn rest(role: &str, message: &Map<String, Value>, out: &mut Map<String, Value>) -> Result<(), &'static str> {
    let given = |key: &str| message.get(key).filter(|value| !value.is_null());
    match role {
        "assistant" => {
            if let Some(calls) = given("tool_calls") {
                let calls = tool_calls(calls)?;
                if !calls.is_empty() {
                    out.insert("tool_calls".to_owned(), calls.into());
                }
            }
            if let Some(reasoning) = given("reasoning").or_else(|| given("reasoning_content")) {
                out.insert("reasoning".to_owned(), reasoning.clone());
                out.insert("reasoning_content".to_owned(), reasoning.clone());
            }
        }
        "tool" => {
            if let Some(id) = message.get("tool_call_id") {
                out.insert("tool_call_id".to_owned(), id.clone());
            }
        }
        _ => {}
    }
    for key in ["name", "task"] {
        if let Some(text) = message.get(key).filter(|value| value.is_string()) {
            out.insert(key.to_owned(), text.clone());
        }
    }
    if role == "developer" {
        out.insert("tools".to_owned(), message.get("tools").cloned().unwrap_or_default());
    }
    Ok(())
}

/// A part of a content: the request's own, so that no image is copied, or one made here.
type Part<'a> = Cow<'a, Map<String, Value>>;

/// A content as a list of parts.
fn parts(content: Option<&Value>) -> Result<Vec<Part<'_>>, &'static str> {
    match content {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Cow::Owned(text_part(text))]),
        Some(Value::Array(parts)) => {
            let object = |part| Value::as_object(part).ok_or("a part of a content is no object");
            parts.iter().map(|part| object(part).map(Cow::Borrowed)).collect()
        }
        Some(_) => Err("a content is neither text nor a list"),
    }
}

fn text_part(text: &str) -> Map<String, Value> {
    let mut part = Map::new();
    part.insert("type".to_owned(), "text".into());
    part.insert("text".to_owned(), text.into());
    part
}

/// Drops the line that one client puts, with a changing value, at the head of its system prompt.
fn without_billing_header(parts: Vec<Part<'_>>) -> Vec<Part<'_>> {
    parts.into_iter().filter_map(strip_billing_header).collect()
}

fn strip_billing_header(mut part: Part<'_>) -> Option<Part<'_>> {
    const HEADER: &str = "x-anthropic-billing-header";
    let text = part.get("text").and_then(Value::as_str).filter(|_| part.get("type") == Some(&"text".into()));
    let Some(text) = text.filter(|text| text.starts_with(HEADER)) else { return Some(part) };
    let left = text.split_once('\n').map_or("", |(_, left)| left).to_owned();
    if left.is_empty() {
        return None;
    }
    part.to_mut().insert("text".to_owned(), left.into());
    Some(part)
}

/// Kinds of parts that are text, and the key that holds it.
const TEXTS: &[(&str, &str)] = &[
    ("text", "text"),
    ("input_text", "text"),
    ("output_text", "text"),
    ("refusal", "refusal"),
    ("thinking", "thinking"),
];

/// Fields of parts that the engine knows; others go through to the template.
const KNOWN: &[&str] = &[
    "type",
    "text",
    "refusal",
    "thinking",
    "closed",
    "uuid",
    "detail",
    "name",
    "file",
    "data",
    "image_url",
    "input_image",
    "image_pil",
    "image_embeds",
    "audio_url",
    "input_audio",
    "audio_embeds",
    "video_url",
    "video_embeds",
    "prompt_embeds",
    "tool_reference",
    "prompt_cache_breakpoint",
];

/// One part as the template sees it, or nothing; texts carry the keys `type` and `text`.
fn one_part<'a>(
    part: Part<'a>,
    lists: bool,
    conversation: &mut Conversation<'a>,
) -> Result<Option<Value>, &'static str> {
    let kind = part.get("type").and_then(Value::as_str);
    let extra =
        || part.iter().filter(|(key, _)| !KNOWN.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone()));
    if let Some((_, key)) = TEXTS.iter().find(|(name, _)| kind == Some(name)) {
        return match part.get(*key) {
            Some(Value::String(text)) => {
                let mut out = text_part(text);
                out.extend(extra());
                Ok(Some(Value::Object(out)))
            }
            None | Some(Value::Null) if matches!(kind, Some("text" | "refusal")) => Ok(None),
            _ => Err("a text part holds no text"),
        };
    }
    if kind == Some("tool_reference") || (kind.is_none() && part.contains_key("tool_reference")) {
        let name = part.get("name").and_then(Value::as_str).ok_or("a tool reference has no name")?;
        return Ok(Some(if lists {
            json!({"type": "tool_reference", "name": name})
        } else {
            Value::Object(text_part(name))
        }));
    }
    let known = |(key, _): &&(&str, &str)| match kind {
        Some(kind) => kind == *key,
        None => part.contains_key(*key),
    };
    let (key, modality) =
        MEDIA.iter().find(known).ok_or("a part is of a kind that the engine does not know")?;
    let shown = lists.then(|| {
        let mut out = Map::new();
        out.insert("type".to_owned(), (*modality).into());
        out.extend(extra());
        Value::Object(out)
    });
    conversation.media = true;
    match (*key, part) {
        ("image_url" | "input_image", Cow::Borrowed(part)) => conversation.images.push(image(part)),
        _ => conversation.other_media = true,
    }
    Ok(shown)
}

/// The calls of an assistant's message: in the engine's order of keys, with arguments as objects.
fn tool_calls(calls: &Value) -> Result<Vec<Value>, &'static str> {
    let calls = calls.as_array().ok_or("tool_calls is no list")?;
    calls.iter().map(tool_call).collect()
}

fn tool_call(call: &Value) -> Result<Value, &'static str> {
    let call = call.as_object().ok_or("a tool call is no object")?;
    let function = call.get("function").and_then(Value::as_object).ok_or("a tool call names no function")?;
    if call.get("type").is_some_and(|kind| kind != "function") {
        return Err("a tool call is not of type function");
    }
    let mut function = ordered(function, &["arguments", "name"]);
    let arguments = match function.get("arguments") {
        Some(Value::Object(object)) => object.clone(),
        // What is no JSON object becomes an empty one.
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_default(),
        _ => Map::new(),
    };
    function.insert("arguments".to_owned(), arguments.into());
    let mut call = ordered(call, &["id", "function", "type"]);
    call.insert("function".to_owned(), function.into());
    Ok(call.into())
}

/// The named keys first, in this order, as pydantic builds a typed dictionary.
fn ordered(map: &Map<String, Value>, first: &[&str]) -> Map<String, Value> {
    let mut out = Map::new();
    for key in first {
        if let Some(value) = map.get(*key) {
            out.insert((*key).to_owned(), value.clone());
        }
    }
    let others = map.iter().filter(|(key, _)| !first.contains(&key.as_str()));
    out.extend(others.map(|(key, value)| (key.clone(), value.clone())));
    out
}

/// The tools as the engine dumps them: known fields in its order, absent ones as null.
///
/// # Errors
/// Says what the engine refuses with 400.
pub fn tools(tools: &[Value]) -> Result<Vec<Value>, &'static str> {
    let dump = |tool: &Value| {
        let tool = tool.as_object().ok_or("a tool is no object")?;
        let given = tool.get("function").and_then(Value::as_object).ok_or("a tool has no function")?;
        if tool.get("type").is_some_and(|kind| kind != "function") {
            return Err("a tool is not of type function");
        }
        let name = given.get("name").filter(|name| name.is_string()).ok_or("a function has no name")?;
        let mut function = Map::new();
        function.insert("name".to_owned(), name.clone());
        for key in ["description", "parameters"] {
            function.insert(key.to_owned(), given.get(key).cloned().unwrap_or_default());
        }
        let some =
            |map: &Map<String, Value>, key: &str| map.get(key).filter(|value| !value.is_null()).cloned();
        if let Some(strict) = some(given, "strict") {
            function.insert("strict".to_owned(), strict);
        }
        let defer = some(tool, "defer_loading");
        if let Some(defer) = some(given, "defer_loading").or_else(|| defer.clone()) {
            function.insert("defer_loading".to_owned(), defer);
        }
        let mut out = Map::new();
        out.insert("type".to_owned(), "function".into());
        out.insert("function".to_owned(), function.into());
        out.extend(defer.map(|defer| ("defer_loading".to_owned(), defer)));
        Ok(Value::Object(out))
    };
    tools.iter().map(dump).collect()
}

/// For a template that knows no developer: such messages become the system's, and all of the
/// system's become one at the head.
pub fn developer_as_system(messages: Vec<Value>, template: &str) -> Vec<Value> {
    let is = |message: &Value, role: &str| message.get("role").and_then(Value::as_str) == Some(role);
    let known = template.contains("\"developer\"") || template.contains("'developer'");
    if known || !messages.iter().any(|message| is(message, "developer")) {
        return messages;
    }
    let mut messages = messages;
    for message in messages.iter_mut().filter(|message| is(message, "developer")) {
        if let Some(message) = message.as_object_mut() {
            message.insert("role".to_owned(), "system".into());
            message.shift_remove("tools");
        }
    }
    let systems = messages.iter().filter(|message| is(message, "system")).count();
    if systems == 1 && messages.first().is_some_and(|message| is(message, "system")) {
        return messages;
    }
    let (system, mut others): (Vec<Value>, Vec<Value>) =
        messages.into_iter().partition(|message| is(message, "system"));
    let texts: Vec<String> = system.iter().map(system_text).filter(|text| !text.is_empty()).collect();
    others.insert(0, json!({"role": "system", "content": texts.join("\n\n")}));
    others
}

fn system_text(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> =
                parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
