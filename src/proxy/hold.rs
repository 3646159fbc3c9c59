//! The last step: an answer's head is held until it is known to be one, then the answer is passed on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::answer::{AnswerBody, Opening, Upstream};
use super::events;
use super::forward::{Answer, Failure};
use super::pipeline::{Pipeline, Sent};
use super::record::Record;
use super::refused::Refused;
use crate::engine::dialect::vllm::said;
use crate::engine::{Hint, Said};
use crate::request::Outcome;

/// When to come back after the engine itself said that it is full: its queue drains in seconds.
const BUSY: Duration = Duration::from_secs(2);

impl Pipeline {
    /// Holds the answer's head until it is known to be one, then passes the answer on.
    pub(super) async fn hold(&self, sent: Sent) -> Result<Response<AnswerBody>, Box<Refused>> {
        let Sent { answer: Answer { response, lease }, mut record } = sent;
        let (mut parts, body) = response.into_parts();
        // The version is each connection's own: an engine of HTTP/1.0 does not make this one end.
        parts.version = Version::HTTP_11;
        if parts.status.is_informational() {
            let retry_after = self.parts.forward.retry_after();
            return Err(
                record.turned_away(Failure::Unreachable { why: "it switched protocols", retry_after })
            );
        }
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
        let stall = self.stall().unwrap_or_default();
        let mut body = AnswerBody::events(upstream, settings.held_event_bytes, stall, record)
            .telling(Arc::clone(&self.parts.forward));
        // An engine may send its head at once and the first event after the prefill.
        let opening = match self.parts.forward.first_byte() {
            None => body.first_event().await,
            Some(limit) => match timeout(limit, body.first_event()).await {
                Ok(opening) => opening,
                Err(_) => return Err(body.into_record().turned_away(Failure::Timeout { limit })),
            },
        };
        match opening {
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
        mut parts: http::response::Parts,
        mut upstream: Upstream,
        mut record: Record,
    ) -> Result<Response<AnswerBody>, Box<Refused>> {
        let mut chunks: VecDeque<Bytes> = VecDeque::new();
        let mut size = 0;
        loop {
            let frame = match (size, self.stall()) {
                (0, _) | (_, None) => upstream.body.frame().await,
                (_, Some(limit)) => match timeout(limit, upstream.body.frame()).await {
                    Ok(frame) => frame,
                    Err(_) => return Err(record.turned_away(Failure::Timeout { limit })),
                },
            };
            match frame {
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
        // Its length is what came, whatever the head said.
        parts.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(parts, AnswerBody::whole(whole, record)))
    }

    /// How long an answer may be silent once it has begun, where that is limited.
    fn stall(&self) -> Option<Duration> {
        let seconds = self.parts.settings.stall_timeout_seconds;
        (seconds > 0.0).then(|| Duration::from_secs_f64(seconds))
    }

    fn verdict(&self, status: StatusCode, body: &[u8]) -> Option<Said> {
        status.is_server_error().then(|| said(status.as_u16(), body))
    }

    fn crashed(&self, record: Record, hint: Hint) -> Box<Refused> {
        self.parts.forward.hint(hint);
        let failure = self.died_under(&record);
        record.turned_away(failure)
    }

    fn busy(&self) -> Failure {
        Failure::Busy { retry_after: BUSY }
    }
}

pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    const KIND: &[u8] = b"text/event-stream";
    let kind = headers.get(header::CONTENT_TYPE).map(|v| v.as_bytes());
    kind.is_some_and(|kind| kind.len() >= KIND.len() && kind[..KIND.len()].eq_ignore_ascii_case(KIND))
}
