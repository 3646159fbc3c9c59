//! Reads a request body: bounded each, bounded all together, bounded in time.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

/// A whole body may take so many times the longest pause.
const MOST_PAUSES: u32 = 10;

/// One budget unit, bytes.
const UNIT: usize = 1024;

/// Refused bodies read on at once; further ones are cut off.
const MOST_LINGERING: usize = 256;

/// Bytes of a refused body that are read and thrown away at most.
const MOST_LINGER_BYTES: usize = 256 << 20;

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Larger than one body may be.
    #[error("the request body has {size} bytes and the limit is {limit}")]
    TooLarge {
        /// Declared or read so far, bytes.
        size: u64,
        /// `proxy.max_body_bytes`
        limit: u64,
    },
    /// All bodies together are larger than memory allows.
    #[error("{limit} bytes of request bodies are held already")]
    NoRoom {
        /// `proxy.held_body_bytes`
        limit: u64,
    },
    /// The client paused for too long, or took ten times as long for the whole.
    #[error("the request body paused for more than {limit:?}, or took ten times as long")]
    Stalled {
        /// `proxy.body_timeout_seconds`
        limit: Duration,
    },
    /// The client's framing is broken, or it left.
    #[error("the request body is cut off or badly framed")]
    Broken,
}

/// A whole body and the memory it holds.
#[derive(Debug)]
pub struct Held {
    /// The bytes.
    pub bytes: Bytes,
    _memory: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// An empty body.
    #[must_use]
    pub const fn empty() -> Self {
        Self { bytes: Bytes::new(), _memory: None }
    }
}

/// Reads bodies within their limits; cheap to clone.
#[derive(Clone)]
pub struct Bodies {
    one: u64,
    all: u64,
    pause: Duration,
    linger: Duration,
    memory: Arc<Semaphore>,
    lingering: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Bodies {
    /// With the limits of `settings`; `tasks` holds the reading-on of refused bodies.
    #[must_use]
    pub fn new(settings: &super::Settings, tasks: TaskTracker) -> Self {
        let units = usize::try_from(settings.held_body_bytes).unwrap_or(usize::MAX) / UNIT;
        Self {
            one: settings.max_body_bytes,
            all: settings.held_body_bytes,
            pause: Duration::from_secs_f64(settings.body_timeout_seconds),
            linger: Duration::from_secs_f64(settings.linger_seconds),
            memory: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            lingering: Arc::new(Semaphore::new(MOST_LINGERING)),
            tasks,
        }
    }

    /// Checks what the head declares, before a byte is read.
    ///
    /// # Errors
    /// [`BodyError::TooLarge`]
    pub fn check_declared(&self, headers: &HeaderMap) -> Result<usize, BodyError> {
        let declared = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        match declared {
            Some(size) if size > self.one => Err(BodyError::TooLarge { size, limit: self.one }),
            Some(size) => Ok(usize::try_from(size).unwrap_or(usize::MAX)),
            None => Ok(0),
        }
    }

    /// Reads the whole body. `expected` only sizes the buffer; `limited` says whether one body has a limit of
    /// its own beside that of all together. Dropped in the middle it frees what it held.
    ///
    /// # Errors
    /// [`BodyError`]; the body can then be read on with [`Bodies::linger`].
    pub async fn read(&self, body: &mut Incoming, expected: usize, limited: bool) -> Result<Held, BodyError> {
        let one = if limited { self.one } else { self.all };
        let mut memory: Option<OwnedSemaphorePermit> = None;
        let mut first: Option<Bytes> = None;
        let mut rest = BytesMut::new();
        let end = Instant::now() + self.pause * MOST_PAUSES;
        loop {
            let until = end.min(Instant::now() + self.pause);
            let frame = match timeout_at(until, body.frame()).await {
                Err(_) => return Err(BodyError::Stalled { limit: self.pause }),
                Ok(None) => break,
                Ok(Some(Err(_))) => return Err(BodyError::Broken),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            let size = first.as_ref().map_or(0, Bytes::len) + rest.len() + data.len();
            if size as u64 > one {
                return Err(BodyError::TooLarge { size: size as u64, limit: one });
            }
            self.charge(&mut memory, size)?;
            if first.is_none() && rest.is_empty() {
                first = Some(data);
            } else {
                if let Some(first) = first.take() {
                    rest.reserve(expected.min(size.saturating_mul(8)).max(size));
                    rest.extend_from_slice(&first);
                }
                rest.extend_from_slice(&data);
            }
        }
        let bytes = first.unwrap_or_else(|| rest.freeze());
        Ok(Held { bytes, _memory: memory })
    }

    fn charge(&self, held: &mut Option<OwnedSemaphorePermit>, size: usize) -> Result<(), BodyError> {
        let need = size.div_ceil(UNIT) - held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let need = u32::try_from(need).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.memory)
            .try_acquire_many_owned(need)
            .map_err(|_| BodyError::NoRoom { limit: self.all })?;
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }

    /// Reads on in a refused body for a bounded time, so that a client still uploading reads its
    /// answer and meets no reset. Not for a client that still waits for `100 Continue`: reading would
    /// send it.
    pub fn linger(&self, mut body: Incoming) {
        let Ok(place) = Arc::clone(&self.lingering).try_acquire_owned() else { return };
        let until = Instant::now() + self.linger;
        self.tasks.spawn(async move {
            let mut read = 0;
            while let Ok(Some(Ok(frame))) = timeout_at(until, body.frame()).await {
                read += frame.data_ref().map_or(0, Bytes::len);
                if read > MOST_LINGER_BYTES {
                    break;
                }
            }
            drop(place);
        });
    }
}
