//! A scripted engine on a raw socket: a test sees each request's exact bytes and writes the answer's.
//!
//! What the gateway's watcher asks (`/health`, `/v1/models`, `/version`, `/metrics`, `/tokenize`) is
//! answered by itself, from a [`Face`] that the test may change.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::client::header_values;
use super::soon;

/// What the engine says of itself.
#[derive(Debug, Clone)]
pub struct Face {
    /// Status of `/health`.
    pub health: u16,
    /// `process_start_time_seconds`.
    pub start_time: f64,
    /// `max_model_len`.
    pub context: u64,
    /// KV-cache blocks of 16 tokens.
    pub blocks: u64,
    /// Requests that run, as its metrics say.
    pub running: u64,
    /// Requests that wait, as its metrics say.
    pub waiting: u64,
    /// `/metrics` in place of the page made of the above.
    pub page: Option<Vec<u8>>,
    /// How often `/metrics` was read.
    pub reads: u64,
    /// Path prefix of everything.
    pub base: &'static str,
}

impl Default for Face {
    fn default() -> Self {
        Self {
            health: 200,
            start_time: 1.79e9,
            context: 2048,
            blocks: 257,
            running: 0,
            waiting: 0,
            page: None,
            reads: 0,
            base: "",
        }
    }
}

impl Face {
    fn metrics(&self) -> Vec<u8> {
        if let Some(page) = &self.page {
            return page.clone();
        }
        let Self { start_time, blocks, running, waiting, .. } = self;
        format!(
            "process_start_time_seconds {start_time}\n\
             vllm:num_requests_running{{engine=\"0\",model_name=\"fake\"}} {running}\n\
             vllm:num_requests_waiting{{engine=\"0\",model_name=\"fake\"}} {waiting}\n\
             vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"fake\"}} 0.0\n\
             vllm:num_preemptions_total{{engine=\"0\",model_name=\"fake\"}} 0.0\n\
             vllm:cache_config_info{{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"{blocks}\"}} 1.0\n"
        )
        .into_bytes()
    }

    /// The answer to what the watcher asks.
    fn own(&mut self, target: &str) -> Option<Vec<u8>> {
        let path = target.split('?').next().unwrap().strip_prefix(self.base)?;
        Some(match path {
            "/health" => whole(self.health, "application/json", b"{}"),
            "/version" => whole(200, "application/json", br#"{"version":"0.0.0"}"#),
            "/v1/models" => {
                let model = json!({"id": "fake", "object": "model", "max_model_len": self.context});
                let list = json!({"object": "list", "data": [model]}).to_string();
                whole(200, "application/json", list.as_bytes())
            }
            "/metrics" => {
                self.reads += 1;
                whole(200, "text/plain; version=0.0.4", &self.metrics())
            }
            "/tokenize" => whole(404, "application/json", br#"{"detail":"Not Found"}"#),
            _ => return None,
        })
    }
}

/// A whole answer with Content-Length.
pub fn whole(status: u16, kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} Said\r\nserver: fake\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

struct Shared {
    face: Mutex<Face>,
    to: mpsc::UnboundedSender<Exchange>,
    connections: AtomicUsize,
    /// Connections held without a request are closed at this word.
    close_idle: Notify,
}

/// The scripted engine.
pub struct Engine {
    addr: SocketAddr,
    shared: Arc<Shared>,
    exchanges: mpsc::UnboundedReceiver<Exchange>,
    task: Option<JoinHandle<()>>,
}

/// One request that the gateway sent, and the connection on which it waits for its answer.
pub struct Exchange {
    /// Which connection, counted from 1 over those that carried such a request.
    pub connection: usize,
    /// Request line and headers as they came.
    pub head: String,
    /// The body as it came, chunks joined.
    pub body: Vec<u8>,
    stream: TcpStream,
    shared: Arc<Shared>,
}

impl Engine {
    /// Listens on a port of its own.
    pub async fn start() -> Self {
        Self::with(Face::default()).await
    }

    /// With another face.
    pub async fn with(face: Face) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (to, exchanges) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            face: Mutex::new(face),
            to,
            connections: AtomicUsize::new(0),
            close_idle: Notify::new(),
        });
        let task = Some(tokio::spawn(listen(listener, Arc::clone(&shared))));
        Self { addr, shared, exchanges, task }
    }

    /// `http://127.0.0.1:PORT` and the base path.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.addr, self.shared.face.lock().unwrap().base)
    }

    /// `127.0.0.1:PORT`
    pub fn host(&self) -> String {
        self.addr.to_string()
    }

    /// Changes the face.
    pub fn face<T>(&self, change: impl FnOnce(&mut Face) -> T) -> T {
        change(&mut self.shared.face.lock().unwrap())
    }

    /// The next request that the engine must answer.
    pub async fn next(&mut self) -> Exchange {
        soon("a request at the engine", self.exchanges.recv()).await.unwrap()
    }

    /// Whether a request has come.
    pub fn asked(&mut self) -> bool {
        self.exchanges.try_recv().is_ok()
    }

    /// Closes idle connections; those made later stay.
    pub fn close_idle(&self) {
        self.shared.close_idle.notify_waiters();
    }

    /// Nobody listens any more, and idle connections are closed.
    pub async fn die(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
        self.close_idle();
    }

    /// Listens again, as another process.
    pub async fn revive(&mut self) {
        self.face(|f| f.start_time += 100.0);
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.addr).unwrap();
        let listener = socket.listen(256).unwrap();
        self.task = Some(tokio::spawn(listen(listener, Arc::clone(&self.shared))));
    }
}

