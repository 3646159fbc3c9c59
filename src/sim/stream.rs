//! The body of a streamed answer: server-sent events, each in a chunk of its own.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::answer::{DONE, Letterhead};
use super::ask::Form;
use super::core::Live;
use super::fault::StreamEnd;
use super::outbox::{Delta, Taken};
use super::output;
use super::refusal::Refusal;

/// How usage is told in a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// An event of its own before `[DONE]`.
    pub at_end: bool,
    /// In each event.
    pub throughout: bool,
}

/// Events as they come; dropping it before its end aborts the request.
pub(super) struct EventStream {
    live: Option<Live>,
    head: Letterhead,
    usage: Usage,
    /// Output tokens of each choice.
    tokens: Vec<u64>,
    unfinished: usize,
    queue: VecDeque<Bytes>,
    /// A fault that ends the stream after so many tokens.
    end: Option<(u64, StreamEnd)>,
    cut: Cut,
}

/// How far the cutting of a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    No,
    /// What was written goes out first: an error would take it along.
    Flushing,
    Due,
}

impl EventStream {
    /// The stream of a request with so many choices.
    pub fn new(
        live: Live,
        head: Letterhead,
        choices: usize,
        usage: Usage,
        end: Option<(u64, StreamEnd)>,
    ) -> Self {
        Self {
            live: Some(live),
            head,
            usage,
            tokens: vec![0; choices],
            unfinished: choices,
            queue: VecDeque::new(),
            end,
            cut: Cut::No,
        }
    }

    /// A stream that says only why there is none: vLLM 0.32 answers a streamed request that meets
    /// its queue limit with status 200 and this.
    pub fn refused(head: Letterhead, refusal: &Refusal) -> Self {
        let queue = refusal.event().into_iter().chain([DONE.to_owned()]).map(Bytes::from).collect();
        Self {
            live: None,
            head,
            usage: Usage::default(),
            tokens: Vec::new(),
            unfinished: 0,
            queue,
            end: None,
            cut: Cut::No,
        }
    }

    fn take(&mut self, taken: Taken) {
        match taken {
            Taken::Dead => {
                self.queue.extend(Refusal::Dead.event().map(Bytes::from));
                self.queue.push_back(Bytes::from_static(DONE.as_bytes()));
                self.live = None;
            }
            Taken::Output(deltas) => {
                if self.head.form == Form::Chat && self.tokens.iter().all(|&n| n == 0) {
                    for index in 0..self.tokens.len() as u32 {
                        self.queue.push_back(self.head.role_event(index, self.usage.throughout).into());
                    }
                }
                for delta in deltas {
                    self.push(delta);
                }
                self.end_where_due();
            }
        }
    }

    fn push(&mut self, delta: Delta) {
        let seed = self.live.as_ref().map_or(0, |l| l.seed(delta.index));
        let text = output::text(seed, delta.from, delta.tokens);
        let Some(tokens) = self.tokens.get_mut(delta.index as usize) else { return };
        *tokens += u64::from(delta.tokens);
        let sofar = self.usage.throughout.then_some(*tokens);
        self.unfinished -= usize::from(delta.finish.is_some());
        let closing = self.unfinished == 0 && !self.usage.at_end;
        self.queue.push_back(self.head.text_event(delta.index, &text, delta.finish, sofar, closing).into());
    }

    fn end_where_due(&mut self) {
        let total: u64 = self.tokens.iter().sum();
        if let Some((after, end)) = self.end
            && total >= after
        {
            self.live = None;
            if end == StreamEnd::Cut {
                self.cut = Cut::Flushing;
            }
            return;
        }
        if self.unfinished > 0 {
            return;
        }
        if self.usage.at_end {
            self.queue.push_back(self.head.usage_event(total).into());
        }
        self.queue.push_back(Bytes::from_static(DONE.as_bytes()));
        if let Some(mut live) = self.live.take() {
            live.finish();
        }
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
            let Some(live) = &self.live else {
                return match self.cut {
                    Cut::No => Poll::Ready(None),
                    Cut::Flushing => {
                        self.cut = Cut::Due;
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                    Cut::Due => Poll::Ready(Some(Err(io::Error::other("the stream is cut on demand")))),
                };
            };
            let taken = ready!(live.outbox.poll_take(cx));
            self.take(taken);
        }
    }
}
