//! Asking the engine to count, where there is no tokenizer here.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::request::{Count, Prompt, PromptItem, Reading, Tokens};

/// Sends one body to the engine's `/tokenize` and answers its `count`, or why not.
pub type Ask = Arc<dyn Fn(Value) -> Pin<Box<dyn Future<Output = Result<u64, String>> + Send>> + Send + Sync>;

/// Texts of one request that the engine is asked about; with more the count is unknown.
pub const TEXTS: usize = 16;

/// The bodies that vLLM's `/tokenize` takes for a request (0.32.0
/// `entrypoints/serve/tokenize/protocol.py`): one for each text, one for a conversation, none for ids.
#[must_use]
pub fn count_bodies_for_tokenize(reading: &Reading) -> Vec<Value> {
    match &reading.prompt {
        Prompt::Unread { .. } => Vec::new(),
        Prompt::Items { items, add_special_tokens } => items
            .iter()
            .filter_map(|item| match item {
                PromptItem::Text(text) => {
                    Some(json!({"prompt": text, "add_special_tokens": add_special_tokens}))
                }
                PromptItem::Ids { .. } => None,
            })
            .collect(),
        Prompt::Chat(chat) => {
            let mut body = Map::new();
            body.insert("messages".to_owned(), chat.messages.clone().into());
            body.insert("add_generation_prompt".to_owned(), chat.add_generation_prompt.into());
            body.insert("continue_final_message".to_owned(), chat.continue_final_message.into());
            body.insert("add_special_tokens".to_owned(), chat.add_special_tokens.into());
            body.extend(chat.tools.clone().map(|tools| ("tools".to_owned(), tools.into())));
            body.extend(chat.chat_template.clone().map(|own| ("chat_template".to_owned(), own.into())));
            let mut kwargs = chat.template_kwargs.clone();
            // Not a field of this request, but taken as a template's variable.
            kwargs.extend(chat.documents.clone().map(|documents| ("documents".to_owned(), documents.into())));
            if !kwargs.is_empty() {
                body.insert("chat_template_kwargs".to_owned(), kwargs.into());
            }
            vec![Value::Object(body)]
        }
    }
}

/// Puts the engine's answers and the known lengths of ids together. `answers` are in the order of
/// [`count_bodies_for_tokenize`]; a missing one makes the count unknown.
pub fn put_together(reading: &Reading, answers: &[u64]) -> Count {
    let keep = reading.truncate.and_then(|keep| u64::try_from(keep).ok()).map_or(Tokens::MAX, Tokens);
    let mut answers = answers.iter();
    let mut lengths: Vec<Option<u64>> = Vec::new();
    match &reading.prompt {
        Prompt::Items { items, .. } => lengths.extend(items.iter().map(|item| match item {
            PromptItem::Ids { len } => Some(*len as u64),
            PromptItem::Text(_) => answers.next().copied(),
        })),
        Prompt::Chat(_) => lengths.push(answers.next().copied()),
        Prompt::Unread { .. } => {}
    }
    let exact = |length: Option<u64>| Some(Count::exact(Tokens(length?).min(keep)));
    let all = lengths.into_iter().map(exact).collect::<Option<Vec<Count>>>().unwrap_or_default();
    all.into_iter().reduce(Count::and).unwrap_or(Count::UNKNOWN)
}
