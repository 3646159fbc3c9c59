//! Answers a generation request, from its body to its last byte.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;

use super::answer::{Choice, Letterhead};
use super::ask::{Ask, Form, Input};
use super::core::{Core, Live, Order, Wanted};
use super::outbox::{Finish, Taken};
use super::output;
use super::refusal::Refusal;
use super::settings::Settings;
use super::shared::{Shared, lock};
use super::stream::{EventStream, Usage};

/// An answer to a generation request.
pub(super) enum Generated {
    /// A JSON body.
    Plain(serde_json::Value),
    /// Events.
    Stream(EventStream),
}

/// Answers a body sent to `form`. Cancel-safe: dropping it aborts the request.
///
/// # Errors
/// Everything that is answered with a status of 400 or above.
pub(super) async fn generate(
    core: &Arc<Core>,
    form: Form,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Generated, Refusal> {
    let shared = core.shared();
    let ask = Ask::read(form, body)?;
    check_model(ask.model.as_deref(), &shared.settings)?;
    check_max_tokens(&ask, &shared.settings)?;
    let mut prompts = Vec::with_capacity(ask.inputs.len());
    for input in &ask.inputs {
        prompts.push(count(shared, &ask, input).await?);
    }
    let sequences = sequences(shared, &ask, (&prompts, wished_output(headers)))?;
    let (id, given) = ids(shared, form, headers);
    let head = Letterhead {
        form,
        id: id.clone(),
        created: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        model: ask.model.clone().unwrap_or_else(|| shared.settings.model.clone()),
        prompt_tokens: prompts.iter().sum(),
    };
    let choices = sequences.len();
    let order = Order { id, given, chat: form == Form::Chat, n: ask.n, sequences };
    let live = match core.submit(order) {
        Ok(live) => live,
        Err(Refusal::Busy) if ask.stream => {
            return Ok(Generated::Stream(EventStream::refused(head, &Refusal::Busy)));
        }
        Err(refusal) => return Err(refusal),
    };
    if ask.stream {
        let usage = Usage { at_end: ask.include_usage, throughout: ask.continuous_usage };
        let end = shared.switches().stream_end;
        return Ok(Generated::Stream(EventStream::new(live, head, choices, usage, end)));
    }
    let choices = collect(live, choices).await?;
    Ok(Generated::Plain(head.plain(&choices)))
}

/// Refuses a model that is not served.
pub(super) fn check_model(asked: Option<&str>, settings: &Settings) -> Result<(), Refusal> {
    match asked {
        Some(asked) if asked != settings.model => {
            Err(Refusal::NoModel { asked: asked.to_owned(), served: settings.model.clone() })
        }
        _ => Ok(()),
    }
}

fn check_max_tokens(ask: &Ask, settings: &Settings) -> Result<(), Refusal> {
    let Some((param, value)) = ask.max_tokens else { return Ok(()) };
    let Ok(asked) = u64::try_from(value) else { return Err(Refusal::NoOutput { value }) };
    if asked > settings.max_model_len {
        return Err(Refusal::TooMuchOutput { param, value: asked, limit: settings.max_model_len });
    }
    if asked == 0 { Err(Refusal::NoOutput { value }) } else { Ok(()) }
}

/// Prompt tokens of one input, refused where they are too many.
async fn count(shared: &Shared, ask: &Ask, input: &Input) -> Result<u64, Refusal> {
    let limit = shared.settings.max_model_len;
    let counting = &shared.counting;
    let uncountable = |detail| Refusal::Uncountable { detail };
    let (tokens, exact) = match input {
        Input::Text(text) => {
            let bound = limit.saturating_mul(counting.longest_entry());
            let characters = text.chars().count() as u64;
            if characters > bound && ask.truncate.is_none() {
                return Err(Refusal::TooManyCharacters { limit, characters, bound });
            }
            (counting.text(text, ask.add_special_tokens).await.map_err(uncountable)?, false)
        }
        Input::Ids(ids) => {
            let beyond = |&id: &i64| u64::try_from(id).map_or(true, |id| id >= counting.vocabulary());
            if let Some(&id) = ids.iter().find(|id| beyond(id)) {
                return Err(Refusal::OutOfVocabulary { id });
            }
            (ids.len() as u64, true)
        }
        Input::Chat(chat, bytes) => (counting.chat(chat, *bytes).await.map_err(uncountable)?, false),
    };
    let tokens = match ask.truncate {
        Some(keep) => tokens.min(u64::try_from(keep).unwrap_or(limit - 1)),
        None => tokens,
    };
    match (tokens > limit, exact) {
        (false, _) => Ok(tokens),
        (true, true) => Err(Refusal::TooLong { limit, tokens, at_least: tokens == limit + 1 }),
        // Text is tokenized only as far as it takes to know.
        (true, false) => Err(Refusal::TooLong { limit, tokens: limit + 1, at_least: true }),
    }
}

/// How long the model's own answer would be where the client says so in `x-sim-output-tokens`: for loads whose
/// lengths are known, whatever limit they name.
fn wished_output(headers: &HeaderMap) -> Option<u64> {
    headers.get("x-sim-output-tokens")?.to_str().ok()?.parse().ok().filter(|n| *n > 0)
}

/// What the engine is to produce: outputs over the context length are cut, not refused.
fn sequences(
    shared: &Shared,
    ask: &Ask,
    (prompts, wished): (&[u64], Option<u64>),
) -> Result<Vec<Wanted>, Refusal> {
    let settings = &shared.settings;
    let mut rng = lock(&shared.rng);
    let mut sequences = Vec::with_capacity(prompts.len() * ask.n as usize);
    for &prompt in prompts {
        let rest = settings.max_model_len.saturating_sub(prompt);
        if rest == 0 {
            return Err(Refusal::NoOutput { value: 0 });
        }
        let asked = ask.max_tokens.and_then(|(_, n)| u64::try_from(n).ok());
        let limit = asked.map_or(rest, |n| n.min(rest));
        for _ in 0..ask.n {
            let natural =
                output::length(&mut rng, settings.output_median_tokens, settings.output_sigma).into();
            let natural = wished.unwrap_or(natural).max(ask.min_tokens);
            let ends = wished.is_some() || asked.is_none();
            let (target, finish) = if ends && !ask.ignore_eos && natural < limit {
                (natural, Finish::Stop)
            } else {
                (limit, Finish::Length)
            };
            let small = |n| u32::try_from(n).unwrap_or(u32::MAX);
            sequences.push(Wanted { prompt: small(prompt), target: small(target), finish });
        }
    }
    Ok(sequences)
}

/// The id in the answer and the id as the client gave it.
fn ids(shared: &Shared, form: Form, headers: &HeaderMap) -> (String, String) {
    let given = headers.get("x-request-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let given = given.unwrap_or_else(|| format!("{:016x}", lock(&shared.rng).u64(..)));
    let prefix = match form {
        Form::Completion => "cmpl",
        Form::Chat => "chatcmpl",
    };
    (format!("{prefix}-{given}"), given)
}

async fn collect(mut live: Live, choices: usize) -> Result<Vec<Choice>, Refusal> {
    let mut collected = vec![Choice::default(); choices];
    while collected.iter().any(|c| c.finish.is_none()) {
        let deltas = match poll_fn(|cx| live.outbox.poll_take(cx)).await {
            Taken::Dead => return Err(Refusal::Dead),
            Taken::Output(deltas) => deltas,
        };
        for delta in deltas {
            let Some(choice) = collected.get_mut(delta.index as usize) else { continue };
            choice.text.push_str(&output::text(live.seed(delta.index), delta.from, delta.tokens));
            choice.tokens += u64::from(delta.tokens);
            choice.finish = choice.finish.or(delta.finish);
        }
    }
    live.finish();
    Ok(collected)
}
