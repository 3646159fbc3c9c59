//! The gateway's tests from outside: one binary.

mod journal;
