//! The path of a request, top to bottom.
//!
//! Each step takes the type that the step before made, so that nothing unadmitted can be forwarded:
//! [`Arrived`] → [`Read`] → [`Counted`] → [`Admitted`] → [`Sent`] → the answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::{AnswerBody, Opening, Upstream};
use super::body::{Bodies, Held};
use super::forward::{Answer, Failure, Forward, Head};
use super::pool::Outgoing;
use super::record::{About, Proven, Record};
use super::respond::{self, Ids, Refusal};
use super::{Settings, UnknownPaths, accept, events, headers};
use crate::admit::{Ask, Gate, Limits, Mode, Modes, OutputRule, Profile, Rates, Rejection, Rule, length};
use crate::engine::dialect::vllm::said;
use crate::engine::{Hint, Said, Snapshot};
use crate::ledger::{Arrival, Ledger};
use crate::request::{
    self, Api, Client, ClientId, Outcome, Prompt, Reading, RequestId, Route, Shape, TenantKey, Tokens,
};
use crate::telemetry::{self, Event};
use crate::tokens::{self, Count, CountError, Counter, Truth};

/// What the data port works with; built once by `gateway`.
pub struct Parts {
    /// The data port's settings.
    pub settings: Settings,
    /// Length, queue and rate settings.
    pub admit: crate::admit::Settings,
    /// The profile file's limits.
    pub profile: Option<Profile>,
    /// The mode of each rule.
    pub modes: Modes,
    /// Counts prompts.
    pub counter: Counter,
    /// Requests per tenant.
    pub rates: Rates,
    /// Queue and capacity.
    pub gate: Gate,
    /// Who is in flight.
    pub ledger: Ledger,
    /// The way to the engine.
    pub forward: Arc<Forward>,
    /// What the engine is and how it fares.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// Hashes tenants.
    pub key: TenantKey,
    /// Reads request bodies.
    pub bodies: Bodies,
    /// Compares counts with the engine's.
    pub truth: Arc<Truth>,
}

/// When to come back after the engine itself said that it is full: its queue drains in seconds.
const BUSY: Duration = Duration::from_secs(2);

/// What goes out: the engine's answer, or a refusal.
pub type OutBody = Either<AnswerBody, Full<Bytes>>;

/// The path of every request.
pub struct Pipeline {
    parts: Parts,
    proven: Arc<Proven>,
    edge: tower::limit::GlobalConcurrencyLimitLayer,
    too_long: StatusCode,
}

/// A request whose head was read.
struct Arrived {
    route: Route,
    head: Head,
    record: Record,
    client: Client,
}

/// The client's side of a request's body, until it is read or passed on.
struct Upload {
    body: Option<Incoming>,
    /// Reading began: a client that waited for `100 Continue` got it.
    begun: bool,
}

/// A request whose body was read, as far as it is read at all.
struct Read {
    arrived: Arrived,
    reading: Option<Reading>,
    body: Body,
}

enum Body {
    Held(Held),
    Streamed(Incoming),
}

/// A request whose prompt was counted.
struct Counted {
    read: Read,
    count: Option<Count>,
}

/// A request that may go to the engine; its record holds the permit.
struct Admitted {
    head: Head,
    record: Record,
    body: Body,
    reserved: Tokens,
    shape: Option<Shape>,
}

/// A request that the engine answers.
struct Sent {
    answer: Answer,
    record: Record,
}

