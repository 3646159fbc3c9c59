//! Request ids: ours, the client's, and the one the engine is given.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

/// kvgate's own id of a request: unique, short, the same in answer, ledger and logs.
///
/// Form: `kg-` + 8 hex digits drawn at start + `-` + a counter in hex.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// The next id of this process.
    #[must_use]
    pub fn next() -> Self {
        static RUN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let run = RUN.get_or_init(|| fastrand::u32(..));
        Self(format!("kg-{run:08x}-{:x}", COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The client's `x-request-id`, once found harmless: 1 to 128 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientId(String);

impl ClientId {
    /// Longest id taken over, in bytes.
    pub const MAX_LEN: usize = 128;

    /// The id, or `None` where the header is absent, empty, too long, or not visible ASCII.
    #[must_use]
    pub fn from_header(value: Option<&HeaderValue>) -> Option<Self> {
        let bytes = value?.as_bytes();
        let fine = (1..=Self::MAX_LEN).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
        fine.then(|| Self(bytes.iter().map(|&b| char::from(b)).collect()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The id to send to the engine: the client's with ours appended, so that the engine's crash dump
/// names ours (vLLM ≥ 0.6 uses `X-Request-Id` as its own id).
///
/// An id in the form that prefill/decode disaggregation uses carries addresses that the engine
/// parses (vLLM 0.32 `p2p_nccl_connector.py`: `___prefill_addr_…___decode_addr_…`); it goes
/// through untouched.
#[must_use]
pub fn engine_id(ours: &RequestId, client: Option<&ClientId>) -> String {
    match client {
        Some(c) if c.0.contains("___prefill_addr_") || c.0.contains("___decode_addr_") => c.0.clone(),
        Some(c) => format!("{}-{ours}", c.0),
        None => ours.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_never_repeat() {
        let ids: std::collections::HashSet<_> = (0..1000).map(|_| RequestId::next()).collect();
        assert_eq!(ids.len(), 1000);
    }

    #[test]
    fn a_client_id_must_be_short_and_visible() {
        let read = |s: &[u8]| ClientId::from_header(Some(&HeaderValue::from_bytes(s).unwrap()));
        assert!(read(b"abc-123").is_some());
        assert!(read(b"").is_none());
        assert!(read(b"a b").is_none());
        assert!(read("é".as_bytes()).is_none());
        assert!(read(&[b'x'; 129]).is_none());
        assert!(ClientId::from_header(None).is_none());
    }

    #[test]
    fn the_engine_id_ends_with_ours_unless_disaggregated() {
        let ours = RequestId::next();
        let client = |s: &'static str| ClientId::from_header(Some(&HeaderValue::from_static(s)));
        assert_eq!(engine_id(&ours, client("abc").as_ref()), format!("abc-{ours}"));
        let pd = "___prefill_addr_10.0.0.1:80___decode_addr_10.0.0.2:80_x";
        assert_eq!(engine_id(&ours, client(pd).as_ref()), pd);
        assert_eq!(engine_id(&ours, None), ours.to_string());
    }
}
