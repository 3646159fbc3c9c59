//! The calls of the loop: each a future that says what it saw.

use std::time::Duration;

use tokio::time::Instant;

use crate::engine::dialect::{openai, vllm};
use crate::engine::{Client, Connection, Error, Sample, ServedModel, Snapshot};

/// What a call saw.
pub enum Seen {
    /// `/metrics`.
    Scrape(Result<Scrape, Error>),
    /// `/health`: its status.
    Health(Result<u16, Error>),
    /// `/v1/models` and `/version`.
    Facts(Result<Said, Error>),
}

/// What `/metrics` was.
pub enum Scrape {
    /// A page that kvgate understands.
    Sample(Box<Sample>),
    /// There is none, or not one that kvgate understands; perhaps with the process's start time.
    None(Option<f64>),
    /// An error that says nothing about what there is.
    Unknown,
}

/// What the engine said about itself.
pub struct Said {
    /// `/v1/models` was answered with a status below 500.
    pub served: bool,
    /// Its models.
    pub models: Vec<ServedModel>,
    /// Its version.
    pub version: Option<String>,
}

pub async fn scrape(client: Client, timeout: Duration) -> Seen {
    Seen::Scrape(client.get("/metrics", Connection::Fresh, timeout).await.map(|answer| {
        match answer.status {
            200 => vllm::sample(&answer.body, Instant::now()).map_or_else(
                || Scrape::None(vllm::start_time(&answer.body)),
                |s| Scrape::Sample(Box::new(s)),
            ),
            400..=499 | 501 => Scrape::None(None),
            _ => Scrape::Unknown,
        }
    }))
}

pub async fn health(client: Client, timeout: Duration) -> Seen {
    Seen::Health(client.get("/health", Connection::Fresh, timeout).await.map(|answer| answer.status))
}

pub async fn facts(client: Client, timeout: Duration) -> Seen {
    Seen::Facts(ask(client, timeout).await)
}

async fn ask(client: Client, timeout: Duration) -> Result<Said, Error> {
    let models = client.get("/v1/models", Connection::Fresh, timeout).await?;
    // Older engines have no /version: that is no reason to know nothing.
    let version = client.get("/version", Connection::Fresh, timeout).await.ok();
    Ok(Said {
        served: models.status < 500,
        models: openai::models(&models.body).filter(|_| models.status == 200).unwrap_or_default(),
        version: version.filter(|v| v.status == 200).and_then(|v| openai::version(&v.body)),
    })
}

/// Whether the engine process of `snapshot` is still the one that answers: asked on a new connection.
/// None where nothing can be told. Safe to drop at any time.
pub async fn same_start(client: &Client, snapshot: &Snapshot) -> Option<bool> {
    let known = snapshot.start_time.filter(|_| !snapshot.several)?;
    match client.get("/metrics", Connection::Fresh, client.timeout()).await {
        Ok(answer) if answer.status == 200 => {
            let said = vllm::start_time(&answer.body)?;
            Some((said - known).abs() < crate::engine::lifecycle::SAME_START)
        }
        Err(Error::Refused) => Some(false),
        _ => None,
    }
}
