//! The gateway from outside: one test binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::panic, reason = "a test fails by panicking")]

mod admin;
mod admission;
mod cancel;
mod framing;
mod headers;
mod hostile;
mod journal;
mod life;
mod logs;
mod reload;
mod rooms;
mod scenarios;
mod soak;
mod streaming;
mod support;
mod tokens;
