//! Which paths carry prompts, and how each API's body is read.
//!
//! One file per API. A dialect reads a body once into a [`Reading`]; it refuses only what no
//! engine could take, and leaves to the engine what the engine decides.

mod lax;
mod openai;
mod routes;

pub use routes::{is_known, route};

use super::{Api, Prompt, Shape};

/// What kvgate does with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The body carries a prompt and is read.
    Prompt(Api),
    /// Forwarded without being read.
    Forward,
    /// Changes the engine: closed unless allowed by name.
    Closed,
}

/// A body, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The features, without prompt tokens.
    pub shape: Shape,
    /// What is to be counted.
    pub prompt: Prompt,
    /// `truncate_prompt_tokens`: keep only the last so many (−1: as many as fit).
    pub truncate: Option<i64>,
    /// Whether a stream will carry a usage event.
    pub include_usage: bool,
}

/// Why a body cannot be read: the engine would refuse it too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {detail} at line {line}, column {column}")]
    NotJson {
        /// What the parser met, without request text.
        detail: &'static str,
        /// Line in the body, from 1.
        line: usize,
        /// Column in that line.
        column: usize,
    },
    /// The body is JSON but no object.
    #[error("the request body must be a JSON object, and is {found}")]
    NotAnObject {
        /// The kind of JSON value found.
        found: &'static str,
    },
    /// A field holds more JSON values than are taken into memory.
    #[error("a field of the request body holds more than {limit} JSON values")]
    TooManyValues {
        /// The limit.
        limit: usize,
    },
    /// A field has the wrong type.
    #[error("`{field}` must be {expected}, and is {found}")]
    WrongType {
        /// The field.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
        /// The kind of JSON value found.
        found: &'static str,
    },
}

/// Reads the body of a request to `api`.
///
/// # Errors
/// [`ReadError`] where the engine would answer 400 as well.
pub fn read(api: Api, body: &[u8]) -> Result<Reading, ReadError> {
    openai::read(api, body)
}
