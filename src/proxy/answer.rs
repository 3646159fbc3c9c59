//! The one body type of answers: it owns permit, ledger entry, event boundaries and the end seen.
//!
//! Whatever happens to it, everything it holds is given back by `Drop`: the last byte was sent, the
//! client left, the task was cancelled.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::events::{self, Says, Splitter, Take, Usage};
use super::forward::Forward;
use super::pool::Lease;
use super::record::Record;
use super::respond;
use crate::engine::dialect::vllm::said;
use crate::engine::{Hint, Said};
use crate::request::Outcome;

/// The engine's side of an answer in progress.
pub struct Upstream {
    /// The engine's body.
    pub body: Incoming,
    /// Its connection, given back when the body ended.
    pub lease: Lease,
}

/// How the rest of the engine's body is to be read.
pub enum Reading {
    /// Server-sent events.
    Events(Splitter),
    /// Bytes that nobody reads.
    Opaque,
}

/// An answer's body.
pub struct AnswerBody {
    /// What may be sent at once.
    out: VecDeque<Bytes>,
    upstream: Option<Upstream>,
    reading: Reading,
    record: Record,
    /// Choices that must finish, where the API's `[DONE]` does not come.
    sequences: u64,
    finished: u64,
    done: bool,
    /// The engine reported an error of the request's own, which ends an answer as well.
    failed: bool,
    stall: Option<Stall>,
    forward: Option<Arc<Forward>>,
    /// The connection to the client must be cut: the answer cannot be completed.
    cut: bool,
}

struct Stall {
    limit: Duration,
    since: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Stall {
    fn new(limit: Duration) -> Self {
        let since = Instant::now();
        Self { limit, since, sleep: Box::pin(sleep_until(since + limit)) }
    }

    /// Ready once there was no progress for the whole limit. The timer is only moved when it fires.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            let due = self.since + self.limit;
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(due);
        }
    }
}

/// What a look at a chunk came to.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Met {
    #[default]
    Nothing,
    /// The engine said inside the stream that it is dead.
    Dead,
    /// It said in place of an answer that it takes no more.
    Busy,
}

impl AnswerBody {
    /// A body that is all there; its record ends as `outcome` when it was sent.
    #[must_use]
    pub fn whole(bytes: Bytes, mut record: Record) -> Self {
        let out = if bytes.is_empty() {
            // A body without a byte is never asked for.
            record.sent();
            VecDeque::new()
        } else {
            VecDeque::from([bytes])
        };
        Self::new(out, None, Reading::Opaque, record)
    }

    /// A body passed on as it comes, unread.
    #[must_use]
    pub fn opaque(start: VecDeque<Bytes>, upstream: Upstream, record: Record) -> Self {
        Self::new(start, Some(upstream), Reading::Opaque, record)
    }

    /// A stream of events, not yet begun; see [`AnswerBody::first_event`].
    #[must_use]
    pub fn events(upstream: Upstream, limit: usize, stall: Duration, record: Record) -> Self {
        let mut body =
            Self::new(VecDeque::new(), Some(upstream), Reading::Events(Splitter::new(limit)), record);
        body.stall = (!stall.is_zero()).then(|| Stall::new(stall));
        body
    }

    fn new(out: VecDeque<Bytes>, upstream: Option<Upstream>, reading: Reading, record: Record) -> Self {
        Self {
            out,
            upstream,
            reading,
            sequences: record.sequences(),
            record,
            finished: 0,
            done: false,
            failed: false,
            stall: None,
            forward: None,
            cut: false,
        }
    }

    /// Lets the body tell the watcher what it meets.
    pub fn telling(mut self, forward: Arc<Forward>) -> Self {
        self.forward = Some(forward);
        self
    }

    /// The record of a stream that did not begin; its engine's work ends here.
    #[must_use]
    pub fn into_record(self) -> Record {
        self.record
    }

    /// Waits until something may be sent, or the stream ended: the head is held until then, so that an
    /// error in its place can become a proper status.
    ///
    /// Cancel-safe: dropping the body drops the engine's work.
    pub async fn first_event(&mut self) -> Opening {
        std::future::poll_fn(|cx| self.poll_opening(cx)).await
    }

    fn poll_opening(&mut self, cx: &mut Context<'_>) -> Poll<Opening> {
        while self.out.is_empty() {
            let Some(upstream) = self.upstream.as_mut() else { return Poll::Ready(Opening::Ended) };
            match ready!(Pin::new(&mut upstream.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let Ok(chunk) = frame.into_data() else { continue };
                    match self.take(chunk, true) {
                        Met::Nothing => {}
                        Met::Dead => return Poll::Ready(Opening::Dead),
                        Met::Busy => return Poll::Ready(Opening::Busy),
                    }
                }
                Some(Err(_)) | None => return Poll::Ready(Opening::Ended),
            }
        }
        Poll::Ready(Opening::Begun)
    }

