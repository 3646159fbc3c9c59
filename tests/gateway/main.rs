//! The tests of the whole.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod tokens;
