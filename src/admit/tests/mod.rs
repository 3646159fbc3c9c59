//! The whole of the gate against a simulated engine, in virtual time.

mod acceptance;
mod driver;
mod engine;
mod loads;