    /// Takes a chunk in: what may go out is in `out` afterwards.
    fn take(&mut self, chunk: Bytes, opening: bool) -> Met {
        let Reading::Events(splitter) = &mut self.reading else {
            self.out.push_back(chunk);
            return Met::Nothing;
        };
        if let Some(stall) = &mut self.stall {
            stall.since = Instant::now();
        }
        let mut ready = Vec::new();
        let mut seen = Seen { opening, ..Seen::default() };
        // Where the engine says that it is dead (or, in place of an answer, busy), the rest is dropped.
        let _ = splitter.push(chunk, &mut ready, |event| seen.look(event));
        self.out.extend(ready);
        self.finished += seen.finished;
        self.done |= seen.done;
        self.record.pieces(seen.pieces, seen.usage);
        self.failed |= seen.error;
        if seen.error {
            self.record.outcome(Outcome::EngineError);
        }
        seen.met
    }

    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(upstream) = self.upstream.as_mut() else { return Poll::Ready(()) };
        match Pin::new(&mut upstream.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Ok(chunk) = frame.into_data()
                    && self.take(chunk, false) != Met::Nothing
                {
                    self.tell(Hint::DeadAnswer);
                    self.broken("the engine stopped while it worked on this request");
                }
                // A body of known length ends here: once its bytes are written nobody asks for more.
                if self.upstream.as_ref().is_some_and(|upstream| upstream.body.is_end_stream()) {
                    self.ended();
                }
                Poll::Ready(())
            }
            Poll::Ready(Some(Err(_))) => {
                self.tell(Hint::Reset { reused: false });
                self.broken("the connection to the engine was lost");
                Poll::Ready(())
            }
            Poll::Ready(None) => {
                self.ended();
                Poll::Ready(())
            }
            Poll::Pending => {
                let stalled = self.stall.as_mut().is_some_and(|s| s.poll(cx).is_ready());
                if !stalled {
                    return Poll::Pending;
                }
                self.stalled();
                Poll::Ready(())
            }
        }
    }

    /// The engine's body came to its end.
    fn ended(&mut self) {
        let whole = match &mut self.reading {
            Reading::Opaque => true,
            Reading::Events(splitter) => {
                let rest = splitter.rest();
                let last = rest.concat();
                self.done |= last.trim_ascii() == b"data: [DONE]";
                let ended = self.done || self.failed || self.finished >= self.sequences;
                let whole = ended || !self.record.is_prompt();
                if whole {
                    self.out.extend(rest);
                }
                whole
            }
        };
        if whole {
            if let Some(upstream) = self.upstream.take() {
                upstream.lease.release();
            }
            self.record.engine_done();
        } else {
            self.tell(Hint::Reset { reused: false });
            self.broken("the engine ended its answer before it was complete");
        }
    }

    /// The answer cannot go on: our ending takes the place of the rest, or the connection is cut.
    fn broken(&mut self, message: &str) {
        self.upstream = None;
        self.record.outcome(Outcome::EngineCrashed);
        self.record.engine_done();
        if let Reading::Events(_) = self.reading {
            self.close_event();
            self.out.push_back(respond::broken_stream(message, "engine_crashed"));
        } else {
            self.cut = true;
        }
    }

    /// An event of which a part has gone out is ended, so that ours is not read as its rest.
    fn close_event(&mut self) {
        if let Reading::Events(splitter) = &self.reading
            && splitter.inside_an_event()
        {
            self.out.push_back(Bytes::from_static(b"\n\n"));
        }
    }

    fn stalled(&mut self) {
        let limit = self.stall.take().map_or(Duration::ZERO, |s| s.limit);
        self.upstream = None;
        self.record.outcome(Outcome::Timeout);
        self.record.engine_done();
        let message = format!("the engine made no progress on this request for {} s", limit.as_secs_f64());
        self.close_event();
        self.out.push_back(respond::broken_stream(&message, "upstream_timeout"));
    }

    fn tell(&self, hint: Hint) {
        if let Some(forward) = &self.forward {
            forward.hint(hint);
        }
    }
}

/// How a stream opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// There is something to send.
    Begun,
    /// The engine says that it is dead.
    Dead,
    /// The engine says that it takes no more.
    Busy,
    /// It ended, or broke, before anything could be sent.
    Ended,
}

/// What the events of one chunk said together.
#[derive(Default)]
struct Seen {
    /// Nothing was sent yet.
    opening: bool,
    met: Met,
    pieces: u64,
    finished: u64,
    done: bool,
    error: bool,
    usage: Option<Usage>,
}

impl Seen {
    fn look(&mut self, event: &[u8]) -> Take {
        match events::says(event) {
            Says::Nothing => {}
            Says::Done => self.done = true,
            Says::Error(object) => {
                self.met = match said(0, object) {
                    Said::Dead => Met::Dead,
                    Said::Busy if self.opening => Met::Busy,
                    Said::Busy | Said::Other => Met::Nothing,
                };
                if self.met != Met::Nothing {
                    return Take::Stop;
                }
                self.error = true;
            }
            Says::Piece { opening, finished, choices, usage } => {
                self.pieces += u64::from(choices && !opening);
                self.finished += finished as u64;
                self.usage = usage.or(self.usage);
            }
        }
        Take::Keep
    }
}

/// The connection to the client is cut on purpose: the engine's answer cannot be completed.
#[derive(Debug, thiserror::Error)]
#[error("the engine's answer was cut off")]
pub struct Cut;

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.out.pop_front() {
                if this.upstream.is_none() && this.out.is_empty() && !this.cut {
                    this.record.sent();
                }
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if this.cut {
                return Poll::Ready(Some(Err(Cut)));
            }
            if this.upstream.is_none() {
                this.record.sent();
                return Poll::Ready(None);
            }
            ready!(this.poll_upstream(cx));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.upstream.is_none() && self.out.is_empty() && !self.cut
    }

    fn size_hint(&self) -> SizeHint {
        match self.upstream {
            None if !self.cut => SizeHint::with_exact(self.out.iter().map(|b| b.len() as u64).sum()),
            _ => SizeHint::default(),
        }
    }
}
