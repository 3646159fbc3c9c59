//! The prompt of a request: what the engine will run, or why nobody can say.

use serde_json::{Map, Value};

use super::{Field, Fields, Misread, not_json};
use crate::request::dialect::{ReadError, lax};
use crate::request::{ChatPrompt, Prompt, PromptItem, PromptKind, Shape};

/// The prompts of a completion.
pub fn completion(fields: &Fields<'_>, shape: &mut Shape) -> Result<Prompt, Misread> {
    if fields.get(Field::PromptEmbeds).is_some() {
        shape.prompt_kind = PromptKind::Embeds;
        return Err(Misread::Unread("embeddings"));
    }
    if fields.get(Field::Suffix).is_some() {
        return Err(Misread::Unread("a suffix"));
    }
    let raw = fields.get(Field::Prompt).ok_or("no prompt")?;
    let items = match raw.as_bytes().first() {
        Some(b'"') => vec![PromptItem::Text(fields.parsed(raw)?)],
        Some(b'[') => list(fields, raw)?,
        _ => return Err(wrong_prompt(lax::kind(raw))),
    };
    let nothing = items.is_empty() || items.iter().any(|item| matches!(item, PromptItem::Ids { len: 0 }));
    if nothing || matches!(items.as_slice(), [PromptItem::Text(text)] if text.is_empty() && raw == "\"\"") {
        return Err(Misread::Unread("an empty prompt"));
    }
    shape.prompts = u32::try_from(items.len()).unwrap_or(u32::MAX);
    if matches!(items.first(), Some(PromptItem::Ids { .. })) {
        shape.prompt_kind = PromptKind::Ids;
    }
    Ok(Prompt::Items { items, add_special_tokens: fields.switch(Field::AddSpecialTokens, true)? })
}

/// A list of texts, of ids, or of lists of ids, in the order in which pydantic prefers them.
fn list(fields: &Fields<'_>, raw: &str) -> Result<Vec<PromptItem>, Misread> {
    let listed = lax::listed(raw).map_err(|error| {
        let start = raw.as_ptr() as usize - fields.body.as_ptr() as usize;
        Misread::Refused(not_json(&error, &fields.body[..start]))
    })?;
    if listed.texts.len() == listed.len {
        Ok(listed.texts.into_iter().map(PromptItem::Text).collect())
    } else if listed.ids == listed.len {
        Ok(vec![PromptItem::Ids { len: listed.len }])
    } else if listed.lists.len() == listed.len {
        Ok(listed.lists.into_iter().map(|len| PromptItem::Ids { len }).collect())
    } else {
        Err(wrong_prompt("a list of other things"))
    }
}

fn wrong_prompt(found: &'static str) -> Misread {
    let expected = "text, a list of texts, token ids, or a list of lists of token ids";
    Misread::Refused(ReadError::WrongType { field: "prompt", expected, found })
}

/// The conversation of a chat completion.
pub fn chat(fields: &Fields<'_>, shape: &mut Shape) -> Result<Prompt, Misread> {
    let raw = fields.get(Field::Messages).ok_or("no messages")?;
    let wrong = |found| {
        let expected = "an array of objects";
        Misread::Refused(ReadError::WrongType { field: "messages", expected, found })
    };
    if !raw.starts_with('[') {
        return Err(wrong(lax::kind(raw)));
    }
    let messages: Vec<Value> = fields.parsed(raw)?;
    if messages.iter().any(|message| !message.is_object()) {
        return Err(wrong("an array of other things"));
    }
    shape.images = images(&messages);
    if let Some(len) = forwarded_ids(fields).filter(|_| !shape.echo && !has_media(&messages)) {
        shape.prompt_kind = PromptKind::Ids;
        return Ok(Prompt::Items { items: vec![PromptItem::Ids { len }], add_special_tokens: false });
    }
    if messages.is_empty() {
        return Err(Misread::Unread("an empty conversation"));
    }
    let tools = fields.array(Field::Tools)?;
    if tools.as_ref().is_some_and(Vec::is_empty) {
        return Err(Misread::Unread("an empty list of tools"));
    }
    let add_generation_prompt = fields.switch(Field::AddGenerationPrompt, true)?;
    let continue_final_message = fields.switch(Field::ContinueFinalMessage, false)?;
    if add_generation_prompt && continue_final_message {
        return Err(Misread::Unread("continue_final_message with add_generation_prompt"));
    }
    Ok(Prompt::Chat(Box::new(ChatPrompt {
        tools,
        documents: fields.array(Field::Documents)?,
        chat_template: template(fields)?,
        template_kwargs: template_kwargs(fields)?,
        processor_kwargs: fields.get(Field::MmProcessorKwargs).is_some(),
        add_generation_prompt,
        continue_final_message,
        add_special_tokens: fields.switch(Field::AddSpecialTokens, false)?,
        messages,
    })))
}

