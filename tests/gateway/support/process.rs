//! The binary itself, as a process of its own.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use serde_json::Value;

use super::client::{Answer, Raw};
use super::gate::tokenizer;

/// `kvgate serve`; dropped, it is killed.
pub struct Process {
    child: Child,
    /// Its log.
    pub log: BufReader<ChildStderr>,
    /// The data port.
    pub data: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Started, its log read up to the line that says where it listens. Blocks.
    pub fn start(engine: &str, args: &[&OsStr]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvgate"))
            .args(["serve", "--engine", engine, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .arg("--tokenizer")
            .arg(tokenizer())
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let listening = line(&mut log, |said| said["message"] == "listening");
        let address = |key: &str| listening[key].as_str().unwrap().parse().unwrap();
        Self { child, log, data: address("data"), admin: address("admin") }
    }

    /// The next line of the log that is meant. Blocks.
    pub fn line(&mut self, meant: impl Fn(&Value) -> bool) -> Value {
        line(&mut self.log, meant)
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for its end. Blocks.
    pub fn ended(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// One request to the data port.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        ask(self.data, request).await
    }

    /// One request to the admin port.
    pub async fn admin(&self, request: impl AsRef<[u8]>) -> Answer {
        ask(self.admin, request).await
    }
}

async fn ask(addr: SocketAddr, request: impl AsRef<[u8]>) -> Answer {
    let text = String::from_utf8(request.as_ref().to_vec()).unwrap();
    let mut client = Raw::connect(addr).await;
    client.send(text.replace("Host: gate.test", "Host: localhost")).await;
    client.answer().await
}

fn line(log: &mut BufReader<ChildStderr>, meant: impl Fn(&Value) -> bool) -> Value {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended");
        let said: Value = serde_json::from_str(&line).unwrap();
        if meant(&said) {
            return said;
        }
    }
}
