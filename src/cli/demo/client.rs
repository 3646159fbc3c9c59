//! The demo's client: one request, one answer, with the times that matter.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// What came back.
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
    /// Until the first byte of the body.
    pub first: Duration,
}

impl Reply {
    /// `data:` events with content.
    pub fn events(&self) -> usize {
        self.text.lines().filter(|l| l.starts_with("data: {")).count()
    }

    /// A field of a JSON body, as text.
    pub fn field(&self, pointer: &str) -> String {
        let value: Value = serde_json::from_str(&self.text).unwrap_or_default();
        value
            .pointer(pointer)
            .map_or_else(String::new, |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
    }

    /// A header, as text.
    pub fn header(&self, name: &str) -> String {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
    }
}

/// Sends one request on a connection of its own.
///
/// # Errors
/// Where no whole answer comes.
pub async fn call(to: SocketAddr, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Reply> {
    let stream = TcpStream::connect(to).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let drive = async {
        let _ = connection.await;
        std::future::pending::<anyhow::Result<Reply>>().await
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", to.to_string())
        .header("content-type", "application/json")
        .body(Full::new(body.map_or_else(Bytes::new, |b| Bytes::from(b.to_string()))))?;
    let begun = Instant::now();
    let exchange = async move {
        let mut response = sender.send_request(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut bytes = Vec::new();
        let mut first = None;
        while let Some(frame) = response.frame().await {
            let frame = frame.context("the answer was cut off")?;
            first.get_or_insert_with(|| begun.elapsed());
            bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |b| b));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Reply { status, headers, text, first: first.unwrap_or_else(|| begun.elapsed()) })
    };
    tokio::select! {
        reply = exchange => reply,
        never = drive => never,
    }
}
