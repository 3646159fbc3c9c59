//! Starting, watching and ending a simulated engine.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use super::counting::Counting;
use super::fault::Fault;
use super::server;
use super::settings::Settings;
use super::shared::{Shared, Stats};

/// Why no simulated engine was started.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A setting is out of its range.
    #[error("`{key}` of the simulated engine must be {range}, and is {value}")]
    Setting {
        /// The key.
        key: &'static str,
        /// Its range.
        range: &'static str,
        /// The value found.
        value: String,
    },
    /// The port cannot be had.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The embedded tokenizer cannot be read.
    #[error("the embedded tokenizer cannot be loaded: {detail}")]
    Tokenizer {
        /// What is wrong with it.
        detail: String,
    },
}

/// A simulated engine; dropping it ends it with all its connections.
pub struct Sim {
    shared: Arc<Shared>,
    addr: SocketAddr,
    task: AbortOnDropHandle<io::Result<()>>,
}

/// Starts a simulated engine on 127.0.0.1; its crash log goes to stderr.
///
/// The port is taken when this returns, and it listens unless it has been told to load first.
///
/// # Errors
/// [`SimError`]. Must be called inside a tokio runtime.
pub async fn start(settings: Settings) -> Result<Sim, SimError> {
    start_with_log(settings, io::stderr()).await
}

/// As [`start`], with the crash log going to `log`.
///
/// # Errors
/// [`SimError`].
pub async fn start_with_log(settings: Settings, log: impl Write + Send + 'static) -> Result<Sim, SimError> {
    if let Some((key, range, value)) = settings.wrong() {
        return Err(SimError::Setting { key, range, value });
    }
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, settings.port));
    let held = server::hold(addr).map_err(|source| SimError::Listen { addr, source })?;
    let addr = held.local_addr().map_err(|source| SimError::Listen { addr, source })?;
    let counting = Counting::new()?;
    let loads_first = settings.start_load_seconds > 0.0;
    let shared = Arc::new(Shared::new(settings, counting, Box::new(log)));
    let run = shared.clone();
    // The one task of this engine: all others are in its join sets, and it ends with the handle.
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        let (_, ended) = tokio::join!(server::initial_faults(run.clone()), server::run(run.clone(), held));
        ended
    }));
    let sim = Sim { shared, addr, task };
    if !loads_first {
        sim.until(|stats| stats.starts > 0).await;
    }
    Ok(sim)
}

impl Sim {
    /// Where it listens; the same over all of its lives.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Brings a fault about.
    pub fn fault(&self, fault: Fault) {
        self.shared.fault(fault);
    }

    /// How it stands now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Waits until `enough` says yes to the stats, which it is asked at each change; the stats it
    /// said yes to. Never returns where the engine cannot get there. Cancel-safe.
    pub async fn until(&self, mut enough: impl FnMut(&Stats) -> bool) -> Stats {
        let mut changes = self.shared.changes();
        loop {
            let stats = self.shared.stats();
            if enough(&stats) || changes.changed().await.is_err() {
                return stats;
            }
        }
    }

    /// Ends it and waits until all of its connections and its port are closed.
    pub async fn stop(self) {
        self.task.abort();
        // Cancelled is what it is meant to be.
        let _ = self.task.await;
    }

    /// Runs until it cannot listen any more.
    ///
    /// # Errors
    /// What the system said.
    pub async fn ended(self) -> io::Result<()> {
        self.task.await.unwrap_or_else(|e| Err(io::Error::other(e)))
    }
}