async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let shared = Arc::clone(&shared);
        tokio::spawn(async move { serve(stream, shared, None).await });
    }
}

/// Reads requests until one is for the test, which then owns the connection.
async fn serve(mut stream: TcpStream, shared: Arc<Shared>, mut number: Option<usize>) {
    let mut got = Vec::new();
    loop {
        let idle = async {
            // Only while nothing of a request has come.
            shared.close_idle.notified().await;
        };
        let head = tokio::select! {
            head = read_head(&mut stream, &mut got) => head,
            () = idle => return,
        };
        let Some(head) = head else { return };
        let Some(body) = read_body(&mut stream, &mut got, &head).await else { return };
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let own = shared.face.lock().unwrap().own(&target);
        match own.filter(|_| !head.contains("x-scripted: yes")) {
            Some(answer) => {
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
            None => {
                let next = || shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
                let connection = *number.get_or_insert_with(next);
                let exchange = Exchange { connection, head, body, stream, shared: Arc::clone(&shared) };
                let _ = shared.to.send(exchange);
                return;
            }
        }
    }
}

async fn read_head(stream: &mut TcpStream, got: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(at) = memchr::memmem::find(got, b"\r\n\r\n") {
            let head = got.drain(..at + 4).collect();
            return Some(String::from_utf8(head).unwrap());
        }
        if stream.read_buf(got).await.ok()? == 0 {
            return None;
        }
    }
}

async fn take(stream: &mut TcpStream, got: &mut Vec<u8>, count: usize) -> Option<Vec<u8>> {
    while got.len() < count {
        if stream.read_buf(got).await.ok()? == 0 {
            return None;
        }
    }
    Some(got.drain(..count).collect())
}

async fn read_body(stream: &mut TcpStream, got: &mut Vec<u8>, head: &str) -> Option<Vec<u8>> {
    if header_values(head, "transfer-encoding").is_empty() {
        let length = header_values(head, "content-length").first().map_or(0, |v| v.parse().unwrap());
        return take(stream, got, length).await;
    }
    let mut body = Vec::new();
    loop {
        let line = loop {
            if let Some(at) = memchr::memmem::find(got, b"\r\n") {
                break got.drain(..at + 2).collect::<Vec<u8>>();
            }
            if stream.read_buf(got).await.ok()? == 0 {
                return None;
            }
        };
        let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        let mut chunk = take(stream, got, size + 2).await?;
        chunk.truncate(size);
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(&chunk);
    }
}

impl Exchange {
    /// All values of a header of the request.
    pub fn all(&self, name: &str) -> Vec<&str> {
        header_values(&self.head, name)
    }

    /// The first value of a header of the request.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// The request's first line.
    pub fn line(&self) -> &str {
        self.head.split("\r\n").next().unwrap()
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends bytes that the gateway may not want to the end.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// Closes the connection in order.
    pub async fn close(mut self) {
        let _ = self.stream.shutdown().await;
        // What has not been read would turn the close into a reset.
        let _ = soon("the gateway's close", self.stream.read_to_end(&mut Vec::new())).await;
    }

    /// Begins a stream of events.
    pub async fn stream(&mut self) {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        self.send(head).await;
    }

    /// Sends one chunk.
    pub async fn chunk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let framed = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        self.send(framed).await;
    }

    /// Ends a chunked body, and waits for the next request on this connection.
    pub async fn end_chunks(mut self) {
        self.send("0\r\n\r\n").await;
        self.again();
    }

    /// Sends a whole JSON answer, and waits for the next request on this connection.
    pub async fn json(mut self, status: u16, body: &Value) {
        self.send(whole(status, "application/json", body.to_string().as_bytes())).await;
        self.again();
    }

    /// Waits for the next request on this connection.
    pub fn again(self) {
        tokio::spawn(serve(self.stream, self.shared, Some(self.connection)));
    }

    /// Resets the connection.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Waits until the gateway has closed the connection.
    pub async fn left(&mut self) {
        let mut rest = Vec::new();
        // An abortive close is a close as well.
        let _ = soon("the gateway's close", self.stream.read_to_end(&mut rest)).await;
        assert_eq!(rest, b"", "more than a close");
    }
}
