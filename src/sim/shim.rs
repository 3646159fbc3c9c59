//! Stands in for the `tokens` room's encoder until that room is here; same face, same meaning.

use std::time::SystemTime;

use minijinja::value::Serde;
use minijinja::{Environment, Value, context};
use tokenizers::Tokenizer;

use crate::request::dialect::Reading;
use crate::request::{ChatPrompt, Prompt, PromptItem, Tokens};

/// What the counting of one reading gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Tokens of all prompts.
    pub total: Tokens,
}

/// Why nothing was counted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CountError(String);

/// A tokenizer with its chat template.
pub struct Encoder {
    tokenizer: Tokenizer,
    templates: Environment<'static>,
    bos: String,
}

impl Encoder {
    /// Builds one from the bytes of its files.
    pub fn from_parts(
        json: &[u8],
        config: Option<&[u8]>,
        template: Option<&str>,
    ) -> Result<Self, CountError> {
        let failed = |e: &dyn std::fmt::Display| CountError(e.to_string());
        let tokenizer = Tokenizer::from_bytes(json).map_err(|e| failed(&e))?;
        let mut templates = Environment::new();
        let source = template.unwrap_or_default().to_owned();
        templates.add_template_owned("chat", source).map_err(|e| failed(&e))?;
        let config: serde_json::Value =
            serde_json::from_slice(config.unwrap_or(b"{}")).map_err(|e| failed(&e))?;
        let bos = config["bos_token"].as_str().unwrap_or_default().to_owned();
        Ok(Self { tokenizer, templates, bos })
    }

    /// Counts.
    pub fn count(&self, reading: &Reading, _: SystemTime, _: Option<Tokens>) -> Result<Count, CountError> {
        let total = match &reading.prompt {
            Prompt::Items { items, add_special_tokens } => {
                let mut total = 0;
                for item in items {
                    total += match item {
                        PromptItem::Text(text) => self.text(text, *add_special_tokens)?,
                        PromptItem::Ids { len } => *len,
                    };
                }
                total
            }
            Prompt::Chat(chat) => self.text(&self.render(chat)?, chat.add_special_tokens)?,
            Prompt::Unread { why } => return Err(CountError((*why).to_owned())),
        };
        Ok(Count { total: Tokens::from(total) })
    }

    fn text(&self, text: &str, special: bool) -> Result<usize, CountError> {
        let encoding = self.tokenizer.encode_fast(text, special).map_err(|e| CountError(e.to_string()))?;
        Ok(encoding.len())
    }

    fn render(&self, chat: &ChatPrompt) -> Result<String, CountError> {
        let template = self.templates.get_template("chat").map_err(|e| CountError(e.to_string()))?;
        template
            .render(context! {
                messages => Value::from(Serde(&chat.messages)),
                tools => Value::from(Serde(&chat.tools)),
                documents => Value::from(Serde(&chat.documents)),
                add_generation_prompt => chat.add_generation_prompt,
                bos_token => self.bos.clone(),
                ..Value::from(Serde(&chat.template_kwargs))
            })
            .map_err(|e| CountError(e.to_string()))
    }
}