/// A chat template of the request's own.
fn template(fields: &Fields<'_>) -> Result<Option<String>, Misread> {
    match fields.get(Field::ChatTemplate) {
        None => Ok(None),
        Some(raw) if raw.starts_with('"') => Ok(Some(fields.parsed(raw)?)),
        Some(_) => Err(Misread::Unread("the engine refuses the type of chat_template")),
    }
}

/// The template's variables (vLLM 0.32 `build_chat_params`): the request's, with the effort.
fn template_kwargs(fields: &Fields<'_>) -> Result<Map<String, Value>, Misread> {
    let mut kwargs: Map<String, Value> = match fields.get(Field::ChatTemplateKwargs) {
        None => Map::new(),
        Some(raw) if raw.starts_with('{') => fields.parsed(raw)?,
        Some(_) => return Err(Misread::Unread("the engine refuses the type of chat_template_kwargs")),
    };
    if let Some(effort) = fields.get(Field::ReasoningEffort).and_then(lax::text) {
        if !kwargs.contains_key("enable_thinking") {
            kwargs.insert("enable_thinking".to_owned(), Value::Bool(effort != "none"));
        }
        kwargs.insert("reasoning_effort".to_owned(), Value::String(effort));
    }
    Ok(kwargs)
}

/// The number of token ids that a prefill engine's answer brought along (vLLM 0.32
/// `_reused_prompt_token_ids`): the engine runs these and does not look at the messages.
fn forwarded_ids(fields: &Fields<'_>) -> Option<usize> {
    let mut ids = None;
    lax::members(fields.get(Field::KvTransferParams)?, |name, value| {
        if name == "prompt_token_ids" {
            ids = lax::listed(value).ok();
        }
    });
    ids.filter(|listed| listed.len > 0 && listed.ids == listed.len).map(|listed| listed.len)
}

/// The parts of list contents.
fn parts(messages: &[Value]) -> impl Iterator<Item = &Map<String, Value>> {
    messages
        .iter()
        .filter_map(|message| message.get("content")?.as_array())
        .flatten()
        .filter_map(Value::as_object)
}

fn images(messages: &[Value]) -> u32 {
    let image = |part: &&Map<String, Value>| match part.get("type").and_then(Value::as_str) {
        Some("image_url" | "input_image" | "image_pil" | "image_embeds" | "image") => true,
        Some(_) => false,
        None => part.contains_key("image_url") || part.contains_key("image_embeds"),
    };
    u32::try_from(parts(messages).filter(image).count()).unwrap_or(u32::MAX)
}

/// Whether a part is something other than text (vLLM 0.32 `has_non_text_content`).
fn has_media(messages: &[Value]) -> bool {
    const TEXT: &[&str] = &["text", "input_text", "output_text", "refusal", "thinking", "tool_reference"];
    parts(messages).any(|part| match part.get("type") {
        None => part.keys().any(|key| key != "text"),
        Some(kind) => !kind.as_str().is_some_and(|kind| TEXT.contains(&kind)),
    })
}
