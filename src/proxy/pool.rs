//! Connections to the engine: made, reused while young, closed the moment nobody wants them.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

/// The body of a request on its way to the engine.
#[derive(Debug)]
pub enum Outgoing {
    /// Held in memory: can be sent again.
    Whole(Option<Bytes>),
    /// Passed through as it comes.
    Streamed(Incoming),
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Whole(bytes) => {
                Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b))))
            }
            Self::Streamed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Streamed(body) => body.size_hint(),
        }
    }
}

/// Why no connection could be had.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens.
    #[error("the engine refuses connections")]
    Refused,
    /// No answer in time.
    #[error("the engine did not accept a connection within {0:?}")]
    Timeout(Duration),
    /// Anything else.
    #[error("cannot connect to the engine: {0}")]
    Other(#[source] io::Error),
}

struct Idle {
    connection: Connection,
    since: Instant,
}

/// One connection; dropped, it is closed at once.
struct Connection {
    sender: SendRequest<Outgoing>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The connections to one engine; cheap to clone.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    address: String,
    connect_timeout: Duration,
    idle_time: Duration,
    idle: Mutex<Vec<Idle>>,
    tasks: TaskTracker,
}

/// How long a connection that was given back may take to be ready: it may still hold a request body that
/// the engine answered without reading it.
const READY_WITHIN: Duration = Duration::from_millis(20);

/// Idle connections kept; more are closed.
const MOST_IDLE: usize = 512;

impl Pool {
    /// A pool for `host:port`.
    #[must_use]
    pub fn new(address: String, connect_timeout: Duration, idle_time: Duration) -> Self {
        let inner = Inner {
            address,
            connect_timeout,
            idle_time,
            idle: Mutex::new(Vec::new()),
            tasks: TaskTracker::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A young idle connection, or a new one.
    ///
    /// # Errors
    /// [`ConnectError`] where a new one is needed and cannot be made.
    pub async fn lease(&self) -> Result<Lease, ConnectError> {
        while let Some(mut connection) = self.inner.take() {
            // Just given back, its task may still have to see that the answer ended: a moment, or its end.
            let ready = connection.sender.is_ready()
                || matches!(timeout(READY_WITHIN, connection.sender.ready()).await, Ok(Ok(())));
            if ready {
                return Ok(self.lend(connection, true));
            }
        }
        self.fresh().await
    }

    /// A new connection, whatever is idle.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub async fn fresh(&self) -> Result<Lease, ConnectError> {
        let wait = self.inner.connect_timeout;
        let stream = match timeout(wait, TcpStream::connect(&self.inner.address)).await {
            Err(_) => return Err(ConnectError::Timeout(wait)),
            Ok(Err(e)) if e.kind() == io::ErrorKind::ConnectionRefused => return Err(ConnectError::Refused),
            Ok(Err(e)) => return Err(ConnectError::Other(e)),
            Ok(Ok(stream)) => stream,
        };
        stream.set_nodelay(true).map_err(ConnectError::Other)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| ConnectError::Other(io::Error::other(e)))?;
        // Owned by the tracker and ended by the lease: never detached.
        let task = self.inner.tasks.spawn(async move {
            let _ = connection.await;
        });
        Ok(self.lend(Connection { sender, task: task.abort_handle() }, false))
    }

    fn lend(&self, connection: Connection, reused: bool) -> Lease {
        Lease { connection: Some(connection), reused, pool: Arc::clone(&self.inner) }
    }
}

impl Inner {
    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while let Some(found) = idle.pop() {
            let young = now.saturating_duration_since(found.since) < self.idle_time;
            if young && !found.connection.sender.is_closed() {
                return Some(found.connection);
            }
        }
        None
    }

    fn put(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // The oldest are at the front: those past their time go whenever one is put back.
        let old =
            idle.iter().take_while(|i| now.saturating_duration_since(i.since) >= self.idle_time).count();
        idle.drain(..old);
        if idle.len() < MOST_IDLE {
            idle.push(Idle { connection, since: now });
        }
    }
}

/// One connection, lent to one request. Dropped before [`Lease::release`] it is closed at once, which
/// is how the engine learns that the client left.
pub struct Lease {
    connection: Option<Connection>,
    /// Whether the connection has carried a request before.
    pub reused: bool,
    pool: Arc<Inner>,
}

impl Lease {
    /// The handle to send with.
    pub fn sender(&mut self) -> &mut SendRequest<Outgoing> {
        &mut self.connection.as_mut().expect("a lease holds its connection until it is released").sender
    }

    /// Gives the connection back after a whole answer.
    pub fn release(mut self) {
        if let Some(connection) = self.connection.take()
            && !connection.sender.is_closed()
        {
            self.pool.put(connection);
        }
    }
}