impl Pipeline {
    /// The pipeline over its parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let too_long =
            StatusCode::from_u16(parts.admit.length.status).unwrap_or(StatusCode::PAYLOAD_TOO_LARGE);
        Self { parts, proven: Arc::default(), edge: accept::edge_limit(), too_long }
    }

    /// Answers one request, whatever happens.
    pub async fn serve(&self, request: Request<Incoming>) -> Response<OutBody> {
        let arrived = Instant::now();
        let (head, body) = request.into_parts();
        let ours = RequestId::next();
        let client_id = ClientId::from_header(head.headers.get(headers::REQUEST_ID));
        let ids = ids(&ours, client_id.as_ref());
        let mut upload = Upload { body: Some(body), begun: false };
        let start = self.arrive(&head, ours, client_id, arrived);
        match self.answer(start, &mut upload).await {
            Ok(mut response) => {
                headers::to_client(response.headers_mut(), &ids.ours, &ids.shown);
                response.map(Either::Left)
            }
            Err(refused) => {
                let Refused { refusal, record } = *refused;
                // What was not read yet is read on, so that a client still uploading gets its answer.
                let unread = upload.body.take().filter(|b| !http_body::Body::is_end_stream(b));
                let wire = refusal.wire(self.too_long);
                let response = respond::refuse(&refusal, &wire, &ids, unread.is_some());
                if let Some(unread) = unread {
                    // One that waits for `100 Continue` sends nothing, and needs nothing.
                    if upload.begun || !head.headers.contains_key(header::EXPECT) {
                        self.parts.bodies.linger(unread);
                    }
                }
                record.refused(&wire, outcome_of(&refusal));
                response.map(|text| Either::Right(Full::new(text)))
            }
        }
    }

    /// The path of a request.
    async fn answer(
        &self,
        arrived: Arrived,
        upload: &mut Upload,
    ) -> Result<Response<AnswerBody>, Box<Refused>> {
        let read = self.read(arrived, upload).await?;
        let counted = self.count(read).await?;
        let admitted = self.admit(counted).await?;
        let sent = self.send(admitted).await?;
        self.hold(sent).await
    }

    fn arrive(
        &self,
        parts: &http::request::Parts,
        ours: RequestId,
        client_id: Option<ClientId>,
        at: Instant,
    ) -> Arrived {
        let route = if self.parts.modes.all_off() {
            Route::Forward
        } else {
            request::route(&parts.method, parts.uri.path())
        };
        let api = if let Route::Prompt(api) = route { api } else { Api::Other };
        let client = Client::from_headers(&parts.headers, &self.parts.key);
        let engine_id = request::engine_id(&ours, client_id.as_ref());
        let about = About {
            id: ours.to_string(),
            api,
            arrived: at,
            prompt: None,
            sequences: 1,
            incarnation: self.parts.snapshot.borrow().incarnation,
        };
        let entry = self.parts.ledger.arrive(Arrival {
            id: ours,
            client_id,
            tenant: client.tenant.clone(),
            shape: Shape { api: Some(api), ..Shape::default() },
        });
        let record = Record::new(entry, about, Arc::clone(&self.parts.truth), Arc::clone(&self.proven));
        let head = Head {
            method: parts.method.clone(),
            target: parts.uri.clone(),
            headers: parts.headers.clone(),
            engine_id: HeaderValue::try_from(engine_id)
                .unwrap_or_else(|_| HeaderValue::from_static("kvgate")),
            readable: api != Api::Other,
        };
        Arrived { route, head, record, client }
    }

    /// Reads the body where it carries a prompt; leaves it to stream through where not.
    async fn read(&self, mut arrived: Arrived, upload: &mut Upload) -> Result<Read, Box<Refused>> {
        if let Err(refusal) = self.may_pass(&mut arrived) {
            return Err(arrived.record.turned_away(refusal));
        }
        let enforced = self.parts.modes.get(Rule::Body) == Mode::Enforce;
        let declared = self.parts.bodies.check_declared(&arrived.head.headers);
        let expected = declared.as_ref().map_or(0, |size| *size);
        let verdict = declared.map(|_| ()).map_err(Refusal::from);
        if let Err(refusal) = self.judge(Rule::Body, verdict, &mut arrived.record) {
            return Err(arrived.record.turned_away(refusal));
        }
        let Route::Prompt(api) = arrived.route else {
            let body = upload.body.take().map_or_else(|| Body::Held(Held::empty()), Body::Streamed);
            return Ok(Read { arrived, reading: None, body });
        };
        upload.begun = true;
        let held = match upload.body.as_mut() {
            Some(incoming) => match self.parts.bodies.read(incoming, expected, enforced).await {
                Ok(held) => held,
                Err(error) => return Err(arrived.record.turned_away(error)),
            },
            None => Held::empty(),
        };
        upload.body = None;
        match request::dialect::read(api, &held.bytes) {
            Ok(reading) => {
                arrived.record.about.sequences = reading.shape.sequences();
                if let Some(entry) = arrived.record.entry() {
                    entry.shaped(reading.shape.clone());
                }
                Ok(Read { arrived, reading: Some(reading), body: Body::Held(held) })
            }
            Err(error) => Err(arrived.record.turned_away(error)),
        }
    }

    /// Whether the path and the framing may pass at all.
    fn may_pass(&self, arrived: &mut Arrived) -> Result<(), Refusal> {
        let head = &arrived.head;
        if head.method == Method::CONNECT || head.headers.contains_key(header::UPGRADE) {
            return Err(Refusal::Unsupported(
                "upgrades and tunnels (WebSocket, HTTP/2) do not pass this gateway",
            ));
        }
        let grpc = head
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"));
        if grpc {
            return Err(Refusal::Unsupported("gRPC does not pass this gateway: use the engine's HTTP API"));
        }
        let path = head.target.path();
        let shown = || path.chars().take(128).collect::<String>();
        let settings = &self.parts.settings;
        let refusal = match arrived.route {
            Route::Closed if !settings.allow_paths.iter().any(|p| p == path) => {
                Refusal::Closed { path: shown() }
            }
            Route::Forward if settings.unknown_paths == UnknownPaths::Refuse && !request::is_known(path) => {
                Refusal::Unknown { path: shown() }
            }
            _ => return Ok(()),
        };
        self.judge(Rule::Paths, Err(refusal), &mut arrived.record)
    }

    /// Counts the prompt as the engine will see it.
    async fn count(&self, read: Read) -> Result<Counted, Box<Refused>> {
        let Some(reading) = &read.reading else { return Ok(Counted { read, count: None }) };
        let limits = self.limits(&reading.shape, read.arrived.record.about.api);
        match self.parts.counter.count(reading, smallest(&limits)).await {
            Ok(count) => {
                // `truncate_prompt_tokens: -1` keeps as many as fit beside one token of output.
                let fitting = limits.engine.filter(|_| reading.truncate == Some(-1));
                let count = fitting.map_or(count, |context| count.cut_to(context.saturating_sub(Tokens(1))));
                Ok(Counted { read, count: Some(count) })
            }
            Err(CountError::Busy { .. }) if self.parts.modes.get(Rule::Capacity) == Mode::Enforce => {
                let retry_after = Duration::from_secs(1);
                Err(read.arrived.record.turned_away(Rejection::CountBusy { retry_after }))
            }
            // A template that refuses the conversation, or nobody to count it: the engine decides.
            Err(_) => Ok(Counted { read, count: None }),
        }
    }

    /// Decides whether the request may go, and waits until it may.
    async fn admit(&self, counted: Counted) -> Result<Admitted, Box<Refused>> {
        let Counted { read: Read { arrived, reading, body }, count } = counted;
        let Arrived { head, mut record, client, .. } = arrived;
        let Some(Reading { mut shape, prompt, .. }) = reading else {
            return Ok(Admitted { head, record, body, reserved: Tokens::ZERO, shape: None });
        };
        let exact = count.as_ref().filter(|c| c.certain == tokens::Certainty::Exact).map(|c| c.total.get());
        shape.prompt_tokens = exact;
        record.about.prompt = exact;
        if let (Some(entry), Some(tokens)) = (record.entry(), exact) {
            entry.counted(Tokens(tokens));
        }
        if let Err(refusal) = self.within_limits(&shape, count.as_ref(), &client, &mut record) {
            return Err(record.turned_away(refusal));
        }
        let ask = Ask {
            // Where nobody counted, four bytes a token is the usual size of text.
            prompt: count.as_ref().map_or_else(|| guess(&prompt, &body), |c| c.total),
            longest: count.as_ref().map_or_else(|| guess(&prompt, &body), |c| c.longest),
            max_output: shape.max_output_tokens.map(Tokens),
            sequences: shape.sequences(),
            stream: shape.stream,
            body_bytes: if let Body::Held(held) = &body { held.bytes.len() as u64 } else { 0 },
            max_wait: self.parts.admit.wait.of(client.max_wait, client.patience),
        };
        match self.parts.gate.admit(ask).await {
            Ok(permit) => {
                let reserved = permit.reserved();
                record.admitted(permit);
                Ok(Admitted { head, record, body, reserved, shape: Some(shape) })
            }
            Err(rejection) => Err(record.turned_away(rejection)),
        }
    }

    /// The rules that need no waiting: requests per minute, then length.
    fn within_limits(
        &self,
        shape: &Shape,
        count: Option<&Count>,
        client: &Client,
        record: &mut Record,
    ) -> Result<(), Refusal> {
        if self.parts.modes.get(Rule::Rates) != Mode::Off {
            let verdict = self.parts.rates.check(&client.tenant).map(|_| ()).map_err(Refusal::from);
            self.judge(Rule::Rates, verdict, record)?;
        }
        if let Some(count) = count
            && self.parts.modes.get(Rule::Length) != Mode::Off
        {
            let limits = self.limits(shape, record.about.api);
            let verdict = length::check(&limits, &for_length(count), shape).map_err(Refusal::from);
            self.judge(Rule::Length, verdict, record)?;
        }
        Ok(())
    }

    /// What a rule's mode makes of its verdict.
    fn judge(&self, rule: Rule, verdict: Result<(), Refusal>, record: &mut Record) -> Result<(), Refusal> {
        match (verdict, self.parts.modes.get(rule)) {
            (Ok(()), _) | (Err(_), Mode::Off) => Ok(()),
            (Err(refusal), Mode::Shadow) => {
                record.would_refuse(refusal.wire(self.too_long).reason);
                Ok(())
            }
            (Err(refusal), Mode::Enforce) => Err(refusal),
        }
    }

    /// The length limits for a request of this shape.
    fn limits(&self, shape: &Shape, api: Api) -> Limits {
        let snapshot = self.parts.snapshot.borrow();
        let pool = snapshot.sample.as_ref().and_then(|s| s.pool);
        let model = snapshot.facts.model(shape.model.as_deref());
        let settings = &self.parts.admit;
        Limits {
            engine: model.and_then(|m| m.max_model_len).or_else(|| snapshot.facts.context_length()),
            configured: settings.length.max_prompt_tokens.map(Tokens),
            profiled: self.parts.profile.as_ref().and_then(|p| p.limit_for(shape)),
            pool: pool.map(|p| p.ceiling()),
            pool_certain: pool.is_some(),
            drift_margin: self.parts.truth.margin(api),
            strict_output: settings.length.output == OutputRule::Strict,
        }
    }

    /// Writes the journal, then sends.
    async fn send(&self, admitted: Admitted) -> Result<Sent, Box<Refused>> {
        let Admitted { head, record, body, reserved, shape } = admitted;
        if let (true, Some(entry)) = (shape.is_some(), record.entry()) {
            entry.send(reserved).await;
            telemetry::emit(Event::Sent { added: record.added() });
        }
        let (outgoing, held) = match body {
            Body::Held(held) => (Outgoing::Whole(Some(held.bytes.clone())), Some(held)),
            Body::Streamed(incoming) => (Outgoing::Streamed(incoming), None),
        };
        let sent = self.parts.forward.send(&head, outgoing).await;
        drop(held);
        match sent {
            Ok(answer) => Ok(Sent { answer, record }),
            Err(Failure::Crashed { retry_after, .. }) => {
                let suspect = record.suspect();
                Err(record.turned_away(Failure::Crashed { retry_after, suspect }))
            }
            Err(failure) => Err(record.turned_away(failure)),
        }
    }

    /// Holds the answer's head until it is known to be one, then passes the answer on.
    async fn hold(&self, sent: Sent) -> Result<Response<AnswerBody>, Box<Refused>> {
        let Sent { answer: Answer { response, lease }, mut record } = sent;
        let (mut parts, body) = response.into_parts();
        // The version is each connection's own: an engine of HTTP/1.0 does not make this one end.
        parts.version = Version::HTTP_11;
        record.status(parts.status.as_u16());
        if parts.status.is_client_error() || parts.status.is_server_error() {
            record.outcome(Outcome::EngineError);
        }
        let upstream = Upstream { body, lease };
        if http_body::Body::is_end_stream(&upstream.body) {
            // HEAD, 204, 304: nobody will ask for a body, so that it must end here.
            upstream.lease.release();
            record.engine_done();
            return Ok(Response::from_parts(parts, AnswerBody::whole(Bytes::new(), record)));
        }
        if !record.is_prompt() {
            let body = AnswerBody::opaque(VecDeque::new(), upstream, record);
            return Ok(Response::from_parts(parts, body));
        }
        if is_event_stream(&parts.headers) {
            self.hold_stream(parts, upstream, record).await
        } else {
            self.collect(parts, upstream, record).await
        }
    }

    /// A stream: its head is held until the first complete event, which may still be an error.
    async fn hold_stream(
        &self,
        mut parts: http::response::Parts,
        upstream: Upstream,
        record: Record,
    ) -> Result<Response<AnswerBody>, Box<Refused>> {
        let settings = &self.parts.settings;
        let stall = Duration::from_secs_f64(settings.stall_timeout_seconds);
        let mut body = AnswerBody::events(upstream, settings.held_event_bytes, stall, record)
            .telling(Arc::clone(&self.parts.forward));
        match body.first_event().await {
            Opening::Begun => {
                parts.headers.remove(header::CONTENT_LENGTH);
                Ok(Response::from_parts(parts, body))
            }
            Opening::Dead => Err(self.crashed(body.into_record(), Hint::DeadAnswer)),
            Opening::Busy => Err(body.into_record().turned_away(self.busy())),
            Opening::Ended => Err(self.crashed(body.into_record(), Hint::Reset { reused: false })),
        }
    }

    /// A plain answer: collected, so that a death inside it is a clean 503; a large one is passed on.
    async fn collect(
        &self,
        parts: http::response::Parts,
        mut upstream: Upstream,
        mut record: Record,
    ) -> Result<Response<AnswerBody>, Box<Refused>> {
        let mut chunks: VecDeque<Bytes> = VecDeque::new();
        let mut size = 0;
        loop {
            match upstream.body.frame().await {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    size += data.len();
                    chunks.push_back(data);
                    if size > self.parts.settings.collect_bytes {
                        let body = AnswerBody::opaque(chunks, upstream, record)
                            .telling(Arc::clone(&self.parts.forward));
                        return Ok(Response::from_parts(parts, body));
                    }
                }
                Some(Err(_)) => return Err(self.crashed(record, Hint::Reset { reused: false })),
                None => break,
            }
        }
        upstream.lease.release();
        let whole = if chunks.len() == 1 {
            chunks.pop_front().unwrap_or_default()
        } else {
            Bytes::from(Vec::from(chunks).concat())
        };
        match self.verdict(parts.status, &whole) {
            Some(Said::Dead) => return Err(self.crashed(record, Hint::DeadAnswer)),
            Some(Said::Busy) => return Err(record.turned_away(self.busy())),
            Some(Said::Other) | None => {}
        }
        if parts.status.is_success() {
            record.whole_answer(events::usage(&whole));
        }
        record.engine_done();
        Ok(Response::from_parts(parts, AnswerBody::whole(whole, record)))
    }

    fn verdict(&self, status: StatusCode, body: &[u8]) -> Option<Said> {
        status.is_server_error().then(|| said(status.as_u16(), body))
    }

    fn crashed(&self, record: Record, hint: Hint) -> Box<Refused> {
        self.parts.forward.hint(hint);
        let (retry_after, suspect) = (self.parts.forward.retry_after(), record.suspect());
        record.turned_away(Failure::Crashed { retry_after, suspect })
    }

    fn busy(&self) -> Failure {
        Failure::Busy { retry_after: BUSY }
    }

    /// The shared limit on requests before their answer's head.
    #[must_use]
    pub fn edge(&self) -> tower::limit::GlobalConcurrencyLimitLayer {
        self.edge.clone()
    }

    /// How long a client may take for its head.
    #[must_use]
    pub fn head_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.parts.settings.head_timeout_seconds)
    }

    /// The answer where the edge sheds a request unread.
    #[must_use]
    pub fn overloaded(&self) -> Response<OutBody> {
        let refusal = Refusal::Engine(Failure::Busy { retry_after: Duration::from_secs(1) });
        let ids = ids(&RequestId::next(), None);
        respond::refuse(&refusal, &refusal.wire(self.too_long), &ids, true)
            .map(|text| Either::Right(Full::new(text)))
    }
}

