//! Log lines that nobody takes hold up nobody: the binary itself, with its stderr a pipe.

use kvgate::sim;
use serde_json::json;

use crate::support::{Process, completion, get, soon, until};

/// More access lines than a pipe of 64 KiB and the bench of those that wait hold together.
const REQUESTS: usize = 600;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_nobody_reads_holds_up_nobody_and_is_whole_once_it_is_read() {
    let engine = sim::Settings { step_ms: 0.1, ..sim::Settings::default() };
    let sim = sim::start_with_log(engine, std::io::sink()).await.unwrap();
    let mut gate = tokio::task::block_in_place(|| Process::start(&sim.url(), &[]));
    until("readiness", async || (gate.admin(get("/readyz")).await.status == 200).then_some(())).await;
    let ask = completion(&json!({"prompt": [7, 7, 7], "max_tokens": 1}));
    for _ in 0..REQUESTS {
        assert_eq!(soon("an answer", gate.ask(&ask)).await.status, 200);
    }
    assert_eq!(gate.admin(get("/livez")).await.status, 200);
    // Nothing was dropped: it waited for its reader.
    tokio::task::block_in_place(|| {
        for _ in 0..REQUESTS {
            gate.line(|said| said["message"] == "request");
        }
    });
}
