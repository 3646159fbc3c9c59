//! Who sent a request, and how long they will wait.

use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::time::Duration;

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// The key under which tenants and prefixes are hashed; without it a hash says nothing.
#[derive(Debug, Clone, Copy)]
pub struct TenantKey(u64, u64);

impl TenantKey {
    /// A fresh random key.
    #[must_use]
    pub fn random() -> Self {
        Self(fastrand::u64(..), fastrand::u64(..))
    }

    /// The key held in 16 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let n = u128::from_le_bytes(bytes);
        Self(n as u64, (n >> 64) as u64)
    }

    /// The key as 16 bytes, to be kept for the next start.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.0) | (u128::from(self.1) << 64)).to_le_bytes()
    }

    /// The key as one for long texts (HighwayHash).
    pub(super) const fn long(self) -> highway::Key {
        highway::Key([self.0, self.1, 0, 0])
    }

    /// The keyed hash of `bytes` as 16 hex digits (SipHash-1-3).
    #[must_use]
    pub fn hash(&self, bytes: &[u8]) -> String {
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        hasher.write(bytes);
        let mut out = String::with_capacity(16);
        let _ = write!(out, "{:016x}", hasher.finish());
        out
    }
}

/// A tenant, as a keyed hash of its credential: never the credential itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(String);

impl Tenant {
    /// The tenant of requests that name none.
    #[must_use]
    pub fn anonymous() -> Self {
        Self("anonymous".to_owned())
    }

    /// The hash, or `anonymous`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hash as a number; 0 for `anonymous`.
    #[must_use]
    pub fn number(&self) -> u64 {
        u64::from_str_radix(&self.0, 16).unwrap_or(0)
    }
}

/// Who goes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Somebody waits for the answer.
    #[default]
    Interactive,
    /// Nobody does: it takes what the others leave.
    Batch,
}

/// What the headers say about the client.
#[derive(Debug, Clone)]
pub struct Client {
    /// Who pays: the hashed `Authorization` or `x-api-key`.
    pub tenant: Tenant,
    /// How long the client says it will wait for the answer to begin, where it says so.
    pub patience: Option<Duration>,
    /// The longest the client lets this request wait in the queue (`x-kvgate-max-wait`, seconds; 0: not
    /// at all).
    pub max_wait: Option<Duration>,
    /// Seconds to the first token after which the client has no use for the answer (`x-kvgate-ttft`).
    pub ttft: Option<Duration>,
    /// `x-kvgate-priority: batch` says that nobody waits for it; a client can only step back by it.
    pub priority: Priority,
    /// Which attempt this is by the client library's own count (0 first).
    pub retry: u32,
}

impl Client {
    /// Reads the headers; nonsense in them counts as absent.
    ///
    /// `x-stainless-read-timeout` (then `x-stainless-timeout`) is what the OpenAI and Anthropic
    /// libraries send: seconds, a decimal number.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap, key: &TenantKey) -> Self {
        let credential = headers.get(http::header::AUTHORIZATION).or_else(|| headers.get("x-api-key"));
        let tenant = credential.map_or_else(Tenant::anonymous, |value| Tenant(key.hash(value.as_bytes())));
        Self {
            tenant,
            patience: seconds(headers, "x-stainless-read-timeout")
                .or_else(|| seconds(headers, "x-stainless-timeout")),
            max_wait: text(headers, "x-kvgate-max-wait")
                .filter(|v| *v == "0")
                .map(|_| Duration::ZERO)
                .or_else(|| seconds(headers, "x-kvgate-max-wait")),
            ttft: seconds(headers, "x-kvgate-ttft"),
            priority: match text(headers, "x-kvgate-priority") {
                Some(word) if word.eq_ignore_ascii_case("batch") => Priority::Batch,
                _ => Priority::Interactive,
            },
            retry: text(headers, "x-stainless-retry-count").and_then(|v| v.parse().ok()).unwrap_or(0),
        }
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// A positive finite number of seconds, at most a day.
fn seconds(headers: &HeaderMap, name: &str) -> Option<Duration> {
    let value: f64 = text(headers, name)?.parse().ok()?;
    (value.is_finite() && value > 0.0).then(|| Duration::from_secs_f64(value.min(86_400.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_tenant_is_the_same_for_the_same_key_and_never_the_credential() {
        let key = TenantKey::from_bytes([7; 16]);
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static("Bearer sk-secret"));
        let one = Client::from_headers(&headers, &key).tenant;
        assert_eq!(one, Client::from_headers(&headers, &key).tenant);
        assert!(!one.as_str().contains("secret"));
        assert_ne!(one, Client::from_headers(&headers, &TenantKey::from_bytes([8; 16])).tenant);
        assert_eq!(TenantKey::from_bytes(key.to_bytes()).hash(b"x"), key.hash(b"x"));
    }

    #[test]
    fn nonsense_timeouts_count_as_absent() {
        let key = TenantKey::random();
        for bad in ["NaN", "-1", "0", "inf", "soon", ""] {
            let mut headers = HeaderMap::new();
            headers.insert("x-stainless-read-timeout", HeaderValue::from_static(bad));
            assert_eq!(Client::from_headers(&headers, &key).patience, None, "{bad}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-stainless-read-timeout", HeaderValue::from_static("12.5"));
        assert_eq!(Client::from_headers(&headers, &key).patience, Some(Duration::from_millis(12_500)));
    }
}
