//! The only place that makes refusals: from error to status, headers and body.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderName, Response, StatusCode};
use serde_json::{Value, json};

use super::body::BodyError;
use super::forward::Failure;
use super::headers;
use crate::admit::Rejection;
use crate::request::{Api, Outcome, ReadError};

/// Why a client gets an answer of kvgate's own.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Admission said no.
    #[error(transparent)]
    Admission(#[from] Rejection),
    /// The body could not be taken in.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The body could not be understood.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The request asks for what a proxy of HTTP/1.1 messages cannot do.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The path is not for clients.
    #[error("{path} changes the engine and is closed; to open it, add it to proxy.allow_paths")]
    Closed {
        /// The path as asked, at most 128 characters.
        path: String,
    },
    /// The path is in no table, and those are refused.
    #[error("{path} is not a path of this API; unknown paths are refused here (proxy.unknown_paths)")]
    Unknown {
        /// The path as asked, at most 128 characters.
        path: String,
    },
    /// The engine did not answer as it should.
    #[error(transparent)]
    Engine(#[from] Failure),
}

/// How a refusal looks on the wire.
#[derive(Debug, Clone)]
pub struct Wire {
    /// HTTP status.
    pub status: StatusCode,
    /// The contract's word: header, body `code`, metric label.
    pub reason: &'static str,
    /// `type` in an OpenAI body.
    kind: &'static str,
    /// `param` in an OpenAI body.
    param: Option<&'static str>,
    retry_after: Option<Duration>,
    /// `x-should-retry: false`
    final_word: bool,
    prompt: Option<u64>,
    limit: Option<u64>,
}

impl Wire {
    const fn new(status: StatusCode, reason: &'static str, kind: &'static str) -> Self {
        Self {
            status,
            reason,
            kind,
            param: None,
            retry_after: None,
            final_word: false,
            prompt: None,
            limit: None,
        }
    }

    /// The same, naming the prompt as this API does.
    #[must_use]
    pub const fn of(mut self, api: Api) -> Self {
        if self.param.is_some() && matches!(api, Api::Completions) {
            self.param = Some("prompt");
        }
        self
    }

    const fn invalid() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", "invalid_request_error")
    }

    const fn too_large(limit: u64) -> Self {
        let mut wire = Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", "invalid_request_error");
        wire.final_word = true;
        wire.limit = Some(limit);
        wire
    }

    const fn saturated(retry_after: Duration) -> Self {
        let mut wire = Self::new(StatusCode::TOO_MANY_REQUESTS, "engine_saturated", "rate_limit_error");
        wire.retry_after = Some(retry_after);
        wire
    }

    const fn unavailable(reason: &'static str, retry_after: Duration) -> Self {
        let mut wire = Self::new(StatusCode::SERVICE_UNAVAILABLE, reason, "service_unavailable_error");
        wire.retry_after = Some(retry_after);
        wire
    }
}

/// Bounds of `Retry-After`: client libraries ignore longer ones, or give up on them.
const RETRY_AFTER_SECONDS: (f64, f64) = (1.0, 60.0);

impl Refusal {
    /// How it looks on the wire; `too_long` is the status of `context_length_exceeded` (413 or 400).
    #[must_use]
    pub fn wire(&self, too_long: StatusCode) -> Wire {
        match self {
            Self::Admission(rejection) => admission(rejection, too_long),
            Self::Body(error) => match error {
                BodyError::TooLarge { limit, .. } => Wire::too_large(*limit),
                BodyError::NoRoom { .. } => Wire::saturated(Duration::from_secs(1)),
                BodyError::Stalled { .. } | BodyError::Broken => Wire::invalid(),
            },
            Self::Read(_) | Self::Unsupported(_) => Wire::invalid(),
            Self::Closed { .. } | Self::Unknown { .. } => {
                Wire::new(StatusCode::FORBIDDEN, "forbidden_path", "permission_error")
            }
            Self::Engine(failure) => match failure {
                Failure::Unreachable { retry_after, .. } => {
                    Wire::unavailable("engine_unavailable", *retry_after)
                }
                Failure::Busy { retry_after } => Wire::saturated(*retry_after),
                Failure::Crashed { retry_after, suspect } => {
                    let mut wire = Wire::unavailable("engine_crashed", *retry_after);
                    wire.final_word = *suspect;
                    wire
                }
                Failure::Upload => Wire::invalid(),
                Failure::Timeout { .. } => {
                    Wire::new(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", "timeout_error")
                }
            },
        }
    }
}

fn admission(rejection: &Rejection, too_long: StatusCode) -> Wire {
    let reason = rejection.reason();
    let wait = rejection.retry_after().unwrap_or(Duration::from_secs(1));
    match rejection {
        Rejection::PromptTooLong { prompt, limit, .. }
        | Rejection::PromptExceedsPool { prompt, limit, .. } => {
            too_long_wire(reason, too_long, prompt.get(), limit.get())
        }
        Rejection::OutputTooLong { prompt, context, .. } => {
            too_long_wire(reason, too_long, prompt.get(), context.get())
        }
        Rejection::CountTooDear => {
            let mut wire = Wire::new(StatusCode::PAYLOAD_TOO_LARGE, reason, "invalid_request_error");
            wire.final_word = true;
            wire
        }
        Rejection::RateLimited { .. } | Rejection::CountShare { .. } => {
            let mut wire = Wire::new(StatusCode::TOO_MANY_REQUESTS, reason, "rate_limit_error");
            wire.retry_after = Some(wait);
            wire
        }
        Rejection::QueueFull { .. }
        | Rejection::WaitTooLong { .. }
        | Rejection::DeadlinePassed { .. }
        | Rejection::CountBusy { .. } => Wire::saturated(wait),
        Rejection::EngineUnavailable { .. } | Rejection::Draining { .. } => Wire::unavailable(reason, wait),
    }
}

fn too_long_wire(reason: &'static str, status: StatusCode, prompt: u64, limit: u64) -> Wire {
    let mut wire = Wire::new(status, reason, "invalid_request_error");
    wire.param = Some("messages");
    wire.final_word = true;
    wire.prompt = Some(prompt);
    wire.limit = Some(limit);
    wire
}

/// What the client reads. Client libraries recognise a prompt that is too long by two phrases only.
fn message(refusal: &Refusal) -> String {
    let context = match refusal {
        Refusal::Admission(
            Rejection::PromptTooLong { context, .. } | Rejection::OutputTooLong { context, .. },
        ) => *context,
        Refusal::Admission(Rejection::PromptExceedsPool { limit, .. }) => *limit,
        other => return other.to_string(),
    };
    format!(
        "This model's maximum context length is {context} tokens. However, {refusal}. \
         Your input exceeds the context window of this model; please shorten it."
    )
}

impl Refusal {
    /// How the refused request ended, for ledger and metrics.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Admission(rejection) if rejection.was_queued() => Outcome::Evicted,
            Self::Engine(failure) => match failure {
                Failure::Unreachable { .. } => Outcome::EngineUnavailable,
                Failure::Busy { .. } => Outcome::EngineError,
                Failure::Crashed { .. } => Outcome::EngineCrashed,
                Failure::Timeout { .. } => Outcome::Timeout,
                Failure::Upload => Outcome::Rejected,
            },
            Self::Admission(_)
            | Self::Body(_)
            | Self::Read(_)
            | Self::Unsupported(_)
            | Self::Closed { .. }
            | Self::Unknown { .. } => Outcome::Rejected,
        }
    }
}

