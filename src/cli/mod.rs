//! One file per command.

pub mod reports;
