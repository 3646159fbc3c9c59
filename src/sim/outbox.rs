//! What the engine has for one request and its answer has not taken yet.
//!
//! Bounded without a queue: what is not taken in time is merged, as vLLM's output collector does.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// The model ended it.
    Stop,
    /// The output limit was reached.
    Length,
}

impl Finish {
    /// The word in `finish_reason`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// New output of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delta {
    /// Which choice.
    pub index: u32,
    /// Output tokens it had before.
    pub from: u32,
    /// New tokens.
    pub tokens: u32,
    /// Set with the last token.
    pub finish: Option<Finish>,
}

/// What there was to take.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// New output, at least one delta.
    Output(Vec<Delta>),
    /// The engine is dead: there will be no more.
    Dead,
}

#[derive(Debug, Default)]
struct Inner {
    ready: Vec<Delta>,
    waker: Option<Waker>,
    stalled: bool,
    dead: bool,
}

/// One request's output on its way to the client.
#[derive(Debug, Default)]
pub(super) struct Outbox(Mutex<Inner>);

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Inner)) {
        let waker = {
            let mut inner = self.lock();
            change(&mut inner);
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Adds output.
    pub fn push(&self, delta: Delta) {
        self.change(|inner| match inner.ready.iter_mut().find(|d| d.index == delta.index) {
            Some(earlier) => {
                earlier.tokens += delta.tokens;
                earlier.finish = delta.finish;
            }
            None => inner.ready.push(delta),
        });
    }

    /// Says that the engine is dead.
    pub fn kill(&self) {
        self.change(|inner| inner.dead = true);
    }

    /// From now on nothing can be taken until the engine dies.
    pub fn stall(&self) {
        self.change(|inner| inner.stalled = true);
    }

    /// Takes what there is, or waits for it. Nothing is lost where the caller stops to wait.
    pub fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Taken> {
        let mut inner = self.lock();
        if !inner.stalled && !inner.ready.is_empty() {
            return Poll::Ready(Taken::Output(std::mem::take(&mut inner.ready)));
        }
        if inner.dead {
            return Poll::Ready(Taken::Dead);
        }
        inner.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
