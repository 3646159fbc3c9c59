//! The path of a request, top to bottom.
//!
//! Each step takes the type that the step before made, so that nothing unadmitted can be forwarded:
//! [`Arrived`] → [`Read`] → [`Counted`] → [`Admitted`] → [`Sent`] → the answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::body::{Bodies, Held};
use super::forward::{Answer, Failure, Forward, Head};
use super::pool::Outgoing;
use super::record::{About, Common, Proven, Record};
use super::refused::Refused;
use super::respond::{self, Ids, Refusal};
use super::waiting::Passing;
use super::{Settings, UnknownPaths, accept, headers, rules};
use crate::admit::{Ask, Gate, Mode, Modes, Rule, Shadow, Terms};
use crate::engine::Snapshot;
use crate::ledger::{Arrival, Ledger};
use crate::request::{
    self, Api, Certainty, Client, ClientId, Count, ReadError, Reading, RequestId, Route, Shape, TenantKey,
    Tokens, Trail,
};
use crate::telemetry::{self, Event};
use crate::tokens::{self, Counter, Truth};

/// What the data port works with; built once by `gateway`.
pub struct Parts {
    /// The data port's settings.
    pub settings: Settings,
    /// Length, queue and rates: what may change while requests come.
    pub terms: watch::Receiver<Arc<Terms>>,
    /// The mode of each rule.
    pub modes: Modes,
    /// Counts prompts.
    pub counter: Counter,
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
    /// What the rules in shadow would have done.
    pub shadow: Shadow,
}

/// Bodies over so many bytes are read off the I/O threads, so many at a time.
const LARGE: usize = 128 << 10;
const LARGE_AT_ONCE: usize = 4;

/// What goes out: the engine's answer, or a refusal.
pub type OutBody = Either<Passing, Full<Bytes>>;

/// The path of every request.
pub struct Pipeline {
    pub(super) parts: Parts,
    common: Arc<Common>,
    edge: tower::limit::GlobalConcurrencyLimitLayer,
    /// Turns of large bodies.
    large: Arc<Semaphore>,
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
    reading: Option<Arc<Reading>>,
    trail: Option<Arc<Trail>>,
    body: Body,
    /// Held by a large body until its prompt was counted: read, it takes many times its size.
    _large: Option<OwnedSemaphorePermit>,
}

enum Body {
    Held(Held),
    Streamed(Incoming),
}

/// A request whose prompt was counted.
pub(super) struct Counted {
    read: Read,
    count: Option<Count>,
}

impl Counted {
    /// Whether its answer is to be a stream.
    pub(super) fn streams(&self) -> bool {
        self.read.reading.as_ref().is_some_and(|reading| reading.shape.stream)
    }
}

/// A request that may go to the engine; its record holds the permit.
pub(super) struct Admitted {
    head: Head,
    record: Record,
    body: Body,
    reserved: Tokens,
    shape: Option<Shape>,
}

/// A request that the engine answers.
pub(super) struct Sent {
    pub(super) answer: Answer,
    pub(super) record: Record,
}

