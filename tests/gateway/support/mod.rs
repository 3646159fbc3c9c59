//! What the tests of the whole gateway stand on: a gateway in process, engines, a raw client.

pub mod client;
pub mod engine;
pub mod gate;
pub mod process;

use std::time::Duration;

pub use client::{Answer, Raw, completion, get, request};
pub use engine::{Engine, Exchange};
pub use gate::Gate;
pub use process::Process;

/// Longer than anything here takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for what must come.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not come within {PATIENCE:?}"),
    }
}

/// Asks again and again until there is an answer.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    soon(what, async {
        loop {
            if let Some(value) = ask().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}
