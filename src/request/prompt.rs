//! The prompt of a request, as the API gives it: before any template or tokenizer.

use serde_json::{Map, Value};

/// What is to be counted.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// One or more separate prompts (completions): each is a sequence of its own in the engine.
    Items {
        /// The prompts, at least one.
        items: Vec<PromptItem>,
        /// Whether the tokenizer's own special tokens (BOS) are added to texts; default true.
        add_special_tokens: bool,
    },
    /// A conversation that the chat template turns into text.
    Chat(Box<ChatPrompt>),
    /// The engine decides what this is (and refuses it where it must); nobody counts it here.
    Unread {
        /// Why it was left to the engine, for logs: a constant, never request text.
        why: &'static str,
    },
}

/// Bytes of a prompt's start that tell prompts with a common prefix apart from others.
const HEAD: usize = 1024;

impl Prompt {
    /// The first bytes of the prompt, at most 1024: the same for prompts that share a system prompt. For
    /// hashing with a key; never to be kept. None where there is no text.
    #[must_use]
    pub fn head(&self) -> Option<&[u8]> {
        let text = match self {
            Self::Items { items, .. } => items.iter().find_map(|item| match item {
                PromptItem::Text(text) => Some(text.as_str()),
                PromptItem::Ids { .. } => None,
            }),
            Self::Chat(chat) => chat.messages.first().and_then(|message| message.get("content")?.as_str()),
            Self::Unread { .. } => None,
        }?;
        Some(&text.as_bytes()[..text.len().min(HEAD)])
    }
}

/// One prompt of a completion.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptItem {
    /// Text, tokenized by the engine.
    Text(String),
    /// Token ids: their number is exact; special tokens are never added.
    Ids {
        /// How many ids.
        len: usize,
    },
}

/// A conversation and what its template sees.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatPrompt {
    /// The messages as given (an array of objects).
    pub messages: Vec<Value>,
    /// Tools as given, rendered even with `tool_choice: "none"` (vLLM 0.32).
    pub tools: Option<Vec<Value>>,
    /// Documents as given.
    pub documents: Option<Vec<Value>>,
    /// A chat template of the request's own.
    pub chat_template: Option<String>,
    /// Further variables for the template.
    pub template_kwargs: Map<String, Value>,
    /// Whether arguments for the processor of images are given.
    pub processor_kwargs: bool,
    /// Whether the template opens the assistant's turn; default true.
    pub add_generation_prompt: bool,
    /// Whether the last message is left open to be continued; default false.
    pub continue_final_message: bool,
    /// Whether BOS is added to the rendered text; default false for chat.
    pub add_special_tokens: bool,
}
