//! Sends a request to the engine, once; and once more only where nothing can have been done with it.

use std::time::Duration;

use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, Request, Response, Uri};
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::headers;
use super::pool::{ConnectError, Lease, Outgoing, Pool};
use crate::engine::{self, Hint, Hints, Snapshot};

/// Why the engine gave no proper answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It cannot be reached.
    #[error("the engine is not available: {why}")]
    Unreachable {
        /// In words: loading, refused, draining …
        why: &'static str,
        /// When to try again.
        retry_after: Duration,
    },
    /// It says itself that it is full.
    #[error("the engine is busy and accepts no more requests now")]
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
    /// It died under the request.
    #[error("the engine stopped while it worked on this request")]
    Crashed {
        /// When to try again.
        retry_after: Duration,
        /// This request may be the cause: it should not be sent again.
        suspect: bool,
    },
    /// The client's own upload broke on its way through.
    #[error("the request body is cut off or badly framed")]
    Upload,
    /// It made no progress.
    #[error("the engine did not begin its answer within {limit:?}")]
    Timeout {
        /// `proxy.first_byte_timeout_seconds`
        limit: Duration,
    },
}

/// The head of a request to the engine.
#[derive(Debug, Clone)]
pub struct Head {
    /// Method.
    pub method: Method,
    /// Path and query, as the client gave them.
    pub target: Uri,
    /// The client's headers.
    pub headers: HeaderMap,
    /// The id the engine is to use.
    pub engine_id: HeaderValue,
    /// Ask for an answer that can be read (no compression).
    pub readable: bool,
}

/// The way to the engine.
pub struct Forward {
    pool: Pool,
    host: HeaderValue,
    base_path: String,
    first_byte: Option<Duration>,
    client: engine::Client,
    snapshot: watch::Receiver<std::sync::Arc<Snapshot>>,
    hints: Hints,
}

/// An answer's head, with the connection that its body comes on.
pub struct Answer {
    /// The engine's response.
    pub response: Response<Incoming>,
    /// The connection.
    pub lease: Lease,
}

/// What one try came to.
enum Try {
    Answered(Box<Answer>),
    /// Nothing was sent: the request is whole again.
    Unsent(Box<Request<Outgoing>>),
    /// Sent, at least in part, and no byte came back.
    NoAnswer {
        reused: bool,
    },
    TimedOut(Duration),
    /// The client's body broke: says nothing about the engine.
    Upload,
}

impl Forward {
    /// The way to the engine at `client`'s address.
    #[must_use]
    pub fn new(
        settings: &super::Settings,
        client: engine::Client,
        snapshot: watch::Receiver<std::sync::Arc<Snapshot>>,
        hints: Hints,
    ) -> Self {
        let seconds = Duration::from_secs_f64;
        let pool = Pool::new(
            client.endpoint().authority().to_string(),
            seconds(settings.connect_timeout_seconds),
            seconds(settings.pool_idle_seconds),
        );
        let first = settings.first_byte_timeout_seconds;
        Self {
            pool,
            host: HeaderValue::try_from(client.endpoint().authority().as_str())
                .unwrap_or_else(|_| HeaderValue::from_static("engine")),
            base_path: client.endpoint().base_path().to_owned(),
            first_byte: (first > 0.0).then(|| seconds(first)),
            client,
            snapshot,
            hints,
        }
    }

    /// Sends the request and waits for the head of the answer. Dropped, it closes the connection, so
    /// that the engine stops working on it.
    ///
    /// A request of which nothing was sent (the engine closed an idle connection) goes out again on a
    /// new one. One that got no byte of an answer on a reused connection goes out once more if the
    /// engine's start time is unchanged. Nothing else is ever sent twice.
    ///
    /// # Errors
    /// [`Failure`]
    pub async fn send(&self, head: &Head, body: Outgoing) -> Result<Answer, Failure> {
        let again = match &body {
            Outgoing::Whole(bytes) => Some(bytes.clone()),
            Outgoing::Streamed(_) => None,
        };
        let lease = self.pool.lease().await.map_err(|e| self.unreachable(&e))?;
        let request = self.build(head, body);
        match self.attempt(lease, request).await {
            Try::Answered(answer) => Ok(self.served(*answer)),
            Try::Unsent(request) => self.last_attempt(*request).await,
            Try::NoAnswer { reused: true } => match again {
                Some(bytes) if self.same_start().await => {
                    match self.last_attempt(self.build(head, Outgoing::Whole(bytes))).await {
                        // It was sent once: the engine may have had it.
                        Err(Failure::Unreachable { .. }) => Err(self.crashed(true)),
                        other => other,
                    }
                }
                _ => Err(self.crashed(true)),
            },
            Try::NoAnswer { reused: false } => Err(self.crashed(false)),
            Try::TimedOut(limit) => Err(Failure::Timeout { limit }),
            Try::Upload => Err(Failure::Upload),
        }
    }

