//! A gateway in process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;

use kvgate::config::Config;
use kvgate::gateway::{self, Running};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::client::{Answer, Raw, get};
use super::{soon, until};

/// The tokenizer of the simulated engine, written once.
pub fn tokenizer() -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        kvgate::sim::write_tokenizer(folder.path()).unwrap();
        folder
    });
    folder.path().to_owned()
}

/// A running gateway; dropping it stops it.
pub struct Gate {
    running: Option<Running>,
    /// The data port.
    pub data: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Gate {
    /// A gateway in front of `url`, that reads the engine often.
    pub async fn before(url: String, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.engine.url = url;
        config.engine.scrape_interval_seconds = 0.05;
        config.proxy.listen = "127.0.0.1:0".parse().unwrap();
        config.operate.listen = "127.0.0.1:0".parse().unwrap();
        config.tokens.tokenizer = Some(tokenizer());
        change(&mut config);
        assert_eq!(config.problems(), Vec::<String>::new());
        let stop = CancellationToken::new();
        let running = gateway::start(config, stop.clone()).await.unwrap();
        Self { data: running.data, admin: running.admin, running: Some(running), stop }
    }

    /// A gateway in front of `url` whose engine is ready and was scraped.
    pub async fn ready_before(url: String, change: impl FnOnce(&mut Config)) -> Self {
        let gate = Self::before(url, change).await;
        gate.ready().await;
        gate
    }

    /// Waits until `/readyz` says so.
    pub async fn ready(&self) {
        until("readiness", async || {
            let answer = self.admin("/readyz").await;
            (answer.status == 200
                && !self.admin_json("/api/v1/state").await["engine"]["scrape_age_seconds"].is_null())
            .then_some(())
        })
        .await;
    }

    /// A new connection to the data port.
    pub async fn client(&self) -> Raw {
        Raw::connect(self.data).await
    }

    /// One request on a connection of its own, answered to its end.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut client = self.client().await;
        client.send(request).await;
        client.answer().await
    }

    /// A GET of the admin port.
    pub async fn admin(&self, path: &str) -> Answer {
        self.admin_ask(get(path).as_slice()).await
    }

    /// Any request to the admin port (its Host is put right).
    pub async fn admin_ask(&self, request: &[u8]) -> Answer {
        let text = String::from_utf8(request.to_vec()).unwrap();
        let mut client = Raw::connect(self.admin).await;
        client.send(text.replace("Host: gate.test", "Host: localhost")).await;
        client.answer().await
    }

    /// JSON of the admin port.
    pub async fn admin_json(&self, path: &str) -> Value {
        self.admin(path).await.json()
    }

    /// In flight and queued by the gate's books, and the ledger's count.
    pub async fn load(&self) -> (u64, u64, u64) {
        let books = self.admin_json("/api/v1/state").await["admission"].clone();
        let ledger = self.admin_json("/api/v1/inflight").await["count"].as_u64().unwrap();
        (books["in_flight"].as_u64().unwrap(), books["queued"].as_u64().unwrap(), ledger)
    }

    /// Waits until nothing is in flight and nothing queued.
    pub async fn idle(&self) {
        until("an idle gateway", async || (self.load().await == (0, 0, 0)).then_some(())).await;
    }

    /// Waits for so many in flight and queued.
    pub async fn loaded(&self, in_flight: u64, queued: u64) {
        until(&format!("{in_flight} in flight and {queued} queued"), async || {
            let (is, waits, _) = self.load().await;
            ((is, waits) == (in_flight, queued)).then_some(())
        })
        .await;
    }

    /// Waits for a state of the engine.
    pub async fn engine(&self, state: &str) {
        until(&format!("an engine that is {state}"), async || {
            (self.admin_json("/api/v1/state").await["engine"]["state"] == state).then_some(())
        })
        .await;
    }

    /// All crash reports, newest first.
    pub async fn reports(&self) -> Vec<Value> {
        let listing = self.admin_json("/api/v1/reports").await;
        let mut all = Vec::new();
        for report in listing["reports"].as_array().unwrap() {
            let id = report["id"].as_str().unwrap();
            all.push(self.admin_json(&format!("/api/v1/reports/{id}")).await);
        }
        all
    }

    /// Asks it to stop, as SIGTERM does.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until it has ended.
    pub async fn ended(mut self) {
        if let Some(running) = self.running.take() {
            soon("the gateway's end", running.ended()).await;
        }
    }
}
