//! The features of a request: nothing here can fail.

use super::{Field, Fields};
use crate::request::dialect::lax;
use crate::request::{Api, Shape};

/// vLLM's and OpenAI's `max_tokens` of a completion that names none.
const COMPLETION_MAX_TOKENS: u64 = 16;

/// Characters of a model name that are kept.
const MODEL_CHARS: usize = 128;

/// Reads the features; a wrong type, a negative or an absurd number counts as absent.
pub fn shape(api: Api, fields: &Fields<'_>) -> Shape {
    let chat = api == Api::Chat;
    let echo = fields.flag(Field::Echo);
    let top_logprobs = match fields.count_or_all(Field::TopLogprobs) {
        _ if !chat => fields.count_or_all(Field::Logprobs),
        None if fields.flag(Field::Logprobs) => Some(0),
        top => top,
    };
    let asked = match fields.tokens(Field::MaxTokens) {
        _ if chat && fields.get(Field::MaxCompletionTokens).is_some() => {
            fields.tokens(Field::MaxCompletionTokens)
        }
        None if !chat && fields.get(Field::MaxTokens).is_none() => Some(COMPLETION_MAX_TOKENS),
        asked => asked,
    };
    let n = fields.count(Field::N).unwrap_or(0);
    // A beam search holds `n` beams (vLLM 0.32 `to_beam_search_params`), even where n is absent.
    let beams = fields.flag(Field::UseBeamSearch).then_some(n.max(1));
    Shape {
        api: Some(api),
        model: fields
            .get(Field::Model)
            .and_then(lax::text)
            .map(|name| name.chars().take(MODEL_CHARS).collect()),
        max_output_tokens: asked,
        n,
        best_of: fields.count(Field::BestOf).max(beams),
        prompts: 1,
        // vLLM: an echo with log-probabilities computes them over the prompt.
        prompt_logprobs: fields.count_or_all(Field::PromptLogprobs).or(if echo {
            top_logprobs
        } else {
            None
        }),
        top_logprobs,
        echo,
        structured: structured(fields).map(str::to_owned),
        tools: fields.get(Field::Tools).map_or(0, lax::entries),
        min_tokens: fields.tokens(Field::MinTokens).unwrap_or(0),
        logit_bias: fields.get(Field::LogitBias).map_or(0, lax::entries),
        stream: fields.flag(Field::Stream),
        ..Shape::default()
    }
}

/// The kind of structured output asked for.
fn structured(fields: &Fields<'_>) -> Option<&'static str> {
    const OUTPUTS: &[(&str, &str)] = &[
        ("json", "json_schema"),
        ("json_object", "json_object"),
        ("regex", "regex"),
        ("choice", "choice"),
        ("grammar", "grammar"),
        ("structural_tag", "structural_tag"),
    ];
    const GUIDED: &[(Field, &str)] = &[
        (Field::GuidedJson, "json_schema"),
        (Field::GuidedRegex, "regex"),
        (Field::GuidedChoice, "choice"),
        (Field::GuidedGrammar, "grammar"),
    ];
    let mut kind = None;
    if let Some(raw) = fields.get(Field::StructuredOutputs) {
        lax::members(raw, |name, value| {
            if let Some((_, known)) = OUTPUTS.iter().find(|(key, _)| *key == name && value != "null") {
                kind = Some(*known);
            }
        });
    }
    let formats = ["json_object", "json_schema", "structural_tag", "regex", "grammar"];
    let format = fields.get(Field::ResponseFormat).and_then(|raw| lax::member_text(raw, "type"));
    kind.or_else(|| formats.into_iter().find(|known| format.as_deref() == Some(known)))
        .or_else(|| GUIDED.iter().find(|(field, _)| fields.get(*field).is_some()).map(|(_, known)| *known))
}
