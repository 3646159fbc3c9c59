//! OpenAI completions and chat completions, as vLLM reads them.

use super::{ReadError, Reading};
use crate::request::Api;

/// Reads a body.
///
/// # Errors
/// See [`ReadError`].
pub fn read(_api: Api, _body: &[u8]) -> Result<Reading, ReadError> {
    Err(ReadError::NotAnObject { found: "nothing" })
}
