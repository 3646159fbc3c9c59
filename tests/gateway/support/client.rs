//! A client on a raw socket: what goes out and comes back is seen byte for byte.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::soon;

/// One connection to the gateway.
pub struct Raw {
    stream: TcpStream,
    got: Vec<u8>,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Status line and headers, as they came.
    pub head: String,
    /// The body, chunks joined.
    pub body: Vec<u8>,
}

impl Answer {
    /// All values of a header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        header_values(&self.head, name)
    }

    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The `code` of an OpenAI-style error, after checking the body's shape against the headers.
    pub fn code(&self) -> String {
        let json = self.json();
        let error = json["error"].as_object().unwrap_or_else(|| panic!("no error object: {self:?}"));
        let mut keys: Vec<_> = error.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["code", "message", "param", "type"]);
        let code = error["code"].as_str().unwrap().to_owned();
        assert_eq!(self.header("x-kvgate-reason"), Some(code.as_str()));
        assert!(self.header("x-kvgate-request-id").is_some() && self.header("x-request-id").is_some());
        assert_eq!(self.header("content-type"), Some("application/json"));
        if matches!(self.status, 429 | 503) {
            let seconds: u64 = self.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=60).contains(&seconds), "{seconds}");
            let millis: u64 = self.header("retry-after-ms").unwrap().parse().unwrap();
            assert!((1000..=60_000).contains(&millis) && millis.div_ceil(1000) <= seconds, "{millis}");
        } else {
            assert_eq!(self.header("retry-after"), None);
        }
        code
    }
}

/// All values of a header in a raw head.
pub fn header_values<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    head.split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
        .collect()
}

impl Raw {
    /// A new connection.
    pub async fn connect(addr: SocketAddr) -> Self {
        let stream = soon("a connection", TcpStream::connect(addr)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, got: Vec::new() }
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).await.unwrap();
    }

    /// Sends bytes, where the other side may have closed.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        soon("room to send", self.stream.write_all(bytes.as_ref())).await
    }

    /// Says that nothing more will be sent.
    pub async fn half_close(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    async fn more(&mut self, what: &str) -> io::Result<usize> {
        soon(what, self.stream.read_buf(&mut self.got)).await
    }

    /// So many bytes.
    pub async fn take(&mut self, count: usize) -> Vec<u8> {
        while self.got.len() < count {
            let n = self.more("the rest of the bytes").await.unwrap();
            assert!(n > 0, "ended early: {}", String::from_utf8_lossy(&self.got));
        }
        self.got.drain(..count).collect()
    }

    /// Everything up to and with `end`.
    pub async fn through(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.got, end) {
                return self.got.drain(..at + end.len()).collect();
            }
            let n = self.more(&format!("{:?}", String::from_utf8_lossy(end))).await.unwrap();
            assert!(n > 0, "ended before {:?}: {}", end, String::from_utf8_lossy(&self.got));
        }
    }

    /// An answer's head.
    pub async fn head(&mut self) -> Answer {
        let head = String::from_utf8(self.through(b"\r\n\r\n").await).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: Vec::new() }
    }

    /// One chunk of a chunked body; empty for the last, after which nothing of the body is left.
    pub async fn chunk(&mut self) -> Vec<u8> {
        let size = self.through(b"\r\n").await;
        let size = usize::from_str_radix(std::str::from_utf8(&size).unwrap().trim(), 16).unwrap();
        let mut chunk = self.take(size + 2).await;
        assert_eq!(chunk.split_off(size), b"\r\n");
        chunk
    }

    /// All chunks to the proper end of the body, joined.
    pub async fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let chunk = self.chunk().await;
            if chunk.is_empty() {
                return body;
            }
            body.extend_from_slice(&chunk);
        }
    }

    /// A whole answer to anything but HEAD.
    pub async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        if answer.header("transfer-encoding").is_some() {
            answer.body = self.chunks().await;
        } else if let Some(length) = answer.header("content-length") {
            let length = length.parse().unwrap();
            answer.body = self.take(length).await;
        }
        answer
    }

    /// All that comes until the connection ends, and the error that it ended with.
    pub async fn rest(&mut self) -> (Vec<u8>, Option<io::ErrorKind>) {
        loop {
            match self.more("the end of the connection").await {
                Ok(0) => return (std::mem::take(&mut self.got), None),
                Ok(_) => {}
                Err(e) => return (std::mem::take(&mut self.got), Some(e.kind())),
            }
        }
    }

    /// Whether nothing more than what was taken has come so far.
    pub fn nothing_yet(&mut self) -> bool {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = self.stream.try_read(&mut buffer) {
            self.got.extend_from_slice(&buffer[..n]);
        }
        self.got.is_empty()
    }
}

/// A request's bytes; Host and Content-Length are added.
pub fn request(method: &str, target: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut out = format!("{method} {target} HTTP/1.1\r\nHost: gate.test\r\n").into_bytes();
    for (name, value) in headers {
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    if !body.is_empty() || method == "POST" {
        out.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
    out
}

/// A GET.
pub fn get(target: &str) -> Vec<u8> {
    request("GET", target, &[], "")
}

/// A POST of JSON.
pub fn post(target: &str, headers: &[(&str, &str)], body: &Value) -> Vec<u8> {
    let mut all = vec![("Content-Type", "application/json")];
    all.extend_from_slice(headers);
    request("POST", target, &all, body.to_string())
}

/// A completion.
pub fn completion(body: &Value) -> Vec<u8> {
    post("/v1/completions", &[], body)
}
