//! The two processes: the simulated engine and the gateway.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvgate::config::Config;

use crate::engine::Engine;
use crate::policy::Rule;

/// How long a process may take until it serves.
const READY: Duration = Duration::from_secs(30);

/// A process that ends with its owner.
pub struct Process {
    child: Child,
    /// Where it serves.
    pub at: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kvgate() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kvgate"))
}

/// Starts `kvgate sim` as this engine.
pub fn engine(engine: &Engine, folder: &Path) -> Process {
    let mut child = kvgate()
        .args(["sim", "--listen", "127.0.0.1:0", "--preset", &engine.settings.model])
        .args(["--stretch", &engine.stretch.to_string()])
        .arg("--tokenizer-dir")
        .arg(folder.join("tokenizer"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    let at = line.rsplit_once("http://").expect("it says where it is").1.trim().parse().unwrap();
    // What it says later is not wanted, but must not block it.
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    Process { child, at }
}

/// Starts `kvgate serve` with this rule in front of the engine, and waits until it is ready.
pub fn gateway(rule: &Rule, engine: SocketAddr, folder: &Path) -> Process {
    let (at, admin) = (free(), free());
    let mut config = Config::default();
    config.engine.url = format!("http://{engine}");
    config.engine.scrape_interval_seconds = rule.scrape.max(0.05);
    config.proxy.listen = at;
    config.operate.listen = admin;
    config.admit = rule.settings.clone().unwrap_or_default();
    let file = folder.join("kvgate.toml");
    std::fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
    let mut command = kvgate();
    command.arg("serve").arg("--config").arg(&file);
    if rule.settings.is_none() {
        command.args(["--mode", "off"]);
    }
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let process = Process { child, at };
    let begun = Instant::now();
    while !get(admin, "/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
        assert!(begun.elapsed() < READY, "the gateway does not get ready: see {}", file.display());
        std::thread::sleep(Duration::from_millis(50));
    }
    process
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A page, head and all, where there is one.
pub fn get(at: SocketAddr, path: &str) -> Option<String> {
    exchange(at, &format!("GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n"))
}

/// The answer to a JSON body, head and all, where there is one.
pub fn post(at: SocketAddr, path: &str, body: &str) -> Option<String> {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\ncontent-length: {length}");
    exchange(at, &format!("{head}\r\ncontent-type: application/json\r\n\r\n{body}"))
}

fn exchange(at: SocketAddr, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
