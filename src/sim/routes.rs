//! Which path does what.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::ask::{self, Form, Input};
use super::core::Core;
use super::exposition;
use super::fault::Fault;
use super::generate::{Generated, check_model, generate};
use super::refusal::Refusal;
use super::shared::Shared;
use super::stream::EventStream;

/// An answer's body.
pub(super) type AnswerBody = Either<Full<Bytes>, EventStream>;

/// Who stands behind the listener.
#[derive(Clone)]
pub(super) enum Front {
    /// A model that is still being loaded.
    Loading,
    /// An engine, alive or just dead.
    Engine(Arc<Core>),
}

/// Longest body read, in bytes.
const BODY_LIMIT: usize = 64 * 1024 * 1024;

/// Answers one request. Cancel-safe: dropping it aborts what it began.
///
/// # Errors
/// Where the connection broke before the body was read.
pub(super) async fn answer(front: Front, request: Request<Incoming>) -> io::Result<Response<AnswerBody>> {
    let core = match front {
        Front::Loading => return Ok(refused(&Refusal::Loading)),
        Front::Engine(core) => core,
    };
    let path = request.uri().path().to_owned();
    let Some(allow) = allowed(&path) else { return Ok(refused(&Refusal::NoPath)) };
    if !allow.split(", ").any(|m| m == request.method().as_str()) {
        return Ok(refused(&Refusal::Method { allow }));
    }
    let shared = core.shared().clone();
    Ok(match path.as_str() {
        "/health" | "/ping" => health(&core),
        "/version" => json_answer(StatusCode::OK, &json!({"version": "0.32.0"})),
        "/v1/models" => json_answer(StatusCode::OK, &models(&core)),
        "/load" => json_answer(StatusCode::OK, &json!({"server_load": core.open_requests()})),
        "/metrics" => metrics(&core).await,
        "/sim/stats" => json_answer(StatusCode::OK, &json!(shared.stats())),
        "/sim/fault" => fault(&shared, &body(request).await?),
        "/tokenize" => {
            let asked = with_json(request).await?;
            let counted = match asked {
                Ok((_, body)) => tokenize(&shared, &body).await,
                Err(refusal) => Err(refusal),
            };
            counted.map_or_else(|r| refused(&r), |v| json_answer(StatusCode::OK, &v))
        }
        "/v1/completions" => generated(&core, Form::Completion, request).await?,
        _ => generated(&core, Form::Chat, request).await?,
    })
}

/// The methods of a path; `None` where there is no such path.
fn allowed(path: &str) -> Option<&'static str> {
    Some(match path {
        "/health" | "/version" | "/v1/models" | "/load" | "/metrics" | "/sim/stats" => "GET",
        "/ping" => "GET, POST",
        "/tokenize" | "/v1/completions" | "/v1/chat/completions" | "/sim/fault" => "POST",
        _ => return None,
    })
}

async fn body(request: Request<Incoming>) -> io::Result<Bytes> {
    let collected = Limited::new(request.into_body(), BODY_LIMIT).collect().await;
    collected.map(|c| c.to_bytes()).map_err(io::Error::other)
}

/// Headers and body of a request whose content type is JSON.
async fn with_json(request: Request<Incoming>) -> io::Result<Result<(http::HeaderMap, Bytes), Refusal>> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Ok(Err(Refusal::NotJsonType));
    }
    let headers = request.headers().clone();
    Ok(Ok((headers, body(request).await?)))
}

async fn generated(
    core: &Arc<Core>,
    form: Form,
    request: Request<Incoming>,
) -> io::Result<Response<AnswerBody>> {
    let (headers, body) = match with_json(request).await? {
        Ok(both) => both,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    Ok(match generate(core, form, &headers, &body).await {
        Ok(Generated::Plain(value)) => json_answer(StatusCode::OK, &value),
        Ok(Generated::Stream(stream)) => {
            with_type(StatusCode::OK, "text/event-stream; charset=utf-8", Either::Right(stream))
        }
        Err(refusal) => refused(&refusal),
    })
}

fn health(core: &Core) -> Response<AnswerBody> {
    let status = if core.is_dead() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    finished(status, Either::Left(Full::default()), &[])
}

fn models(core: &Core) -> Value {
    let settings = &core.shared().settings;
    let created = core.started() as u64;
    json!({"object": "list", "data": [{
        "id": settings.model, "object": "model", "created": created, "owned_by": "vllm",
        "root": settings.root.as_ref().unwrap_or(&settings.model), "parent": null,
        "max_model_len": settings.max_model_len,
        "permission": [{
            "id": "modelperm-8107c0e3c0d5be89", "object": "model_permission", "created": created,
            "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
            "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false,
            "organization": "*", "group": null, "is_blocking": false,
        }],
    }]})
}

async fn metrics(core: &Core) -> Response<AnswerBody> {
    let switches = core.shared().switches();
    if switches.metrics_absent {
        return refused(&Refusal::NoPath);
    }
    if let Some(delay) = switches.metrics_delay {
        tokio::time::sleep(delay).await;
    }
    with_type(StatusCode::OK, exposition::CONTENT_TYPE, Either::Left(Full::from(exposition::page(core))))
}

fn fault(shared: &Arc<Shared>, body: &[u8]) -> Response<AnswerBody> {
    match serde_json::from_slice::<Fault>(body) {
        Ok(fault) => {
            shared.fault(fault);
            json_answer(StatusCode::OK, &json!({"ok": true}))
        }
        Err(e) => json_answer(StatusCode::BAD_REQUEST, &json!({"error": e.to_string()})),
    }
}

/// `/tokenize`: the count is the engine's own; the ids are left out. There is no length limit.
async fn tokenize(shared: &Shared, body: &[u8]) -> Result<Value, Refusal> {
    let map = ask::object(body)?;
    check_model(ask::text(&map, "model")?.as_deref(), &shared.settings)?;
    let counted = if map.contains_key("messages") {
        match ask::chat_input(&map)? {
            Input::Chat(chat, bytes) => shared.counting.chat(&chat, bytes).await,
            Input::Text(_) | Input::Ids(_) => Ok(0),
        }
    } else {
        let Some(prompt) = ask::text(&map, "prompt")? else {
            return Err(Refusal::Missing { field: "prompt", items: map.len() });
        };
        let special = ask::flag(&map, "add_special_tokens")?.unwrap_or(true);
        shared.counting.text(&prompt, special).await
    };
    let count = counted.map_err(|detail| Refusal::Uncountable { detail })?;
    let limit = shared.settings.max_model_len;
    Ok(json!({"count": count, "max_model_len": limit, "tokens": [], "token_strs": null}))
}

fn refused(refusal: &Refusal) -> Response<AnswerBody> {
    let (status, value) = refusal.answer();
    let mut answer = json_answer(status, &value);
    if let Refusal::Method { allow } = refusal {
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    }
    answer
}

fn json_answer(status: StatusCode, value: &Value) -> Response<AnswerBody> {
    with_type(status, "application/json", Either::Left(Full::from(value.to_string())))
}

fn with_type(status: StatusCode, kind: &'static str, body: AnswerBody) -> Response<AnswerBody> {
    finished(status, body, &[(CONTENT_TYPE, kind)])
}

fn finished(
    status: StatusCode,
    body: AnswerBody,
    headers: &[(HeaderName, &'static str)],
) -> Response<AnswerBody> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let all = [(http::header::SERVER, "uvicorn")].iter().chain(headers);
    for (name, value) in all.chain(&[(http::header::VARY, "Origin")]) {
        answer.headers_mut().insert(name.clone(), HeaderValue::from_static(value));
    }
    answer
}
