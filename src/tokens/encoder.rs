//! Counts a read request with the model's own tokenizer and chat template.

mod bound;

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::files::{Files, LoadError};
use super::images::{ImageCost, Vision};
use super::settings::{ContentFormat, Settings};
use super::template::{Clock, Templates};
use super::tokenizer::{Extent, Tokenizer};
use super::{CountError, continued, conversation};
use crate::request::{Certainty, ChatPrompt, Count, Prompt, PromptItem, Reading, Tokens};
use crate::telemetry::{self, Event};

/// What of the settings an encoder obeys.
#[derive(Debug, Clone)]
pub struct Options {
    /// How contents reach the template.
    pub content_format: ContentFormat,
    /// Variables that every template sees.
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether a request's own template is rendered.
    pub trust_request_chat_template: bool,
    /// Minutes east of UTC for `strftime_now`.
    pub utc_offset_minutes: i32,
    /// Steps that a template may take.
    pub template_fuel: u64,
    /// How long counting one prompt may take.
    pub most: Duration,
    /// Counts of texts that are remembered.
    pub remembered: usize,
}

impl From<&Settings> for Options {
    fn from(settings: &Settings) -> Self {
        Self {
            content_format: settings.content_format,
            chat_template_kwargs: settings.chat_template_kwargs.clone(),
            trust_request_chat_template: settings.trust_request_chat_template,
            utc_offset_minutes: settings.utc_offset_minutes,
            template_fuel: settings.template_fuel.max(10_000),
            most: Duration::from_secs_f64(settings.max_count_seconds.clamp(0.01, 600.0)),
            remembered: settings.cache_entries.min(100_000_000),
        }
    }
}

/// A model's tokenizer and chat template.
#[derive(Debug)]
pub struct Encoder {
    tokenizer: Tokenizer,
    templates: Templates,
    special_tokens: Map<String, Value>,
    options: Options,
    /// What renders conversations in the engine, where it is no template.
    renderer: Option<&'static str>,
    /// What images cost; none where the model sees none or its rule is not known.
    vision: Option<Vision>,
}

/// Bytes of a text whose images are counted with it.
const MOST_WITH_IMAGES: usize = 1 << 20;

/// A conversation, rendered.
struct Rendered {
    text: String,
    /// The engine sees more than this text.
    media: bool,
    /// And not only images.
    other_media: bool,
    /// What each image costs, in order, where the model's rule is known.
    images: Vec<ImageCost>,
}

impl Encoder {
    /// Loads a model's directory, or a `tokenizer.json` with what lies beside it; `chat_template`
    /// takes the place of the model's own. Takes 0.1 to 1 s of processor time for large models.
    ///
    /// # Errors
    /// A file cannot be read or is not what it should be. A chat template that does not compile is no
    /// error here: chats are then refused with [`CountError::NoTemplate`].
    pub fn load(path: &Path, chat_template: Option<&Path>) -> Result<Self, LoadError> {
        let mut encoder = Self::new(Files::read(path, chat_template)?)?;
        encoder.vision = Vision::load(path).unwrap_or(None);
        Ok(encoder)
    }

    /// The same from bytes.
    ///
    /// # Errors
    /// As [`Encoder::load`].
    pub fn from_parts(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        chat_template: Option<&str>,
    ) -> Result<Self, LoadError> {
        Self::new(Files::from_parts(tokenizer_json, tokenizer_config, chat_template)?)
    }

    fn new(files: Files) -> Result<Self, LoadError> {
        let (special_tokens, renderer) = (files.special_tokens(), files.renderer);
        let mut templates = Templates::new(files.templates.iter().cloned());
        let tokenizer = Tokenizer::load(&files.tokenizer_json)?;
        let options = Options::from(&Settings::default());
        templates.set_fuel(options.template_fuel);
        Ok(Self { special_tokens, templates, tokenizer, options, vision: None, renderer })
    }

