//! How many prompt tokens the engine will see.
//!
//! Decides: the count of a read request, by the engine's own rules (vLLM 0.32.0: its conversation,
//! the model's chat template, its tokenizer), or that it cannot be known here.
//! Reads: [`crate::request::Reading`], the model's tokenizer files. Called by: `proxy`, `cli`, `sim`.
//!
//! [`Encoder`] counts and knows no async; [`Counter`] puts it off the I/O threads, bounded, and falls
//! back to asking the engine ([`Ask`]), or to an upper bound told from the bytes ([`Counter::bound`]); [`discover`]
//! finds the files.
//!
//! Known limits: audio and video are not counted (of sound [`media`] notes the length), nor images whose size or model is not known
//! ([`crate::request::Certainty::AtLeast`]); chats of models
//! whose engine renders without Jinja (Mistral, gpt-oss, DeepSeek V3.2 and later, Kimi) are counted by the engine's
//! `/tokenize`, or where it has none by their template; the drift comparison shows where that is not the same.

mod added;
mod allowance;
mod ask;
mod backend;
mod bounds;
mod clock;
mod content_format;
mod continued;
mod conversation;
mod count;
mod counter;
mod cuts;
mod density;
pub mod discover;
mod encoder;
mod files;
pub mod images;
mod lane;
pub mod media;
mod merges;
mod nfkc;
mod pairs;
mod python;
mod runs;
mod segments;
mod selfcheck;
mod settings;
mod sound;
mod source;
mod template;
mod tokenizer;
mod truth;
mod unsplit;
mod upper;
mod words;

pub use ask::{Ask, count_bodies_for_tokenize};
pub use backend::one_thread_a_count;
pub use count::CountError;
pub use counter::Counter;
pub use encoder::{Encoder, Options};
pub use files::LoadError;
pub use settings::{ContentFormat, Settings};
pub use source::SourceInfo;
pub use tokenizer::{Counted, Extent, Tokenizer};
pub use truth::Truth;
