//! The upper bound of a request, for where it cannot be counted in time.

use std::time::SystemTime;

use super::{Encoder, cut};
use crate::request::{Count, Prompt, PromptItem, Reading, Tokens};
use crate::tokens::density::Density;

impl Encoder {
    /// How many tokens a request's prompts have at most, told from the bytes of their text; `None` where that is not known,
    /// as where the engine sees more than text. Renders the template, tokenizes nothing. Blocking, microseconds for
    /// most prompts, milliseconds for a megabyte. `density` says what is usual.
    #[must_use]
    pub fn bound(&self, reading: &Reading, now: SystemTime, density: Density) -> Option<Count> {
        let bound = |text: &str, special: bool| {
            let most = cut(Tokens(self.tokenizer.at_most(text, special)?), reading.truncate);
            Some(Count::at_most(most, density.tokens(text.len())))
        };
        match &reading.prompt {
            Prompt::Unread { .. } => None,
            Prompt::Items { items, add_special_tokens } => {
                let one = |item: &PromptItem| match item {
                    PromptItem::Ids { len } => Some(Count::exact(cut(Tokens::from(*len), reading.truncate))),
                    PromptItem::Text(text) => bound(text, *add_special_tokens),
                };
                let all: Vec<Count> = items.iter().map(one).collect::<Option<_>>()?;
                all.into_iter().reduce(Count::and)
            }
            // A template of the request's own may take all the steps there are.
            Prompt::Chat(chat) if chat.chat_template.is_some() => None,
            Prompt::Chat(chat) => {
                let rendered = self.render(chat, now).ok()??;
                if rendered.media { None } else { bound(&rendered.text, chat.add_special_tokens) }
            }
        }
    }
}
