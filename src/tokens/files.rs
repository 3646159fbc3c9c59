//! The files that come with a model: tokenizer, its configuration, its chat templates.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::template::DEFAULT;

/// Why a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A file is no JSON of the kind expected.
    #[error("{what} is not usable: {reason}")]
    Invalid {
        /// Which file.
        what: &'static str,
        /// Why.
        reason: String,
    },
}

/// What was found beside a `tokenizer.json`.
#[derive(Debug)]
pub struct Files {
    /// `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// `tokenizer_config.json`, or an empty object.
    pub config: Map<String, Value>,
    /// Chat templates by name.
    pub templates: Vec<(String, String)>,
    /// What renders conversations in the engine, where it is no Jinja template.
    pub renderer: Option<&'static str>,
}

/// What vLLM (0.32 `renderers/`, `tokenizers/registry.py`) renders conversations with, by the `model_type` of
/// `config.json`, where it is no template.
const RENDERERS: [(&str, &str); 8] = [
    ("gpt_oss", "harmony"),
    ("deepseek_v32", "the encoder of DeepSeek V3.2"),
    ("deepseek_v4", "the encoder of DeepSeek V4"),
    ("kimi_k2", "the encoder of Kimi"),
    ("kimi_k25", "the encoder of Kimi"),
    ("kimi_linear", "the encoder of Kimi"),
    ("kimi_vl", "the encoder of Kimi"),
    ("grok2", "the encoder of Grok 2"),
];

impl Files {
    /// Reads a model's directory, or a `tokenizer.json` with what lies beside it.
    ///
    /// Templates (transformers 5.19 `tokenization_utils_base.py`): the given file; else
    /// `chat_template.jinja` and `additional_chat_templates/*.jinja`; else `chat_template.json` (of a
    /// processor); else `tokenizer_config.json`.
    pub fn read(path: &Path, chat_template: Option<&Path>) -> Result<Self, LoadError> {
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let dir = file.parent().unwrap_or_else(|| Path::new(".")).to_owned();
        let tokenizer_json = read(&file)?;
        let mut config = optional(&dir.join("tokenizer_config.json"))?
            .map(|bytes| object("tokenizer_config.json", &bytes))
            .transpose()?
            .unwrap_or_default();
        if let Some(bytes) = optional(&dir.join("special_tokens_map.json"))? {
            for (key, value) in object("special_tokens_map.json", &bytes)? {
                config.entry(key).or_insert(value);
            }
        }
        let templates = match chat_template {
            Some(file) => vec![(DEFAULT.to_owned(), text(file, read(file)?)?)],
            None => found(&dir)?,
        };
        let templates = if templates.is_empty() { configured(&config) } else { templates };
        Ok(Self { tokenizer_json, config, templates, renderer: renderer(&dir)? })
    }

    /// The same from bytes.
    pub fn from_parts(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        chat_template: Option<&str>,
    ) -> Result<Self, LoadError> {
        let config = tokenizer_config.map(|bytes| object("tokenizer_config.json", bytes)).transpose()?;
        let config = config.unwrap_or_default();
        let templates = match chat_template {
            Some(text) => vec![(DEFAULT.to_owned(), text.to_owned())],
            None => configured(&config),
        };
        Ok(Self { tokenizer_json: tokenizer_json.to_vec(), config, templates, renderer: None })
    }

    /// The special tokens that templates see (transformers `special_tokens_map`).
    pub fn special_tokens(&self) -> Map<String, Value> {
        const NAMES: [&str; 7] =
            ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
        let text = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(Value::from);
        NAMES.iter().filter_map(|name| Some(((*name).to_owned(), text(self.config.get(*name)?)?))).collect()
    }
}

/// What renders this model's conversations, where it is no template.
fn renderer(dir: &Path) -> Result<Option<&'static str>, LoadError> {
    // vLLM takes Mistral's own library where its file is there.
    if dir.join("tekken.json").is_file() {
        return Ok(Some("mistral-common"));
    }
    let Some(bytes) = optional(&dir.join("config.json"))? else { return Ok(None) };
    let config: Map<String, Value> = serde_json::from_slice(&bytes).unwrap_or_default();
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    Ok(RENDERERS.iter().find(|(name, _)| *name == kind).map(|(_, by)| *by))
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

fn optional(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadError::Read { path: path.to_owned(), source }),
    }
}

fn object(what: &'static str, bytes: &[u8]) -> Result<Map<String, Value>, LoadError> {
    serde_json::from_slice(bytes).map_err(|error| LoadError::Invalid { what, reason: error.to_string() })
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String, LoadError> {
    String::from_utf8(bytes).map_err(|error| LoadError::Read {
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidData, error),
    })
}

/// Template files of a directory.
fn found(dir: &Path) -> Result<Vec<(String, String)>, LoadError> {
    let mut templates = Vec::new();
    let file = dir.join("chat_template.jinja");
    if let Some(bytes) = optional(&file)? {
        templates.push((DEFAULT.to_owned(), text(&file, bytes)?));
    }
    let entries = fs::read_dir(dir.join("additional_chat_templates")).into_iter().flatten().flatten();
    for path in
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "jinja"))
    {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        templates.push((name, text(&path, read(&path)?)?));
    }
    if templates.is_empty()
        && let Some(bytes) = optional(&dir.join("chat_template.json"))?
    {
        return Ok(configured(&object("chat_template.json", &bytes)?));
    }
    Ok(templates)
}

/// The `chat_template` of a configuration: text, or a list of named ones.
fn configured(config: &Map<String, Value>) -> Vec<(String, String)> {
    let named = |entry: &Value| {
        let text = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        Some((text("name")?, text("template")?))
    };
    match config.get("chat_template") {
        Some(Value::String(text)) => vec![(DEFAULT.to_owned(), text.clone())],
        Some(Value::Array(entries)) => entries.iter().filter_map(named).collect(),
        Some(Value::Object(entries)) => entries
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_rendered_without_a_template_is_known_by_its_files() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(renderer(dir.path()).unwrap(), None);
        fs::write(dir.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
        assert_eq!(renderer(dir.path()).unwrap(), None);
        fs::write(dir.path().join("config.json"), r#"{"model_type": "gpt_oss"}"#).unwrap();
        assert_eq!(renderer(dir.path()).unwrap(), Some("harmony"));
        fs::write(dir.path().join("config.json"), "no JSON").unwrap();
        assert_eq!(renderer(dir.path()).unwrap(), None);
        fs::write(dir.path().join("tekken.json"), "{}").unwrap();
        assert_eq!(renderer(dir.path()).unwrap(), Some("mistral-common"));
    }
}
