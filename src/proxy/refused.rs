//! A refusal with the record of the request it ends: what the steps of the path return where they do not go on.

use bytes::Bytes;
use http::StatusCode;

use super::record::Record;
use super::respond::{self, Refusal};

/// A refusal, and the record of the request it ends.
pub struct Refused {
    pub(super) refusal: Refusal,
    pub(super) record: Record,
}

impl Refused {
    /// Ends the record of one whose answer had begun; the event that says why.
    pub(super) fn inside_a_stream(self, too_long: StatusCode) -> Bytes {
        let Self { refusal, record } = self;
        let wire = refusal.wire(too_long).of(record.about.api);
        record.refused_in_stream(&wire, refusal.outcome());
        respond::refused_in_stream(&refusal, &wire)
    }
}

impl Record {
    pub(super) fn turned_away(self, refusal: impl Into<Refusal>) -> Box<Refused> {
        Box::new(Refused { refusal: refusal.into(), record: self })
    }
}