impl Pipeline {
    /// The pipeline over its parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let large = Arc::new(Semaphore::new(LARGE_AT_ONCE));
        let (truth, shadow) = (Arc::clone(&parts.truth), parts.shadow.clone());
        let common = Arc::new(Common { truth, proven: Proven::default(), shadow });
        Self { parts, common, edge: accept::edge_limit(), large }
    }

    /// Answers one request, whatever happens.
    pub async fn serve(self: &Arc<Self>, request: Request<Incoming>) -> Response<OutBody> {
        let arrived = Instant::now();
        let (head, body) = request.into_parts();
        let ours = RequestId::next();
        let client_id = ClientId::from_header(head.headers.get(headers::REQUEST_ID));
        let ids = ids(&ours, client_id.as_ref());
        let expects = head.headers.contains_key(header::EXPECT);
        let mut upload = Upload { body: Some(body), begun: false };
        let start = self.arrive(head, ours, client_id, arrived);
        match self.answer(start, &mut upload).await {
            Ok(mut response) => {
                headers::to_client(response.headers_mut(), &ids.ours, &ids.shown);
                response.map(Either::Left)
            }
            Err(refused) => {
                let Refused { refusal, record } = *refused;
                // What was not read yet is read on, so that a client still uploading gets its answer.
                let unread = upload.body.take().filter(|b| !http_body::Body::is_end_stream(b));
                let wire = refusal.wire(self.too_long()).of(record.about.api);
                let response = respond::refuse(&refusal, &wire, &ids, unread.is_some());
                if let Some(unread) = unread {
                    // One that waits for `100 Continue` sends nothing, and needs nothing.
                    if upload.begun || !expects {
                        self.parts.bodies.linger(unread);
                    }
                }
                record.refused(&wire, refusal.outcome());
                response.map(|text| Either::Right(Full::new(text)))
            }
        }
    }

    /// The path of a request.
    async fn answer(
        self: &Arc<Self>,
        arrived: Arrived,
        upload: &mut Upload,
    ) -> Result<Response<Passing>, Box<Refused>> {
        let read = self.read(arrived, upload).await?;
        let counted = self.count(read).await?;
        let admitted = match self.keep_alive(&counted) {
            // Its client hears that it waits: the same steps, inside the answer's body.
            Some(every) => return self.wait_aloud(counted, every).await,
            None => self.admit(counted).await?,
        };
        let sent = self.send(admitted).await?;
        self.hold(sent).await.map(|answer| answer.map(Passing::from))
    }

    fn arrive(
        &self,
        parts: http::request::Parts,
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
            away: false,
        };
        let entry = self.parts.ledger.arrive(Arrival {
            id: ours,
            client_id,
            tenant: client.tenant.clone(),
            shape: Shape { api: Some(api), ..Shape::default() },
        });
        let record = Record::new(entry, about, Arc::clone(&self.common));
        let head = Head {
            method: parts.method,
            target: parts.uri,
            headers: parts.headers,
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
            return Ok(Read { arrived, reading: None, trail: None, body, _large: None });
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
        let (reading, large) = self.understand(api, &held).await;
        match reading {
            Ok((mut reading, trail)) => {
                reading.shape.prefix = reading.prompt.head().map(|head| self.parts.key.hash(head));
                arrived.record.about.sequences = reading.shape.sequences();
                if let Some(entry) = arrived.record.entry() {
                    entry.shaped(reading.shape.clone());
                }
                let (reading, trail) = (Some(Arc::new(reading)), trail.map(Arc::new));
                Ok(Read { arrived, reading, trail, body: Body::Held(held), _large: large })
            }
            Err(error) => Err(arrived.record.turned_away(error)),
        }
    }

    /// Reads a body: a large one off the I/O threads, a few at a time.
    async fn understand(
        &self,
        api: Api,
        held: &Held,
    ) -> (Result<(Reading, Option<Trail>), ReadError>, Option<OwnedSemaphorePermit>) {
        let key = self.parts.key;
        let read = move |api: Api, bytes: &[u8]| {
            let mut reading = request::dialect::read(api, bytes)?;
            tokens::media::note(&mut reading);
            let trail = Trail::of(&reading.prompt, &key);
            Ok((reading, trail))
        };
        if held.bytes.len() <= LARGE {
            return (read(api, &held.bytes), None);
        }
        let turn = Arc::clone(&self.large).acquire_owned().await.ok();
        let bytes = held.bytes.clone();
        let reading = tokio::task::spawn_blocking(move || read(api, &bytes)).await;
        (reading.unwrap_or(Err(ReadError::NotAnObject { found: "unreadable" })), turn)
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
        let verdict = match arrived.route {
            Route::Closed if !settings.allow_paths.iter().any(|p| p == path) => {
                Err(Refusal::Closed { path: shown() })
            }
            Route::Forward if settings.unknown_paths == UnknownPaths::Refuse && !request::is_known(path) => {
                Err(Refusal::Unknown { path: shown() })
            }
            _ => Ok(()),
        };
        self.judge(Rule::Paths, verdict, &mut arrived.record)
    }

    /// Counts the prompt as the engine will see it.
    async fn count(&self, read: Read) -> Result<Counted, Box<Refused>> {
        let Some(reading) = &read.reading else { return Ok(Counted { read, count: None }) };
        let limits = self.limits(&reading.shape, read.arrived.record.about.api);
        let enforced = |rule| self.parts.modes.get(rule) == Mode::Enforce;
        let tenant = read.arrived.client.tenant.as_str();
        match self.parts.counter.count(reading, rules::smallest(&limits), tenant).await {
            Ok(count) => {
                // `truncate_prompt_tokens: -1` keeps as many as fit beside one token of output.
                let fitting = limits.engine.filter(|_| reading.truncate == Some(-1));
                let count = fitting.map_or(count, |context| count.cut_to(context.saturating_sub(Tokens(1))));
                Ok(Counted { read, count: Some(count) })
            }
            Err(error) => {
                // A template that refuses the conversation, or nobody to count it: the engine decides.
                let Some((rule, rejection)) = rules::uncounted(&error) else {
                    return Ok(Counted { read, count: None });
                };
                let bound = self.bounded(reading, &limits, tenant).await;
                if bound.is_none() && enforced(rule) {
                    return Err(read.arrived.record.turned_away(rejection));
                }
                Ok(Counted { read, count: bound })
            }
        }
    }

    /// Decides whether the request may go, and waits until it may.
    pub(super) async fn admit(&self, counted: Counted) -> Result<Admitted, Box<Refused>> {
        let Counted { read: Read { arrived, reading, trail, body, .. }, count } = counted;
        let Arrived { head, mut record, client, .. } = arrived;
        let Some(reading) = reading else {
            return Ok(Admitted { head, record, body, reserved: Tokens::ZERO, shape: None });
        };
        let mut shape = reading.shape.clone();
        // Where nobody counted, what is usual.
        let guess = self.parts.counter.guess(&reading.prompt).unwrap_or_else(|| guess(&body));
        // The text is not kept while the request waits.
        drop(reading);
        let exact = count.as_ref().filter(|c| c.certain == Certainty::Exact).map(|c| c.total.get());
        shape.prompt_tokens = exact;
        record.about.prompt = exact;
        if let (Some(entry), Some(tokens)) = (record.entry(), exact) {
            entry.counted(Tokens(tokens));
        }
        if let Err(refusal) = self.within_limits(&shape, count.as_ref(), &client, &mut record) {
            return Err(record.turned_away(refusal));
        }
        // What all prompts of a list come to together is not what each of them is.
        let each = Tokens(guess.get().div_ceil(u64::from(shape.prompts).max(1)));
        let known = count.as_ref().filter(|c| c.certain != Certainty::Unknown);
        let expected = known.map_or(guess, Count::expected);
        let (max_wait, ttft) = {
            let settings = &self.parts.terms.borrow().settings;
            (
                settings.queue.wait(client.max_wait, client.patience),
                client.ttft.or_else(|| settings.slo.ttft()),
            )
        };
        let ask = Ask {
            prompt: expected,
            longest: known.map_or(each, |c| c.longest.min(expected)),
            max_output: shape.max_output_tokens.map(Tokens),
            sequences: shape.sequences(),
            stream: shape.stream,
            body_bytes: if let Body::Held(held) = &body { held.bytes.len() as u64 } else { 0 },
            max_wait,
            ttft,
            tenant: client.tenant.number(),
            priority: client.priority,
            trail,
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

    /// Writes the journal, then sends.
    pub(super) async fn send(&self, admitted: Admitted) -> Result<Sent, Box<Refused>> {
        let Admitted { head, mut record, body, reserved, shape } = admitted;
        record.about.away = self.parts.snapshot.borrow().died_at.is_some();
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
            Err(Failure::Crashed { .. }) => {
                let failure = self.died_under(&record);
                Err(record.turned_away(failure))
            }
            Err(failure) => Err(record.turned_away(failure)),
        }
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

    /// The status of `context_length_exceeded`.
    pub(super) fn too_long(&self) -> StatusCode {
        let status = self.parts.terms.borrow().settings.length.status;
        StatusCode::from_u16(status).unwrap_or(StatusCode::PAYLOAD_TOO_LARGE)
    }

    /// How long a client may leave what was sent to it unread.
    #[must_use]
    pub fn unread_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.parts.settings.unread_timeout_seconds)
    }

    /// The answer where the edge sheds a request unread.
    #[must_use]
    pub fn overloaded(&self) -> Response<OutBody> {
        let refusal = Refusal::Engine(Failure::Busy { retry_after: Duration::from_secs(1) });
        let ids = ids(&RequestId::next(), None);
        respond::refuse(&refusal, &refusal.wire(self.too_long()), &ids, true)
            .map(|text| Either::Right(Full::new(text)))
    }
}

fn ids(ours: &RequestId, client: Option<&ClientId>) -> Ids {
    let value =
        |text: &str| HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"));
    Ids { ours: value(ours.as_str()), shown: value(client.map_or(ours.as_str(), ClientId::as_str)) }
}

/// A rough size where nobody read the prompt: text has about four bytes a token.
fn guess(body: &Body) -> Tokens {
    const BYTES_PER_TOKEN: u64 = 4;
    match body {
        Body::Held(held) => Tokens(held.bytes.len() as u64 / BYTES_PER_TOKEN),
        Body::Streamed(_) => Tokens::ZERO,
    }
}
