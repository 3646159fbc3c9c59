//! One file per command.

pub mod sim;
