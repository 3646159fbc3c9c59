//! The data port: accepts connections, serves each, ends them in order.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{ServiceBuilder, ServiceExt as _};

use super::pipeline::Pipeline;

/// Requests that may be before their answer's head at once, over all connections; more are shed at once.
const MOST_BEFORE_HEAD: usize = 16_384;

/// Longest pause after `accept` fails (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the data port until `stop`, then lets the requests in flight end for at most `drain`.
///
/// After `stop` no connection is accepted and idle ones are closed. When `drain` is over, what is left
/// is cut.
pub async fn serve(
    listener: TcpListener,
    pipeline: Arc<Pipeline>,
    stop: CancellationToken,
    connections: usize,
    drain: Duration,
) {
    let places = Arc::new(Semaphore::new(connections));
    let tasks = TaskTracker::new();
    let cut = CancellationToken::new();
    while let Some(place) = next_place(&places, &stop).await {
        let Some(stream) = accept(&listener, &stop).await else { break };
        let connection = one(stream, Arc::clone(&pipeline), stop.clone());
        let cut = cut.clone();
        tasks.spawn(async move {
            cut.run_until_cancelled(connection).await;
            drop(place);
        });
    }
    drop(listener);
    tasks.close();
    if tokio::time::timeout(drain, tasks.wait()).await.is_err() {
        cut.cancel();
        tasks.wait().await;
    }
}

async fn next_place(
    places: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<tokio::sync::OwnedSemaphorePermit> {
    stop.run_until_cancelled(Arc::clone(places).acquire_owned()).await?.ok()
}

/// The next connection; `None` when it is time to stop. A failing `accept` is tried again.
async fn accept(listener: &TcpListener, stop: &CancellationToken) -> Option<TcpStream> {
    loop {
        match stop.run_until_cancelled(listener.accept()).await? {
            Ok((stream, _)) => return Some(stream),
            Err(error) => {
                tracing::warn!(%error, "accept_failed");
                stop.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE)).await?;
            }
        }
    }
}

async fn one(stream: TcpStream, pipeline: Arc<Pipeline>, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    // The kernel cuts a connection whose client takes nothing in for so long (Linux: TCP_USER_TIMEOUT).
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(pipeline.unread_timeout()));
    let shed = Arc::clone(&pipeline);
    let head_timeout = pipeline.head_timeout();
    let edge =
        ServiceBuilder::new().load_shed().layer(pipeline.edge()).service(tower::service_fn(move |request| {
            let pipeline = Arc::clone(&pipeline);
            async move { Ok::<_, Infallible>(pipeline.serve(request).await) }
        }));
    let service = service_fn(move |request| {
        let (edge, shed) = (edge.clone(), Arc::clone(&shed));
        async move {
            let answer = edge.oneshot(request).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|_| shed.overloaded()))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // A client's broken connection is its own affair.
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// The limit on requests before their answer's head, shared by all connections.
#[must_use]
pub fn edge_limit() -> tower::limit::GlobalConcurrencyLimitLayer {
    tower::limit::GlobalConcurrencyLimitLayer::new(MOST_BEFORE_HEAD)
}
