//! How many tokens a prompt has, by the embedded tokenizer.

use std::time::SystemTime;

use serde_json::Value;

use super::SimError;
use super::tokenizer::{chat_template, tokenizer_config, tokenizer_json};
use crate::request::dialect::Reading;
use crate::request::{ChatPrompt, Prompt, PromptItem, Shape};
use crate::tokens::Encoder;

/// Texts longer than this many bytes are counted on a thread of their own.
const INLINE_BYTES: usize = 16 * 1024;

/// The embedded tokenizer, loaded.
pub(super) struct Counting {
    encoder: std::sync::Arc<Encoder>,
    vocabulary: u64,
    longest_entry: u64,
}

impl Counting {
    /// Loads it.
    pub fn new() -> Result<Self, SimError> {
        let encoder = Encoder::from_parts(tokenizer_json(), Some(tokenizer_config()), Some(chat_template()))
            .map_err(|e| SimError::Tokenizer { detail: e.to_string() })?;
        let file: Value = serde_json::from_slice(tokenizer_json())
            .map_err(|e| SimError::Tokenizer { detail: e.to_string() })?;
        let entries: Vec<&str> = file["model"]["vocab"]
            .as_object()
            .into_iter()
            .flat_map(|vocab| vocab.keys().map(String::as_str))
            .chain(
                file["added_tokens"].as_array().into_iter().flatten().filter_map(|t| t["content"].as_str()),
            )
            .collect();
        let longest_entry = entries.iter().map(|e| e.chars().count() as u64).max().unwrap_or(1);
        Ok(Self { encoder: std::sync::Arc::new(encoder), vocabulary: entries.len() as u64, longest_entry })
    }

    /// Number of token ids.
    pub fn vocabulary(&self) -> u64 {
        self.vocabulary
    }

    /// Characters of the longest entry: no text of `n` tokens has more than `n` times as many.
    pub fn longest_entry(&self) -> u64 {
        self.longest_entry
    }

    /// Tokens of a text. Cancel-safe.
    pub async fn text(&self, text: &str, add_special_tokens: bool) -> Result<u64, String> {
        let items = vec![PromptItem::Text(text.to_owned())];
        self.count(Prompt::Items { items, add_special_tokens }, text.len()).await
    }

    /// Tokens of a conversation. Cancel-safe.
    pub async fn chat(&self, chat: &ChatPrompt, bytes: usize) -> Result<u64, String> {
        self.count(Prompt::Chat(Box::new(chat.clone())), bytes).await
    }

    async fn count(&self, prompt: Prompt, bytes: usize) -> Result<u64, String> {
        let reading = Reading { shape: Shape::default(), prompt, truncate: None, include_usage: false };
        let encoder = self.encoder.clone();
        let count = move || {
            let counted = encoder.count(&reading, SystemTime::now(), None);
            counted.map(|c| c.total.get()).map_err(|e| e.to_string())
        };
        if bytes <= INLINE_BYTES {
            return count();
        }
        tokio::task::spawn_blocking(count).await.unwrap_or_else(|e| Err(e.to_string()))
    }
}