/// A refusal, and the record of the request it ends.
pub struct Refused {
    refusal: Refusal,
    record: Record,
}

impl Record {
    fn turned_away(self, refusal: impl Into<Refusal>) -> Box<Refused> {
        Box::new(Refused { refusal: refusal.into(), record: self })
    }
}

fn ids(ours: &RequestId, client: Option<&ClientId>) -> Ids {
    let value =
        |text: &str| HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"));
    Ids { ours: value(ours.as_str()), shown: value(client.map_or(ours.as_str(), ClientId::as_str)) }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|v| v.as_bytes().starts_with(b"text/event-stream"))
}

/// The smallest limit: counting may stop beyond it.
fn smallest(limits: &Limits) -> Option<Tokens> {
    let all = [limits.engine, limits.configured, limits.profiled];
    all.into_iter().flatten().min().map(|limit| limit + limits.drift_margin)
}

/// The count in the words of the length rule.
fn for_length(count: &Count) -> length::Count {
    let certain = match count.certain {
        tokens::Certainty::Exact => length::Certainty::Exact,
        tokens::Certainty::AtLeast => length::Certainty::AtLeast,
        tokens::Certainty::Unknown => length::Certainty::Unknown,
    };
    length::Count { total: count.total, longest: count.longest, certain }
}