    /// How long the engine's answer may take to begin, where that is limited.
    #[must_use]
    pub const fn first_byte(&self) -> Option<Duration> {
        self.first_byte
    }

    /// What the engine's life allows a client to be told about when to come back.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.snapshot.borrow().retry_after(Instant::now())
    }

    /// Tells the watcher what an answer revealed.
    pub fn hint(&self, hint: Hint) {
        self.hints.say(hint);
    }

    async fn last_attempt(&self, request: Request<Outgoing>) -> Result<Answer, Failure> {
        let lease = self.pool.fresh().await.map_err(|e| self.unreachable(&e))?;
        match self.attempt(lease, request).await {
            Try::Answered(answer) => Ok(self.served(*answer)),
            Try::TimedOut(limit) => Err(Failure::Timeout { limit }),
            Try::Upload => Err(Failure::Upload),
            Try::Unsent(_) | Try::NoAnswer { .. } => Err(self.crashed(false)),
        }
    }

    async fn attempt(&self, mut lease: Lease, request: Request<Outgoing>) -> Try {
        let reused = lease.reused;
        let answer = lease.sender().try_send_request(request);
        let result = match self.first_byte {
            None => answer.await,
            Some(limit) => match timeout(limit, answer).await {
                Ok(result) => result,
                Err(_) => return Try::TimedOut(limit),
            },
        };
        match result {
            Ok(response) => Try::Answered(Box::new(Answer { response, lease })),
            Err(mut error) => match error.take_message() {
                Some(request) => Try::Unsent(Box::new(request)),
                None if error.error().is_user() => Try::Upload,
                None => Try::NoAnswer { reused },
            },
        }
    }

    async fn same_start(&self) -> bool {
        let snapshot = std::sync::Arc::clone(&self.snapshot.borrow());
        engine::same_start(&self.client, &snapshot).await == Some(true)
    }

    fn build(&self, head: &Head, body: Outgoing) -> Request<Outgoing> {
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = self.target(&head.target);
        let mut map = head.headers.clone();
        headers::to_engine(&mut map);
        map.insert(header::HOST, self.host.clone());
        map.insert(headers::REQUEST_ID, head.engine_id.clone());
        if head.readable {
            map.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if let Some(key) = self.client.authorization() {
            map.insert(header::AUTHORIZATION, key);
        }
        *request.headers_mut() = map;
        request
    }

    /// Path and query behind the engine's base path.
    fn target(&self, uri: &Uri) -> Uri {
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let path = if path.starts_with('/') { path } else { "/" };
        format!("{}{path}", self.base_path).parse().unwrap_or_else(|_| uri.clone())
    }

    fn served(&self, answer: Answer) -> Answer {
        self.hints.say(Hint::Served);
        answer
    }

    fn crashed(&self, reused: bool) -> Failure {
        self.hints.say(Hint::Reset { reused });
        Failure::Crashed { retry_after: self.retry_after(), suspect: false }
    }

    fn unreachable(&self, error: &ConnectError) -> Failure {
        let why = match error {
            ConnectError::Refused => {
                self.hints.say(Hint::ConnectRefused);
                "it refuses connections"
            }
            ConnectError::Timeout(_) => "it accepts no connections",
            ConnectError::Other(_) => "it cannot be reached",
        };
        Failure::Unreachable { why, retry_after: self.retry_after() }
    }
}
