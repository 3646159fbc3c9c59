//! kvgate's own calls to the engine: small, bounded, with timeouts.

use std::error::Error as StdError;
use std::io::ErrorKind;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::{Endpoint, Error, Settings};

/// Bytes of an answer that kvgate reads.
pub const MAX_BODY: usize = 4 * 1024 * 1024;
/// Bytes of a key file.
const MAX_KEY: usize = 8 * 1024;
/// uvicorn closes a connection that was idle for 5 s: ours must go first.
const POOL_IDLE: Duration = Duration::from_secs(3);

type Http = legacy::Client<HttpConnector, Full<Bytes>>;

/// A complete answer of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The whole body, at most [`MAX_BODY`] bytes.
    pub body: Bytes,
}

/// Which connection a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// A new one, closed afterwards: its failure says something about the engine now.
    Fresh,
    /// One that may have been used before.
    Pooled,
}

/// What came of a new TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connect {
    /// Somebody listens.
    Ok,
    /// Nobody listens.
    Refused,
    /// No answer in time: unknown.
    Timeout,
    /// No route, no such name, or no descriptor left here: unknown.
    Other,
}

/// Calls the engine; cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    endpoint: Endpoint,
    fresh: Http,
    pooled: Http,
    key: RwLock<Option<HeaderValue>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.inner.endpoint).finish_non_exhaustive()
    }
}

impl Client {
    /// A client for the engine of these settings; reads the key file.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::Range`] or [`Error::KeyFile`].
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        settings.validate()?;
        let endpoint = settings.endpoint()?;
        let key = read_key(settings)?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(settings.connect_timeout()));
        let build = |idle: usize| {
            legacy::Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(idle)
                .build(connector.clone())
        };
        let inner = Inner {
            settings: settings.clone(),
            endpoint,
            fresh: build(0),
            pooled: build(16),
            key: RwLock::new(key),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Where the engine listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// `Authorization` for the engine, where kvgate holds its key; marked sensitive.
    #[must_use]
    pub fn authorization(&self) -> Option<HeaderValue> {
        self.inner.key.read().ok()?.clone()
    }

    /// How long a read may take, as configured.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.inner.settings.scrape_timeout()
    }

    /// Reads the key file again; what it held stays in force where that fails.
    ///
    /// # Errors
    /// [`Error::KeyFile`].
    pub fn reload_key(&self) -> Result<(), Error> {
        let key = read_key(&self.inner.settings)?;
        if let Ok(mut held) = self.inner.key.write() {
            *held = key;
        }
        Ok(())
    }

    /// GET of a path below the base path. Dropping the future drops the connection.
    ///
    /// # Errors
    /// The call's own: [`Error::Refused`], [`Error::Timeout`], [`Error::Reset`],
    /// [`Error::Unreachable`], [`Error::TooLarge`], [`Error::BadAnswer`].
    pub async fn get(&self, path: &str, connection: Connection, timeout: Duration) -> Result<Answer, Error> {
        self.call(Method::GET, path, None, (connection, timeout)).await
    }

    /// POST of a JSON body on a pooled connection. Dropping the future drops the connection.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post(&self, path: &str, body: Bytes, timeout: Duration) -> Result<Answer, Error> {
        self.call(Method::POST, path, Some(body), (Connection::Pooled, timeout)).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        (connection, timeout): (Connection, Duration),
    ) -> Result<Answer, Error> {
        let mut request = Request::builder().method(method).uri(self.inner.endpoint.uri(path)?);
        if let Some(key) = self.authorization() {
            request = request.header(AUTHORIZATION, key);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|e| Error::BadAnswer { reason: e.to_string() })?;
        let http = match connection {
            Connection::Fresh => &self.inner.fresh,
            Connection::Pooled => &self.inner.pooled,
        };
        let answer = async {
            let response = http.request(request).await.map_err(|e| classified(&e))?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), MAX_BODY).collect().await.map_err(|e| {
                if e.is::<LengthLimitError>() { Error::TooLarge { limit: MAX_BODY } } else { classified(&*e) }
            })?;
            Ok(Answer { status, body: body.to_bytes() })
        };
        match tokio::time::timeout(timeout, answer).await {
            Ok(Err(Error::Timeout { .. })) => {
                Err(Error::Timeout { after: self.inner.settings.connect_timeout() })
            }
            Ok(answer) => answer,
            Err(_) => Err(Error::Timeout { after: timeout }),
        }
    }

    /// Opens a new TCP connection and closes it again.
    pub async fn fresh_connect(&self) -> Connect {
        let to = (self.inner.endpoint.host(), self.inner.endpoint.port());
        let attempt = tokio::net::TcpStream::connect(to);
        match tokio::time::timeout(self.inner.settings.connect_timeout(), attempt).await {
            Ok(Ok(_)) => Connect::Ok,
            Ok(Err(e)) => match e.kind() {
                ErrorKind::ConnectionRefused => Connect::Refused,
                ErrorKind::TimedOut => Connect::Timeout,
                _ => Connect::Other,
            },
            Err(_) => Connect::Timeout,
        }
    }
}

/// What an error of the HTTP library means, by the system error at its root.
fn classified(error: &(dyn StdError + 'static)) -> Error {
    let mut connecting = false;
    let mut at: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(e) = at {
        if let Some(e) = e.downcast_ref::<legacy::Error>() {
            connecting |= e.is_connect();
        }
        if let Some(e) = e.downcast_ref::<hyper::Error>() {
            if e.is_incomplete_message() || e.is_closed() || e.is_canceled() {
                return Error::Reset;
            }
            if e.is_parse() {
                return Error::BadAnswer { reason: e.to_string() };
            }
        }
        if let Some(io) = e.downcast_ref::<std::io::Error>() {
            match io.kind() {
                ErrorKind::ConnectionRefused => return Error::Refused,
                ErrorKind::TimedOut => return Error::Timeout { after: Duration::ZERO },
                ErrorKind::ConnectionReset
                | ErrorKind::BrokenPipe
                | ErrorKind::ConnectionAborted
                | ErrorKind::NotConnected
                | ErrorKind::UnexpectedEof => return Error::Reset,
                _ => {}
            }
        }
        at = e.source();
    }
    let reason = error.to_string();
    if connecting { Error::Unreachable { reason } } else { Error::BadAnswer { reason } }
}

fn read_key(settings: &Settings) -> Result<Option<HeaderValue>, Error> {
    let Some(path) = &settings.key_file else { return Ok(None) };
    let bad = |reason: String| Error::KeyFile { path: path.clone(), reason };
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let key = text.trim();
    if key.is_empty() {
        return Err(bad("it is empty".to_owned()));
    }
    if key.len() > MAX_KEY {
        return Err(bad(format!("it has {} bytes and the limit is {MAX_KEY}", key.len())));
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
        .map_err(|_| bad("it must be one line of visible ASCII".to_owned()))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests;
