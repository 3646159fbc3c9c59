//! What a request asks for, read once and never again.
//!
//! Decides: which API a path speaks, what its prompt is, which features it uses.
//! Reads: the method, path, headers and whole body of one request. Called by: `proxy`.
//! Nothing here counts tokens, admits or forwards.

mod client;
mod count;
pub mod dialect;
mod id;
mod prompt;
mod shape;
mod tokens;
mod trail;

pub use client::{Client, Priority, Tenant, TenantKey};
pub use count::{Certainty, Count};
pub use dialect::{ReadError, Reading, Route, is_known, route};
pub use id::{ClientId, RequestId, engine_id};
pub use prompt::{ChatPrompt, Prompt, PromptItem};
pub use shape::{Api, Outcome, Phase, PromptKind, Shape};
pub use tokens::Tokens;
pub use trail::{Mark, Trail};