/// A rough size where nobody counted: ids are exact, text has about four bytes a token.
fn guess(prompt: &Prompt, body: &Body) -> Tokens {
    const BYTES_PER_TOKEN: u64 = 4;
    match (prompt, body) {
        (_, Body::Held(held)) => Tokens(held.bytes.len() as u64 / BYTES_PER_TOKEN),
        (_, Body::Streamed(_)) => Tokens::ZERO,
    }
}

/// How a refused request ended, for ledger and metrics.
fn outcome_of(refusal: &Refusal) -> Outcome {
    match refusal {
        Refusal::Admission(rejection) if rejection.was_queued() => Outcome::Evicted,
        Refusal::Engine(failure) => match failure {
            Failure::Unreachable { .. } => Outcome::EngineUnavailable,
            Failure::Busy { .. } => Outcome::EngineError,
            Failure::Crashed { .. } => Outcome::EngineCrashed,
            Failure::Timeout { .. } => Outcome::Timeout,
            Failure::Upload => Outcome::Rejected,
        },
        Refusal::Admission(_)
        | Refusal::Body(_)
        | Refusal::Read(_)
        | Refusal::Unsupported(_)
        | Refusal::Closed { .. }
        | Refusal::Unknown { .. } => Outcome::Rejected,
    }
}
