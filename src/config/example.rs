//! The example file says what is true: it parses to the defaults and names every key.

use super::{Config, Overrides, load};
use std::path::Path;

fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/kvgate.example.toml")
}

#[test]
fn the_example_is_the_default_configuration() {
    let config = load(Some(&example()), std::iter::empty(), &Overrides::default()).unwrap();
    assert_eq!(config, Config::default());
}

/// The keys of a table and those below it, dotted.
fn keys(prefix: &str, table: &toml::Table, into: &mut Vec<String>) {
    for (key, value) in table {
        let name = format!("{prefix}{key}");
        match value.as_table() {
            Some(inner) => keys(&format!("{name}."), inner, into),
            None => into.push(name),
        }
    }
}

#[test]
fn the_example_names_every_key() {
    let text = std::fs::read_to_string(example()).unwrap();
    // With the commented keys switched on it has them all; a key that does not exist would be refused.
    let all: String = text
        .lines()
        .map(|line| {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            let is_key = bare
                .split_once(" = ")
                .is_some_and(|(k, _)| k.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            format!("{}\n", if is_key { bare } else { line })
        })
        .collect();
    let example: toml::Table = all.parse().unwrap();
    let typed: Result<Config, _> = example.clone().try_into();
    typed.unwrap();
    let default: toml::Table = toml::Table::try_from(Config::default()).unwrap();
    let (mut have, mut want) = (Vec::new(), Vec::new());
    keys("", &example, &mut have);
    keys("", &default, &mut want);
    let missing: Vec<_> = want.iter().filter(|k| !have.contains(k)).collect();
    assert!(missing.is_empty(), "missing in config/kvgate.example.toml: {missing:?}");
    for optional in ["engine.key_file", "operate.token_file", "tokens.tokenizer", "ledger.state_dir"] {
        assert!(have.iter().any(|k| k == optional), "{optional}");
    }
}
