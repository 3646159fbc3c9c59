//! `/v1/models` and `/version` as vLLM, SGLang, llama.cpp and others answer them.

use serde::Deserialize;

use crate::engine::ServedModel;
use crate::request::Tokens;

/// Models read of one answer.
const MAX_MODELS: usize = 1000;

#[derive(Deserialize)]
struct List {
    data: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

/// The models of a `/v1/models` answer; None where it is none. An entry without an id is left out.
#[must_use]
pub fn models(body: &[u8]) -> Option<Vec<ServedModel>> {
    let list: List = serde_json::from_slice(body).ok()?;
    Some(list.data.iter().take(MAX_MODELS).filter_map(model).collect())
}

/// Characters of a name or path that are kept.
const MAX_NAME: usize = 1024;

fn model(entry: &serde_json::Value) -> Option<ServedModel> {
    let text = |key: &str| Some(entry.get(key)?.as_str()?.chars().take(MAX_NAME).collect::<String>());
    let number = |value: Option<&serde_json::Value>| value?.as_u64().filter(|n| *n > 0).map(Tokens);
    // vLLM and SGLang say max_model_len; llama.cpp says meta.n_ctx (server, build 11434).
    let context = number(entry.get("max_model_len"))
        .or_else(|| number(entry.get("meta").and_then(|meta| meta.get("n_ctx"))));
    Some(ServedModel { id: text("id")?, root: text("root"), parent: text("parent"), max_model_len: context })
}

/// The version of a `/version` answer.
#[must_use]
pub fn version(body: &[u8]) -> Option<String> {
    let said: Version = serde_json::from_slice(body).ok()?;
    Some(said.version.chars().take(100).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_captured_models_and_version_are_read() {
        let models = models(include_bytes!("../../../tests/data/engine/v1_models.json")).unwrap();
        assert_eq!(
            models,
            [ServedModel {
                id: "tiny".to_owned(),
                root: Some("models/tiny-llama3".to_owned()),
                parent: None,
                max_model_len: Some(Tokens(2048)),
            }]
        );
        let version = version(include_bytes!("../../../tests/data/engine/version.json"));
        assert_eq!(version.as_deref(), Some("0.32.0"));
    }

    #[test]
    fn an_odd_entry_spoils_no_other() {
        let body = br#"{"data":[7,{"id":"a","max_model_len":"x","root":null},{"root":"r"},{"id":"l","parent":"a","meta":{"n_ctx":512}}]}"#;
        let models = models(body).unwrap();
        assert_eq!(models.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(), ["a", "l"]);
        assert_eq!(models[1].parent.as_deref(), Some("a"));
        assert_eq!(models[1].max_model_len, Some(Tokens(512)));
        assert!(super::models(b"{}").is_none() && super::models(b"<html>").is_none());
    }
}
