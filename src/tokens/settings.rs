//! The room's settings.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How message contents reach the chat template (vLLM `--chat-template-content-format`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentFormat {
    /// Found out from the template, as vLLM does.
    #[default]
    Auto,
    /// As one text: parts are joined with a line break.
    String,
    /// As a list of parts.
    Openai,
}

/// How prompts are counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Directory with `tokenizer.json`, or that file. Unset: found from what the engine reports.
    pub tokenizer: Option<PathBuf>,
    /// A chat template file in place of the model's: the engine's `--chat-template`.
    pub chat_template: Option<PathBuf>,
    /// How contents reach the template: the engine's `--chat-template-content-format`.
    pub content_format: ContentFormat,
    /// Variables that every chat template sees: the engine's `--default-chat-template-kwargs`.
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether a request's own chat template is rendered: the engine's
    /// `--trust-request-chat-template`. Off: such requests are not counted, and the engine, unless it
    /// trusts them too, answers 400.
    pub trust_request_chat_template: bool,
    /// Minutes east of UTC of the engine's clock, −1440 to 1440: what `strftime_now` shows.
    pub utc_offset_minutes: i32,
    /// Steps that a chat template may take, 10 000 or more, each at most 64 bytes of text in memory; a
    /// conversation of 10 000 messages takes under 2 million with nearly all templates in use.
    pub template_fuel: u64,
    /// Seconds that counting one prompt may take, 0.01 to 600; one that takes longer is refused (413).
    pub max_count_seconds: f64,
    /// Counts of texts that are remembered, about 64 bytes each, so that the next turn of a conversation
    /// costs what is new in it; 0: none.
    pub cache_entries: usize,
    /// One in so many counts is checked against the reference library, after the request has gone on; where
    /// they differ the reference alone counts from then on. 0: none.
    pub check_one_in: u32,
    /// Share of the counting time that the prompts of one tenant may take over some ten seconds, 0.01 to 1.
    pub tenant_share: f64,
    /// Prompts up to this many bytes are counted on the thread that asks, 0 to 65 536. Each thread that
    /// counts keeps tables of its own; with 0 only the counting threads do.
    pub inline_bytes: usize,
    /// Prompts from this many bytes on are counted in a lane of their own, so that short ones pass.
    pub long_bytes: usize,
    /// Threads that count short prompts, 1 to 256; 0: one per processor, 4 at most.
    pub workers: usize,
    /// Threads that count long prompts, 1 to 256; 0: one for two processors, 4 at most.
    pub long_workers: usize,
    /// Prompts waiting in each lane, 1 or more; a further one is not counted.
    pub queue: usize,
    /// Prompts that the engine is asked about at once, where there is no tokenizer; 1 to 64.
    pub ask_concurrency: usize,
    /// Seconds that the engine has for an answer, 1 to 60; after them the count is unknown.
    pub ask_seconds: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tokenizer: None,
            chat_template: None,
            content_format: ContentFormat::Auto,
            chat_template_kwargs: Map::new(),
            trust_request_chat_template: false,
            utc_offset_minutes: 0,
            template_fuel: 5_000_000,
            max_count_seconds: 2.0,
            cache_entries: 200_000,
            check_one_in: 1000,
            tenant_share: 0.5,
            inline_bytes: 0,
            long_bytes: 65_536,
            workers: 0,
            long_workers: 0,
            queue: 256,
            ask_concurrency: 4,
            ask_seconds: 5,
        }
    }
}
