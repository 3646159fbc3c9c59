//! The gateway from outside: one test binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod journal;
mod rooms;
mod tokens;
