//! Finds the tokenizer that the engine uses, again at each of its starts, and proves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::StartError;
use crate::engine::{self, Snapshot};
use crate::request::{Api, dialect};
use crate::telemetry::{self, Alarm, Event};
use crate::tokens::{Ask, Counter, Encoder, Options, Settings, discover};

/// How long the engine may take to tokenize a prompt for us.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Text in which wrong tokenizers, normalizers and special-token rules show.
const PROBE: &str = "Hello, wörld! ﬁve  spaces\n\n\tand 12345 digits; naïve café 你好 🙂 <|x|>";

/// A counter, with the configured tokenizer where one is configured.
///
/// # Errors
/// Where the configured tokenizer cannot be used: the operator named it, so starting without it would
/// hide the mistake.
pub(super) fn counter(settings: &Settings) -> Result<Counter, StartError> {
    let counter = Counter::new(settings);
    let encoder = discover::configured(settings).map_err(StartError::Tokenizer)?;
    if let (Some(encoder), Some(path)) = (encoder, &settings.tokenizer) {
        counter.use_encoder(Arc::new(encoder), format!("configured: {}", path.display()));
    }
    Ok(counter)
}

/// Keeps the counter's source in step with the engine: at each start it is looked for and proven anew.
/// `settled` turns true when that was done for the first time.
pub(super) async fn keep(
    settings: Settings,
    counter: Counter,
    client: engine::Client,
    mut snapshot: watch::Receiver<Arc<Snapshot>>,
    settled: Arc<AtomicBool>,
) {
    let mut known: Option<(u64, Option<String>)> = None;
    loop {
        let current = Arc::clone(&snapshot.borrow_and_update());
        let model = current.facts.model(None).cloned();
        let root = model.as_ref().and_then(|m| m.root.clone().or_else(|| Some(m.id.clone())));
        let now = (current.incarnation, root.clone());
        if model.is_some() && current.ready() && known.as_ref() != Some(&now) {
            known = Some(now);
            if counter.source().kind == "none" {
                // Until a tokenizer is found and read, a second or two.
                counter.use_engine(ask(client.clone()));
            }
            choose(&settings, &counter, &client, root.as_deref()).await;
            settled.store(true, Ordering::Relaxed);
        }
        if snapshot.changed().await.is_err() {
            return;
        }
    }
}

/// Chooses between a local tokenizer, the engine's own `/tokenize`, and nothing; says which.
async fn choose(settings: &Settings, counter: &Counter, client: &engine::Client, root: Option<&str>) {
    let (encoder, found) = match load(settings, root).await {
        Ok((encoder, said_by)) => (Some(encoder), said_by),
        Err(why) => (None, why),
    };
    let proof = prove(encoder.as_deref(), client).await;
    let (active, detail) = match (encoder, proof) {
        (Some(encoder), proof @ (Proof::Agrees | Proof::NoOracle)) => {
            let (library, why_slow) = encoder.tokenizer().counted_by();
            let slow = why_slow.map_or_else(String::new, |why| format!(" ({why})"));
            let chats = encoder.renderer().map_or_else(String::new, |by| {
                format!(
                    "; the engine renders chats with {by}: its /tokenize is asked for them where it has one"
                )
            });
            counter.use_encoder(encoder, found.clone());
            if matches!(proof, Proof::Agrees) {
                counter.use_engine(ask(client.clone()));
            }
            (false, format!("prompts are counted with {found} by {library}{slow}{chats}"))
        }
        (Some(_), Proof::Differs { ours, engine }) => {
            counter.use_nothing();
            counter.use_engine(ask(client.clone()));
            (
                true,
                format!(
                    "{found} counts a probe as {ours} and the engine as {engine}: the engine's /tokenize is asked instead"
                ),
            )
        }
        (None, Proof::NoOracle) => {
            counter.use_nothing();
            (true, format!("prompts are not counted: {found}"))
        }
        (None, _) => {
            counter.use_nothing();
            counter.use_engine(ask(client.clone()));
            (true, format!("the engine's /tokenize is asked for each prompt: {found}"))
        }
    };
    telemetry::emit(Event::Alarm { alarm: Alarm::NoTokenizer, active, detail: &detail });
}

async fn load(settings: &Settings, root: Option<&str>) -> Result<(Arc<Encoder>, String), String> {
    let path = discover::find(settings, root).map_err(|e| e.to_string())?;
    let (template, options) = (settings.chat_template.clone(), Options::from(settings));
    let said_by = if settings.tokenizer.is_some() { "configured" } else { "the engine's model" };
    let said_by = format!("{said_by}: {}", path.display());
    let loaded = tokio::task::spawn_blocking(move || {
        Encoder::load(&path, template.as_deref()).map(|encoder| encoder.with_options(options))
    })
    .await;
    match loaded {
        Ok(Ok(encoder)) => Ok((Arc::new(encoder), said_by)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// What the engine's own count of the probes says.
enum Proof {
    Agrees,
    Differs {
        ours: u64,
        engine: u64,
    },
    /// The engine has no `/tokenize`.
    NoOracle,
}

async fn prove(encoder: Option<&Encoder>, client: &engine::Client) -> Proof {
    let probes = [
        (Api::Completions, json!({ "prompt": PROBE })),
        (
            Api::Chat,
            json!({"messages": [{"role": "system", "content": PROBE}, {"role": "user", "content": "Hi"}]}),
        ),
    ];
    let mut answered = false;
    for (api, body) in probes {
        let Ok(engine) = tokenize(client, &body).await else { continue };
        answered = true;
        // Chats that the engine renders otherwise than by a template are its own to count.
        let theirs = |e: &&Encoder| api == Api::Chat && e.renderer().is_some();
        let ours = encoder.filter(|e| !theirs(e)).and_then(|e| {
            let reading = dialect::read(api, body.to_string().as_bytes()).ok()?;
            Some(e.count(&reading, SystemTime::now(), None).ok()?.total.get())
        });
        if let (Some(ours), true) = (ours, encoder.is_some())
            && ours != engine
        {
            return Proof::Differs { ours, engine };
        }
    }
    if answered { Proof::Agrees } else { Proof::NoOracle }
}

/// Asks the engine's `/tokenize` (vLLM 0.32: `{"count":N,…}`).
async fn tokenize(client: &engine::Client, body: &Value) -> Result<u64, String> {
    let answer = client
        .post("/tokenize", Bytes::from(body.to_string()), ASK_TIMEOUT)
        .await
        .map_err(|e| format!("/tokenize: {e}"))?;
    let value: Value =
        serde_json::from_slice(&answer.body).map_err(|_| format!("/tokenize: {}", answer.status))?;
    value["count"].as_u64().ok_or_else(|| format!("/tokenize: {} without a count", answer.status))
}

fn ask(client: engine::Client) -> Ask {
    Arc::new(move |body: Value| {
        let client = client.clone();
        Box::pin(async move { tokenize(&client, &body).await })
    })
}
