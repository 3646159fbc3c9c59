//! The tests of the whole.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod tokens;
