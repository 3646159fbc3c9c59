//! The simulated model's tokenizer: ours, embedded, and small (2,048 entries, Llama 3's kind).

use std::io;
use std::path::Path;

const TOKENIZER: &[u8] = include_bytes!("tokenizer/tokenizer.json");
const CONFIG: &[u8] = include_bytes!("tokenizer/tokenizer_config.json");
const TEMPLATE: &str = include_str!("tokenizer/chat_template.jinja");

/// The bytes of `tokenizer.json`.
#[must_use]
pub fn tokenizer_json() -> &'static [u8] {
    TOKENIZER
}

/// The bytes of `tokenizer_config.json`.
#[must_use]
pub fn tokenizer_config() -> &'static [u8] {
    CONFIG
}

/// The chat template, Jinja.
#[must_use]
pub fn chat_template() -> &'static str {
    TEMPLATE
}

/// Writes the three files into `dir`, under the names that a model directory has.
///
/// # Errors
/// Where a file cannot be written.
pub fn write_tokenizer(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join("tokenizer.json"), TOKENIZER)?;
    std::fs::write(dir.join("tokenizer_config.json"), CONFIG)?;
    std::fs::write(dir.join("chat_template.jinja"), TEMPLATE)
}
