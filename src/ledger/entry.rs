//! One request in the ledger, from arrival to end.

use std::sync::Arc;

use super::book::Slot;
use super::open::Ledger;
use super::record::Record;
use crate::request::{Api, ClientId, Outcome, RequestId, Shape, Tenant, Tokens};
use crate::telemetry::{self, Access, Event};

/// What is known of a request when it arrives.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// kvgate's id.
    pub id: RequestId,
    /// The client's id, where it gave one.
    pub client_id: Option<ClientId>,
    /// Who sent it, hashed.
    pub tenant: Tenant,
    /// Its features.
    pub shape: Shape,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// The outcome.
    pub outcome: Outcome,
    /// The status sent to the client; 0 where none was.
    pub status: u16,
    /// The reason label of a refusal.
    pub reason: Option<&'static str>,
}

/// One request in flight. It ends exactly once: by [`Entry::end`], or as [`Outcome::ClientGone`]
/// where it is dropped before that.
#[derive(Debug)]
pub struct Entry {
    ledger: Ledger,
    slot: Arc<Slot>,
    open: bool,
}

impl Entry {
    pub(super) fn new(ledger: Ledger, slot: Arc<Slot>) -> Self {
        Self { ledger, slot, open: true }
    }

    /// kvgate's id of this request.
    #[must_use]
    pub fn id(&self) -> &str {
        self.slot.id()
    }

    /// The record as it stands.
    #[must_use]
    pub fn record(&self) -> Record {
        self.slot.record()
    }

    /// The body was read: these are the request's features. Later calls change nothing.
    pub fn shaped(&self, shape: Shape) {
        self.slot.shaped(shape);
    }

    /// The prompt was counted; the time from here to [`Entry::send`] is the time in the queue.
    pub fn counted(&self, prompt_tokens: Tokens) {
        self.slot.counted(prompt_tokens);
    }

    /// The request goes to the engine with so many tokens reserved: call it before the first byte does.
    ///
    /// When this returns the journal holds the record, or it could not within 250 ms, which has then
    /// been counted and said; the request goes on either way. Needs a runtime with a timer; under a
    /// paused clock a journal on disk looks stuck (its thread does not stop the clock), so tests of
    /// that kind want a ledger in memory. Cancel-safe: dropped midway, the entry still ends properly.
    pub async fn send(&self, reserved: Tokens) {
        self.slot.admit(reserved);
        if let Some(journal) = self.ledger.journal() {
            journal.open(self.slot.record()).await;
        }
    }

    /// The first token was passed on; later calls change nothing.
    pub fn first_token(&self) {
        self.slot.first_token();
    }

    /// So many output tokens were passed on in all; a smaller number than before changes nothing.
    pub fn output(&self, so_far: Tokens) {
        self.slot.output(so_far);
    }

    /// The head of the answer goes out with this status: what the access line says where the client leaves.
    pub fn answering(&self, status: u16) {
        self.slot.answering(status);
    }

    /// The request ended: writes the access line and forgets it.
    pub fn end(mut self, ending: Ending) {
        self.finish(ending);
    }

    fn finish(&mut self, ending: Ending) {
        if !std::mem::replace(&mut self.open, false) {
            return;
        }
        self.ledger.book().end(&self.slot, ending);
        let record = self.slot.record();
        if self.slot.was_admitted()
            && let Some(journal) = self.ledger.journal()
        {
            journal.end(&record);
        }
        let total = self.slot.total();
        telemetry::emit(Event::Ended(&Access {
            api: record.shape.api.unwrap_or(Api::Other).label(),
            outcome: ending.outcome.label(),
            reason: ending.reason,
            status: ending.status,
            prompt_tokens: record.shape.prompt_tokens,
            output_tokens: record.output_tokens,
            queued: self.slot.queued(total),
            ttft: self.slot.ttft(),
            total,
            id: record.id,
            client_id: record.client_id,
            tenant: record.tenant,
        }));
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let ending = Ending { outcome: Outcome::ClientGone, status: self.slot.status(), reason: None };
        self.finish(ending);
    }
}
