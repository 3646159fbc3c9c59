//! A stream that waits aloud: its client hears comments while the request is in the queue.
//!
//! Some clients, and proxies between, cut a connection on which nothing comes. Where it is configured, a stream's
//! answer begins with status 200 after a while in the queue, and a comment (`: waiting`, a line that clients of
//! server-sent events skip; WHATWG HTML, "Server-sent events") goes out in each such while. A refusal then comes
//! inside the stream, as an error event.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep};

use super::answer::{AnswerBody, Cut};
use super::hold::is_event_stream;
use super::pipeline::{Counted, Pipeline};
use super::refused::Refused;
use super::respond;

const COMMENT: &[u8] = b": waiting\n\n";
/// Bytes of an engine's error that are passed on inside a stream.
const MOST_ERROR: usize = 64 << 10;

/// What is still to come of a request's path.
type Path = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Box<Refused>>> + Send>>;

/// An answer that the engine has begun, or one that waits aloud.
#[expect(clippy::large_enum_variant, reason = "nearly all are the large one")]
pub enum Passing {
    /// The engine's.
    Answer(AnswerBody),
    /// Still in the queue.
    Waiting(Box<Waiting>),
}

impl From<AnswerBody> for Passing {
    fn from(body: AnswerBody) -> Self {
        Self::Answer(body)
    }
}

/// The body of a request that waits. Dropped, it gives the place in the queue back.
pub struct Waiting {
    stage: Stage,
    every: Duration,
    tick: Pin<Box<Sleep>>,
    too_long: StatusCode,
}

enum Stage {
    /// In the queue, or held until the engine's answer is known to be one.
    Before(Path),
    /// The engine streams.
    Stream(AnswerBody),
    /// The engine answered with an error, or with something that is no stream: it is told as an event.
    Error(AnswerBody, BytesMut),
    /// The last event is out.
    Over,
}

impl Pipeline {
    /// How often a request's client hears that it waits, where it does.
    pub(super) fn keep_alive(&self, counted: &Counted) -> Option<Duration> {
        let every = self.parts.settings.queue_keep_alive_seconds;
        (every > 0.0 && counted.streams()).then(|| Duration::from_secs_f64(every))
    }

    /// The rest of the path for one whose client hears that it waits.
    pub(super) async fn wait_aloud(
        self: &Arc<Self>,
        counted: Counted,
        every: Duration,
    ) -> Result<Response<Passing>, Box<Refused>> {
        let this = Arc::clone(self);
        let mut admitted = Box::pin(async move {
            let admitted = this.admit(counted).await;
            (this, admitted)
        });
        let at_once = tokio::select! {
            biased;
            admitted = &mut admitted => Some(admitted),
            () = sleep(every) => None,
        };
        if let Some((this, admitted)) = at_once {
            let sent = this.send(admitted?).await?;
            return this.hold(sent).await.map(|answer| answer.map(Passing::from));
        }
        let path = Box::pin(async move {
            let (this, admitted) = admitted.await;
            let sent = this.send(admitted?).await?;
            this.hold(sent).await
        });
        let tick = Box::pin(sleep(Duration::ZERO));
        let waiting = Waiting { stage: Stage::Before(path), every, tick, too_long: self.too_long() };
        let mut response = Response::new(Passing::Waiting(Box::new(waiting)));
        let head = response.headers_mut();
        head.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        head.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        Ok(response)
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut *self {
            Self::Answer(body) => Pin::new(body).poll_frame(cx),
            Self::Waiting(waiting) => waiting.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Answer(body) => body.is_end_stream(),
            Self::Waiting(_) => false,
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Answer(body) => body.size_hint(),
            Self::Waiting(_) => http_body::SizeHint::default(),
        }
    }
}

impl Waiting {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        loop {
            self.stage = match &mut self.stage {
                Stage::Before(path) => match path.as_mut().poll(cx) {
                    Poll::Ready(Ok(response)) => {
                        let (parts, body) = response.into_parts();
                        if parts.status.is_success() && is_event_stream(&parts.headers) {
                            Stage::Stream(body)
                        } else {
                            Stage::Error(body, BytesMut::new())
                        }
                    }
                    Poll::Ready(Err(refused)) => {
                        self.stage = Stage::Over;
                        return last(refused.inside_a_stream(self.too_long));
                    }
                    Poll::Pending => {
                        ready!(self.tick.as_mut().poll(cx));
                        self.tick.as_mut().reset(Instant::now() + self.every);
                        return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
                    }
                },
                Stage::Stream(body) => return Pin::new(body).poll_frame(cx),
                Stage::Error(body, text) => match ready!(Pin::new(body).poll_frame(cx)) {
                    Some(Ok(frame)) => {
                        let room = MOST_ERROR - text.len().min(MOST_ERROR);
                        if let Ok(data) = frame.into_data() {
                            text.extend_from_slice(&data[..data.len().min(room)]);
                        }
                        continue;
                    }
                    Some(Err(cut)) => return Poll::Ready(Some(Err(cut))),
                    None => {
                        let event = respond::error_in_stream(text);
                        self.stage = Stage::Over;
                        return last(event);
                    }
                },
                Stage::Over => return Poll::Ready(None),
            };
        }
    }
}

fn last(event: Bytes) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
    Poll::Ready(Some(Ok(Frame::data(event))))
}
