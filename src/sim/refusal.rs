//! The errors of vLLM 0.32 with their exact texts (captured from a running server).

use http::StatusCode;
use serde_json::{Value, json};

/// Why a request gets an error instead of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No such path.
    NoPath,
    /// The path is there, the method is not.
    Method { allow: &'static str },
    /// The content type is not JSON.
    NotJsonType,
    /// The body is no UTF-8, or was cut off.
    Unreadable,
    /// The body is empty.
    NoBody,
    /// The body is no JSON: wrong from this character on.
    NotJson { at: usize },
    /// A required field is missing from a body with so many.
    Missing { field: &'static str, items: usize },
    /// A field has the wrong type.
    WrongType { field: &'static str, expected: &'static str },
    /// The model is not served.
    NoModel { asked: String, served: String },
    /// No message in the conversation.
    NoMessages,
    /// The prompt is missing or empty text.
    NoPrompt,
    /// The list of prompts is empty.
    NoPrompts,
    /// A token id beyond the vocabulary.
    OutOfVocabulary { id: i64 },
    /// More output asked for than the context has.
    TooMuchOutput { param: &'static str, value: u64, limit: u64 },
    /// No output asked for, or no room for any.
    NoOutput { value: i64 },
    /// Too few sequences.
    TooFewSequences { n: i64 },
    /// Too many sequences.
    TooManySequences { n: i64 },
    /// The prompt has too many tokens.
    TooLong { limit: u64, tokens: u64, at_least: bool },
    /// The prompt has more characters than its tokens could have.
    TooManyCharacters { limit: u64, characters: u64, bound: u64 },
    /// The chat template or tokenizer would not have it.
    Uncountable { detail: String },
    /// The queue limit is reached.
    Busy,
    /// The engine core is dead.
    Dead,
    /// The model is being loaded (llama.cpp's answer; vLLM does not listen then).
    Loading,
}

/// Largest `n` (`VLLM_MAX_N_SEQUENCES`).
pub(super) const MAX_N: i64 = 16_384;

/// What vLLM says once its core is dead.
pub(super) const DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
const BUSY: &str = "The engine is currently busy and cannot accept new requests. Please try again later or on \
                    a different instance.";

impl Refusal {
    /// Status and JSON body.
    pub fn answer(&self) -> (StatusCode, Value) {
        match self {
            Self::NoPath => (StatusCode::NOT_FOUND, json!({"detail": "Not Found"})),
            Self::Method { .. } => (StatusCode::METHOD_NOT_ALLOWED, json!({"detail": "Method Not Allowed"})),
            Self::Unreadable => {
                (StatusCode::BAD_REQUEST, json!({"detail": "There was an error parsing the body"}))
            }
            Self::NoModel { asked, served } => error(
                404,
                "NotFoundError",
                &format!("The model `{asked}` does not exist. Valid aliases: {served}."),
                Some("model"),
            ),
            Self::Busy => error(503, "Service Unavailable", BUSY, None),
            Self::Dead => error(500, "InternalServerError", DEAD, None),
            Self::Loading => (
                StatusCode::SERVICE_UNAVAILABLE,
                json!({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}),
            ),
            Self::NotJsonType
            | Self::NoBody
            | Self::NotJson { .. }
            | Self::Missing { .. }
            | Self::WrongType { .. } => self.validation(),
            _ => self.bad_request(),
        }
    }

    /// The same as the one event of a stream, and whether it comes in a stream at all.
    pub fn event(&self) -> Option<String> {
        let (message, kind, code) = match self {
            Self::Busy => (BUSY, "Service Unavailable", 503),
            Self::Dead => (DEAD, "InternalServerError", 500),
            _ => return None,
        };
        // Python's json.dumps puts a space after each colon and comma.
        Some(format!(
            "data: {{\"error\": {{\"message\": \"{message}\", \"type\": \"{kind}\", \"param\": null, \"code\": \
             {code}}}}}\n\n"
        ))
    }

    /// FastAPI's and pydantic's own errors: type "Bad Request".
    fn validation(&self) -> (StatusCode, Value) {
        let (what, param) = match self {
            Self::NotJsonType => {
                ("Unsupported Media Type: Only 'application/json' is allowed".to_owned(), None)
            }
            Self::NotJson { at } => (
                format!(
                    "{{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', 'input': '<dict \
                     of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
                ),
                Some(format!("body.{at}")),
            ),
            Self::Missing { field, items } => (
                format!(
                    "{{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required', 'input': '<dict of \
                     {items} items>'}}"
                ),
                Some(format!("body.{field}")),
            ),
            Self::WrongType { field, expected } => (
                format!("{{'loc': 'body.{field}', 'msg': 'Input should be a valid {expected}'}}"),
                Some(format!("body.{field}")),
            ),
            _ => (
                "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}".to_owned(),
                Some("body".to_owned()),
            ),
        };
        error(400, "Bad Request", &format!("1 validation error:\n  {what}"), param.as_deref())
    }

    /// vLLM's own checks: type "BadRequestError".
    fn bad_request(&self) -> (StatusCode, Value) {
        let (message, param) = match self {
            Self::NoMessages => (
                "Cannot apply chat template to an empty conversation. Provide at least one message."
                    .to_owned(),
                None,
            ),
            Self::NoPrompt => (
                "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
                    .to_owned(),
                Some("prompt"),
            ),
            Self::NoPrompts => ("You must pass at least one prompt".to_owned(), None),
            Self::OutOfVocabulary { id } => (format!("Token id {id} is out of vocabulary"), None),
            Self::TooMuchOutput { param, value, limit } => (
                format!(
                    "{param}={value} cannot be greater than max_model_len={limit}. Please request fewer output \
                     tokens. (parameter={param}, value={value})"
                ),
                Some(*param),
            ),
            Self::NoOutput { value } => (
                format!("max_tokens must be at least 1, got {value}. (parameter=max_tokens, value={value})"),
                Some("max_tokens"),
            ),
            Self::TooFewSequences { n } => (format!("n must be at least 1, got {n}."), None),
            Self::TooManySequences { n } => (
                format!(
                    "n must be at most {MAX_N}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES \
                     environment variable."
                ),
                None,
            ),
            Self::TooLong { limit, tokens, at_least } => {
                (too_long(*limit, *tokens, *at_least), Some("input_tokens"))
            }
            Self::TooManyCharacters { limit, characters, bound } => (
                format!(
                    "This model's maximum context length is {limit} tokens. However, your prompt contains \
                     {characters} characters (more than {bound} characters, which is the upper bound for \
                     {limit} input tokens). Please reduce the length of the input prompt. \
                     (parameter=input_text, value={characters})"
                ),
                Some("input_text"),
            ),
            Self::Uncountable { detail } => (detail.clone(), None),
            _ => ("Bad request".to_owned(), None),
        };
        error(400, "BadRequestError", &message, param)
    }
}

fn too_long(limit: u64, tokens: u64, at_least: bool) -> String {
    let qualifier = if at_least { "at least " } else { "" };
    format!(
        "This model's maximum context length is {limit} tokens. However, your prompt contains \
         {qualifier}{tokens} input tokens, which exceeds this limit even without any output tokens. Please \
         reduce the length of the input prompt. (parameter=input_tokens, value={tokens})"
    )
}

fn error(code: u16, kind: &str, message: &str, param: Option<&str>) -> (StatusCode, Value) {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, json!({"error": {"message": message, "type": kind, "param": param, "code": code}}))
}
