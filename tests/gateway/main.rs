//! The gateway from outside: one test binary.

mod journal;
mod rooms;
mod tokens;
