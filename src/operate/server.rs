//! The admin port's server: a thread and a runtime of its own.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::api::{Call, Handles};

/// Connections served at once.
const MOST_CONNECTIONS: usize = 1024;
/// Largest body of a changing call, bytes.
const MOST_BODY: usize = 64 << 10;
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time a client may take for its body: the places are few, and probes need one.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no admin port.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address cannot be had.
    #[error("operate.listen = {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's words.
        error: std::io::Error,
    },
    /// No thread or runtime.
    #[error("the admin port's thread cannot start: {0}")]
    Thread(#[source] std::io::Error),
}

/// The bound admin port.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Takes the address.
    ///
    /// # Errors
    /// [`AdminError::Bind`]
    pub fn bind(address: SocketAddr) -> Result<Self, AdminError> {
        let bind = |error| AdminError::Bind { address, error };
        let listener = TcpListener::bind(address).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        Ok(Self { listener, address })
    }

    /// The address taken (the real port where 0 was asked for).
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves on a thread of its own until `stop`.
    ///
    /// # Errors
    /// [`AdminError::Thread`]
    pub fn start(
        self,
        handles: Arc<Handles>,
        stop: CancellationToken,
    ) -> Result<std::thread::JoinHandle<()>, AdminError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AdminError::Thread)?;
        let serve = move || {
            runtime.block_on(serve(self.listener, handles, stop));
            // A report that a disk does not give keeps nobody.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("kvgate-admin".to_owned()).spawn(serve).map_err(AdminError::Thread)
    }
}

async fn serve(listener: TcpListener, handles: Arc<Handles>, stop: CancellationToken) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (handles, stop) = (Arc::clone(&handles), stop.clone());
        tasks.spawn(async move {
            let service = service_fn(move |request| {
                let handles = Arc::clone(&handles);
                async move { Ok::<_, Infallible>(answer(&handles, request).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let _ = stop.run_until_cancelled(connection).await;
            drop(place);
        });
    }
    tasks.close();
    tasks.wait().await;
}

async fn answer(handles: &Arc<Handles>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let host = head.headers.get(HOST).and_then(|v| v.to_str().ok());
    if !host_is_ours(host, &handles.settings.hosts) {
        let text =
            "this name is not one of this server's: ask it by address, or add the name to operate.hosts";
        return json_answer(StatusCode::MISDIRECTED_REQUEST, &json!({"error": text}));
    }
    let body = Limited::new(body, MOST_BODY).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Err(_) => {
            let text = format!("the body did not come within {} s", BODY_TIMEOUT.as_secs());
            return json_answer(StatusCode::REQUEST_TIMEOUT, &json!({ "error": text }));
        }
        Ok(Err(_)) => {
            let text = format!("the body is over {MOST_BODY} bytes, or broken");
            return json_answer(StatusCode::PAYLOAD_TOO_LARGE, &json!({ "error": text }));
        }
    };
    let call = Call {
        method: &head.method,
        path: head.uri.path(),
        authorization: head.headers.get("authorization").and_then(|v| v.to_str().ok()),
        body: &body,
    };
    handles.answer(&call).await
}

/// Whether the `Host` header is an address, `localhost`, or a configured name: any other means that a
/// page in a browser was led here.
fn host_is_ours(host: Option<&str>, names: &[String]) -> bool {
    let Some(host) = host else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|n| n.eq_ignore_ascii_case(name))
}

/// A JSON answer.
pub(super) fn json_answer(status: StatusCode, value: &serde_json::Value) -> Response<Full<Bytes>> {
    typed(status, "application/json", format!("{value}\n"))
}

/// An answer of a given type.
pub(super) fn typed(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert("cache-control", HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_are_not_answered() {
        let names = vec!["gate.example".to_owned()];
        for fine in
            ["127.0.0.1:8081", "localhost:8081", "[::1]:8081", "10.1.2.3", "gate.example:80", "GATE.example"]
        {
            assert!(host_is_ours(Some(fine), &names), "{fine}");
        }
        assert!(host_is_ours(None, &names));
        for foreign in ["evil.example", "evil.example:8081", "127.0.0.1.evil.example"] {
            assert!(!host_is_ours(Some(foreign), &names), "{foreign}");
        }
    }
}
