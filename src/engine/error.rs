//! What can go wrong between kvgate and the engine.

use std::path::PathBuf;
use std::time::Duration;

/// Why a setting was refused or a call to the engine failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The engine's URL is not one kvgate can use.
    #[error("engine url `{url}`: {reason}")]
    Url {
        /// As configured, without a password.
        url: String,
        /// What is wrong and what to write instead.
        reason: &'static str,
    },
    /// A number is out of its range.
    #[error("engine.{key} is {value}; it must be {range}")]
    Range {
        /// The setting.
        key: &'static str,
        /// The configured value.
        value: f64,
        /// The allowed range, in words.
        range: &'static str,
    },
    /// The engine's key file cannot be used.
    #[error("engine key file {path}: {reason}")]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The system's words, or what is wrong with the content.
        reason: String,
    },
    /// Nobody listens at the engine's address.
    #[error("the engine refused the connection")]
    Refused,
    /// The call took longer than allowed: nothing is known.
    #[error("the engine did not answer within {} ms", after.as_millis())]
    Timeout {
        /// The limit.
        after: Duration,
    },
    /// The connection ended before the answer did.
    #[error("the engine closed the connection before its answer was complete")]
    Reset,
    /// The address cannot be reached or resolved.
    #[error("the engine's address cannot be reached: {reason}")]
    Unreachable {
        /// The system's words.
        reason: String,
    },
    /// The answer is longer than kvgate reads.
    #[error("the engine's answer is longer than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The answer is not what the protocol says.
    #[error("the engine's answer cannot be understood: {reason}")]
    BadAnswer {
        /// What is wrong with it.
        reason: String,
    },
}
