//! Log lines that nobody takes hold up nobody: the binary itself, with its stderr a pipe.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Stdio};

use kvgate::sim;
use serde_json::{Value, json};

use crate::support::gate::tokenizer;
use crate::support::{Raw, completion, soon, until};

/// More access lines than a pipe of 64 KiB and the bench of those that wait hold together.
const REQUESTS: usize = 600;

/// A gateway as a process of its own.
struct Process {
    child: Child,
    log: BufReader<ChildStderr>,
    data: SocketAddr,
    admin: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Started, its log read up to the line that says where it listens.
    fn start(engine: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvgate"))
            .args(["serve", "--engine", engine, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .arg("--tokenizer")
            .arg(tokenizer())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let listening = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended");
            let said: Value = serde_json::from_str(&line).unwrap();
            if said["message"] == "listening" {
                break said;
            }
        };
        let address = |key: &str| listening[key].as_str().unwrap().parse().unwrap();
        Self { child, log, data: address("data"), admin: address("admin") }
    }
}

async fn status(addr: SocketAddr, request: &[u8]) -> u16 {
    let mut client = Raw::connect(addr).await;
    client.send(request).await;
    client.answer().await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_nobody_reads_holds_up_nobody_and_is_whole_once_it_is_read() {
    let engine = sim::Settings { step_ms: 0.1, ..sim::Settings::default() };
    let sim = sim::start_with_log(engine, std::io::sink()).await.unwrap();
    let mut gate = tokio::task::block_in_place(|| Process::start(&sim.url()));
    let page = |path| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    until("readiness", async || (status(gate.admin, &page("/readyz")).await == 200).then_some(())).await;
    let ask = completion(&json!({"prompt": [7, 7, 7], "max_tokens": 1}));
    for _ in 0..REQUESTS {
        assert_eq!(soon("an answer", status(gate.data, &ask)).await, 200);
    }
    assert_eq!(status(gate.admin, &page("/livez")).await, 200);
    // Nothing was dropped: it waited for its reader.
    let mut seen = 0;
    tokio::task::block_in_place(|| {
        let mut line = String::new();
        while seen < REQUESTS {
            line.clear();
            assert!(gate.log.read_line(&mut line).unwrap() > 0, "it ended after {seen}");
            let said: Value = serde_json::from_str(&line).unwrap();
            seen += usize::from(said["message"] == "request");
        }
    });
}