    /// Sets what of the settings it obeys.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        self.templates.set_fuel(options.template_fuel);
        self.tokenizer.remember(options.remembered);
        self.options = options;
        self
    }

    /// Counts a request's prompts. Blocking; `cargo bench --bench tokens` says for how long. A prompt that is certainly longer than `limit` is not tokenized, or not to its end: its count
    /// is over `limit` then, [`Certainty::AtLeast`]. A negative `truncate` is not applied: see
    /// [`Count::cut_to`].
    ///
    /// # Errors
    /// The conversation, its template or the tokenizer fails; see [`CountError`].
    pub fn count(
        &self,
        reading: &Reading,
        now: SystemTime,
        limit: Option<Tokens>,
    ) -> Result<Count, CountError> {
        match &reading.prompt {
            Prompt::Unread { .. } => Ok(Count::UNKNOWN),
            Prompt::Items { items, add_special_tokens } => {
                let mut all: Option<Count> = None;
                for item in items {
                    let one = match item {
                        PromptItem::Ids { len } => Count::exact(cut(Tokens::from(*len), reading.truncate)),
                        PromptItem::Text(text) => {
                            self.measure(text, *add_special_tokens, reading.truncate, limit)?
                        }
                    };
                    let sum = all.map_or(one, |sum| sum.and(one));
                    all = Some(sum);
                    if one.certain != Certainty::Exact {
                        break;
                    }
                }
                Ok(all.unwrap_or(Count::exact(Tokens::ZERO)))
            }
            Prompt::Chat(chat) => {
                let Some(rendered) = self.render(chat, now)? else { return Ok(Count::UNKNOWN) };
                // The processor's own arguments may change an image's size; a cut may go through one.
                let plain = !chat.processor_kwargs && reading.truncate.is_none() && !rendered.other_media;
                if let Some(vision) = self.vision.as_ref().filter(|_| plain && !rendered.images.is_empty()) {
                    return self.with_images(vision, &rendered, (chat.add_special_tokens, limit));
                }
                let count = self.measure(&rendered.text, chat.add_special_tokens, reading.truncate, limit)?;
                let certain = if rendered.media { Certainty::AtLeast } else { count.certain };
                Ok(Count { certain, ..count })
            }
        }
    }

    /// Counts a conversation that shows images. Where the size of one is not known the text alone is a lower bound.
    fn with_images(
        &self,
        vision: &Vision,
        rendered: &Rendered,
        (special, limit): (bool, Option<Tokens>),
    ) -> Result<Count, CountError> {
        // The text alone, within the limit and in time; where it is very long it stands for all.
        let text = self.measure(&rendered.text, special, None, limit)?;
        if text.certain != Certainty::Exact || rendered.text.len() > MOST_WITH_IMAGES {
            return Ok(Count { certain: Certainty::AtLeast, ..text });
        }
        let ids = self.encode(&rendered.text, special)?;
        let reference = self.tokenizer.backend().reference();
        let total = vision.total(&ids, &rendered.images, |token| reference.token_to_id(token));
        if total.certain {
            return Ok(Count::exact(Tokens(total.tokens)));
        }
        Ok(Count { certain: Certainty::AtLeast, ..Count::exact(Tokens::from(ids.len())) })
    }

    /// What renders conversations in the engine where it is no Jinja template: counts of chats by the template may
    /// then be wrong.
    #[must_use]
    pub const fn renderer(&self) -> Option<&'static str> {
        self.renderer
    }

    /// Whether a faster library than the reference counts.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.tokenizer.backend().is_fast()
    }

    /// Whether the reference counts the same; where it does not, it alone counts from then on. For an exact
    /// count at `now`. Blocking, as slow as the reference.
    #[must_use]
    pub fn check(&self, reading: &Reading, now: SystemTime, count: Count) -> bool {
        let measure = |text: &str, special: bool| -> Result<Tokens, CountError> {
            Ok(cut(
                Tokens::from(self.tokenizer.backend().reference_ids(text, special)?.len()),
                reading.truncate,
            ))
        };
        let total = match &reading.prompt {
            Prompt::Unread { .. } => return true,
            Prompt::Items { items, add_special_tokens } => items
                .iter()
                .map(|item| match item {
                    PromptItem::Ids { len } => Ok(cut(Tokens::from(*len), reading.truncate)),
                    PromptItem::Text(text) => measure(text, *add_special_tokens),
                })
                .sum::<Result<Tokens, CountError>>(),
            Prompt::Chat(chat) => match self.render(chat, now) {
                Ok(Some(rendered)) if !rendered.media => measure(&rendered.text, chat.add_special_tokens),
                _ => return true,
            },
        };
        let Ok(total) = total else { return true };
        let agrees = total == count.total;
        telemetry::emit(Event::Checked { agrees, ours: count.total.get(), reference: total.get() });
        if !agrees {
            self.tokenizer.backend().distrust();
        }
        agrees
    }

    /// The token ids of each prompt, untruncated by a negative `truncate`; `None` for a prompt given as
    /// ids. Nothing for what cannot be counted. Blocking.
    ///
    /// # Errors
    /// As [`Encoder::count`].
    pub fn ids(&self, reading: &Reading, now: SystemTime) -> Result<Vec<Option<Vec<u32>>>, CountError> {
        let keep = |mut ids: Vec<u32>| {
            ids.truncate(
                usize::try_from(cut(Tokens::from(ids.len()), reading.truncate).get()).unwrap_or(usize::MAX),
            );
            ids
        };
        match &reading.prompt {
            Prompt::Unread { .. } => Ok(Vec::new()),
            Prompt::Items { items, add_special_tokens } => items
                .iter()
                .map(|item| match item {
                    PromptItem::Ids { .. } => Ok(None),
                    PromptItem::Text(text) => Ok(Some(keep(self.encode(text, *add_special_tokens)?))),
                })
                .collect(),
            Prompt::Chat(chat) => {
                let Some(rendered) = self.render(chat, now)? else { return Ok(Vec::new()) };
                Ok(vec![Some(keep(self.encode(&rendered.text, chat.add_special_tokens)?))])
            }
        }
    }

    /// The token ids of a text. Text of special tokens becomes these tokens, as in the engines.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, CountError> {
        self.tokenizer.backend().ids(text, add_special_tokens)
    }

    /// The tokenizer alone.
    #[must_use]
    pub const fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Renders the chat template with a context as it stands, as transformers would: no rule of an
    /// engine is applied to it. Special tokens that it does not name are the tokenizer's.
    ///
    /// # Errors
    /// As [`Encoder::count`].
    pub fn render_context(&self, context: Map<String, Value>, now: SystemTime) -> Result<String, CountError> {
        let tools = context.get("tools").is_some_and(|tools| !tools.is_null());
        let chosen = self.templates.choose(None, tools)?;
        let mut all = self.special_tokens.clone();
        all.extend(context);
        for absent in ["tools", "documents"] {
            all.entry(absent).or_insert(Value::Null);
        }
        self.templates.render(&chosen, all, self.clock(now))
    }

    fn clock(&self, now: SystemTime) -> Clock {
        Clock { now, offset_minutes: self.options.utc_offset_minutes }
    }

    /// Counts one text.
    fn measure(
        &self,
        text: &str,
        add_special_tokens: bool,
        truncate: Option<i64>,
        limit: Option<Tokens>,
    ) -> Result<Count, CountError> {
        let exceeds = |most: u64| self.tokenizer.exceeds(text, most);
        let kept = truncate.and_then(|keep| u64::try_from(keep).ok());
        if let Some(kept) = kept.filter(|kept| exceeds(*kept)) {
            return Ok(Count::exact(Tokens(kept)));
        }
        if let Some(limit) =
            limit.filter(|limit| kept.is_none_or(|kept| kept > limit.get()) && exceeds(limit.get()))
        {
            let more = limit + Tokens(1);
            return Ok(Count { total: more, longest: more, certain: Certainty::AtLeast });
        }
        let enough =
            limit.map_or(u64::MAX, |limit| limit.get().saturating_add(1)).min(kept.unwrap_or(u64::MAX));
        let extent = Extent { enough, until: Instant::now().checked_add(self.options.most) };
        let counted = self.tokenizer.count(text, add_special_tokens, &extent)?;
        let tokens = Tokens(counted.tokens);
        if counted.whole || kept.is_some_and(|kept| kept <= counted.tokens) {
            return Ok(Count::exact(cut(tokens, truncate)));
        }
        Ok(Count { total: tokens, longest: tokens, certain: Certainty::AtLeast })
    }

    /// The text that the engine tokenizes for a conversation (vLLM 0.32 `renderers/hf.py`); `None` for a
    /// template of the request's own that is not trusted.
    fn render(&self, chat: &ChatPrompt, now: SystemTime) -> Result<Option<Rendered>, CountError> {
        let by_kwargs = chat.template_kwargs.get("chat_template").is_some_and(|own| !own.is_null());
        if by_kwargs || (chat.chat_template.is_some() && !self.options.trust_request_chat_template) {
            return Ok(None);
        }
        let refused = |why| CountError::Conversation { why };
        let tools = chat.tools.as_deref().map(conversation::tools).transpose().map_err(refused)?;
        let own = chat.chat_template.as_deref().filter(|own| !own.is_empty());
        let chosen = self.templates.choose(own, tools.is_some())?;
        let lists = match self.options.content_format {
            ContentFormat::Auto => chosen.lists,
            ContentFormat::String => false,
            ContentFormat::Openai => true,
        };
        let contents = if lists {
            conversation::Contents::Lists
        } else {
            conversation::Contents::Text { image: self.vision.as_ref().and_then(Vision::written) }
        };
        let parsed = conversation::parse_as(&chat.messages, contents).map_err(refused)?;
        let images = match &self.vision {
            Some(vision) => parsed.images.iter().map(|image| vision.cost(*image)).collect(),
            None => Vec::new(),
        };
        let mut messages = conversation::developer_as_system(parsed.messages, &chosen.source);
        let open = if chat.continue_final_message {
            Some(continued::mark(&mut messages, &chosen.source).map_err(refused)?)
        } else {
            None
        };
        let context = self.context(chat, messages, tools);
        let text = self.templates.render(&chosen, context, self.clock(now))?;
        let text = match open {
            Some(message) => continued::cut(&text, &message).map_err(refused)?,
            None => text,
        };
        Ok(Some(Rendered { text, media: parsed.media, other_media: parsed.other_media, images }))
    }

    /// What the template sees: each line may override the ones before, as in the engine.
    fn context(
        &self,
        chat: &ChatPrompt,
        messages: Vec<Value>,
        tools: Option<Vec<Value>>,
    ) -> Map<String, Value> {
        let unset = |value: &Value| value.is_null() || value.as_str() == Some("auto");
        let mut context = self.special_tokens.clone();
        context.insert("documents".to_owned(), Value::Null);
        context.extend(self.options.chat_template_kwargs.clone());
        context.insert("tools".to_owned(), json!(tools));
        let kwargs = chat.template_kwargs.iter().filter(|(_, value)| !unset(value));
        context.extend(kwargs.map(|(name, value)| (name.clone(), value.clone())));
        if let Some(documents) = &chat.documents {
            context.insert("documents".to_owned(), json!(documents));
        }
        context.insert("add_generation_prompt".to_owned(), chat.add_generation_prompt.into());
        context.insert("messages".to_owned(), messages.into());
        context
    }
}

/// The count after `truncate_prompt_tokens`, where that is not negative.
fn cut(count: Tokens, truncate: Option<i64>) -> Tokens {
    match truncate.and_then(|keep| u64::try_from(keep).ok()) {
        Some(keep) => count.min(Tokens(keep)),
        None => count,
    }
}
