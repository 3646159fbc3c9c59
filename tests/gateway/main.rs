<<<<<<< HEAD
//! The gateway from outside: one test binary.
=======
//! The tests of the whole.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
>>>>>>> tokens

mod journal;
mod rooms;
mod tokens;