/// What goes out with every refusal.
#[derive(Debug, Clone)]
pub struct Ids {
    /// kvgate's id.
    pub ours: HeaderValue,
    /// The id shown as `x-request-id`.
    pub shown: HeaderValue,
}

fn retry_seconds(wait: Duration) -> f64 {
    let (least, most) = RETRY_AFTER_SECONDS;
    wait.as_secs_f64().clamp(least, most)
}

fn error(refusal: &Refusal, wire: &Wire) -> Value {
    json!({"error": {
        "message": message(refusal),
        "type": wire.kind,
        "param": wire.param,
        "code": wire.reason,
    }})
}

/// The answer to a refused request. `close` where the request's body was not read to its end.
#[must_use]
pub fn refuse(refusal: &Refusal, wire: &Wire, ids: &Ids, close: bool) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(error(refusal, wire).to_string()));
    *response.status_mut() = wire.status;
    let map = response.headers_mut();
    map.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    map.insert(headers::OUR_ID, ids.ours.clone());
    map.insert(headers::REQUEST_ID, ids.shown.clone());
    map.insert("x-kvgate-reason", HeaderValue::from_static(wire.reason));
    let numbers = [("x-kvgate-prompt-tokens", wire.prompt), ("x-kvgate-limit", wire.limit)];
    for (name, value) in numbers {
        if let Some(value) = value {
            map.insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
    }
    if wire.final_word {
        map.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    if let Some(wait) = wire.retry_after {
        // Whole seconds round up: a client that comes back early is refused again.
        let seconds = retry_seconds(wait);
        map.insert(RETRY_AFTER, HeaderValue::from(seconds.ceil() as u64));
        map.insert("retry-after-ms", HeaderValue::from((seconds * 1000.0) as u64));
    }
    if close {
        map.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Refusal::Admission(Rejection::RateLimited { limit, remaining, retry_after }) = refusal {
        map.insert("x-ratelimit-limit-requests", HeaderValue::from(*limit));
        map.insert("x-ratelimit-remaining-requests", HeaderValue::from(*remaining));
        let reset = HeaderValue::try_from(format!("{:.3}s", retry_after.as_secs_f64()));
        if let Ok(reset) = reset {
            map.insert("x-ratelimit-reset-requests", reset);
        }
    }
    response
}

/// The event that ends a broken stream, and the API's own ending after it.
#[must_use]
pub fn broken_stream(message: &str, code: &'static str) -> Bytes {
    ending(&json!({"error": {"message": message, "type": "server_error", "param": null, "code": code}}))
}

/// The same for a request that is refused after its answer began, because it waited aloud.
#[must_use]
pub fn refused_in_stream(refusal: &Refusal, wire: &Wire) -> Bytes {
    let mut error = error(refusal, wire);
    if let Some(wait) = wire.retry_after {
        error["error"]["retry_after_ms"] = json!(retry_seconds(wait) * 1000.0);
    }
    ending(&error)
}

/// The same for an engine's answer that is no stream, where one has begun.
#[must_use]
pub fn error_in_stream(answer: &[u8]) -> Bytes {
    match serde_json::from_slice::<Value>(answer) {
        Ok(object @ Value::Object(_)) => ending(&object),
        _ => broken_stream("the engine did not answer with a stream", "upstream_error"),
    }
}

fn ending(error: &Value) -> Bytes {
    Bytes::from(format!("event: error\ndata: {error}\n\ndata: [DONE]\n\n"))
}
