//! The lives of the simulated engine on its port: load, listen, die, load again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::fault::{Death, Fault, Loading, duration};
use super::routes::{Front, answer};
use super::settings::Settings;
use super::shared::{Shared, Tally};
use super::wire::Wire;

/// How long the API server outlives its core: `/health` says 503 for about so long (vLLM 0.32).
const LAST_MOMENTS: Duration = Duration::from_millis(50);
/// How long answers that are being written may take after that.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Binds without listening: connections are refused, and nobody else can take the port. (A port
/// that nobody holds may even connect to itself.)
pub(super) fn hold(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

/// One connection's surroundings.
#[derive(Clone)]
struct Door {
    front: Front,
    keep_alive: Duration,
    reset: Arc<AtomicBool>,
    closing: CancellationToken,
}

impl Door {
    fn new(front: Front, shared: &Shared) -> Self {
        Self {
            front,
            keep_alive: duration(shared.settings.keep_alive_seconds),
            reset: Arc::default(),
            closing: CancellationToken::new(),
        }
    }
}

/// Runs life after life; returns only where the port cannot be had again. Cancelling it ends
/// everything, as the end of the process would.
pub(super) async fn run(shared: Arc<Shared>, held: TcpSocket) -> io::Result<()> {
    let addr = held.local_addr()?;
    let first = shared.settings.start_load_seconds;
    let mut load = (first > 0.0).then(|| duration(first));
    let mut held = held;
    loop {
        if let Some(time) = load {
            held = load_for(&shared, held, time).await?;
        }
        let death = live(&shared, held.listen(BACKLOG)?).await;
        held = hold(addr)?;
        load = load_time(death, &shared.settings);
        if load.is_none() {
            load = Some(duration(shared.restart().await));
        }
    }
}

/// Loads; answers 503 meanwhile where so set, else refuses. The socket comes back bound and silent.
async fn load_for(shared: &Arc<Shared>, held: TcpSocket, time: Duration) -> io::Result<TcpSocket> {
    if shared.settings.loading == Loading::Refused {
        tokio::time::sleep(time).await;
        return Ok(held);
    }
    let addr = held.local_addr()?;
    let listener = held.listen(BACKLOG)?;
    let door = Door::new(Front::Loading, shared);
    let mut connections = JoinSet::new();
    let end = tokio::time::sleep(time);
    tokio::select! {
        () = end => {}
        () = accept(&listener, &door, &mut connections, shared) => {}
    }
    drop(listener);
    hang_up(&door, &mut connections).await;
    hold(addr)
}

/// One life, from listening to the closing of the port.
async fn live(shared: &Arc<Shared>, listener: TcpListener) -> Death {
    let core = Arc::new(Core::new(shared.clone()));
    shared.set_core(Some(core.clone()));
    shared.tally(Tally::Started);
    let door = Door::new(Front::Engine(core.clone()), shared);
    let mut connections = JoinSet::new();
    let mut engine = JoinSet::new();
    engine.spawn(core.clone().run());
    let death = tokio::select! {
        death = core.death() => death,
        () = accept(&listener, &door, &mut connections, shared) => Death { hard: true, load_seconds: None },
    };
    engine.shutdown().await;
    if death.hard {
        door.reset.store(true, Ordering::Release);
        drop(listener);
        connections.shutdown().await;
    } else {
        tokio::select! {
            () = tokio::time::sleep(LAST_MOMENTS) => {}
            () = accept(&listener, &door, &mut connections, shared) => {}
        }
        drop(listener);
        hang_up(&door, &mut connections).await;
    }
    shared.set_core(None);
    death
}

/// The load time after a death, where there is one.
fn load_time(death: Death, settings: &Settings) -> Option<Duration> {
    death.load_seconds.or(settings.load_seconds).map(duration)
}

/// Closes idle connections, lets the others finish for a while, then drops them.
async fn hang_up(door: &Door, connections: &mut JoinSet<()>) {
    door.closing.cancel();
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_ANSWERS, finished).await.is_err() {
        connections.shutdown().await;
    }
}

/// Accepts until the listener breaks.
async fn accept(listener: &TcpListener, door: &Door, connections: &mut JoinSet<()>, shared: &Arc<Shared>) {
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let mut door = door.clone();
                    door.keep_alive = shared.switches().close_idle.unwrap_or(door.keep_alive);
                    connections.spawn(serve(stream, door));
                }
                // Out of file descriptors, or a client that left at once: others may do better.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// Serves one connection to its end. A client that closes it, or only its sending side, ends the
/// request at once (hyper drops the answer on end of input unless half-closing is allowed).
async fn serve(stream: TcpStream, door: Door) {
    // Tokens are small and must not wait for each other.
    let _ = stream.set_nodelay(true);
    let wire = TokioIo::new(Wire::new(stream, door.reset.clone()));
    let front = door.front.clone();
    let service = service_fn(move |request| answer(front.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.keep_alive)
        .half_close(false)
        .serve_connection(wire, service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = door.closing.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Puts the faults of the settings in force; those that need a living engine wait for it.
pub(super) async fn initial_faults(shared: Arc<Shared>) {
    let (deadly, lasting): (Vec<Fault>, Vec<Fault>) = shared.settings.faults.iter().cloned().partition(|f| {
        matches!(f, Fault::Die { .. } | Fault::DieHard { .. } | Fault::Restart { .. } | Fault::Stall { .. })
    });
    for fault in lasting {
        shared.fault(fault);
    }
    let mut changes = shared.changes();
    while !deadly.is_empty() && shared.core().is_none() {
        if changes.changed().await.is_err() {
            return;
        }
    }
    for fault in deadly {
        shared.fault(fault);
    }
}
