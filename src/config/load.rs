//! Reads the configuration from its three sources.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::Config;

/// Environment variables with this prefix set a key: `KVGATE__PROXY__LISTEN` is `proxy.listen`.
const PREFIX: &str = "KVGATE__";
/// A larger file is none.
const MOST_BYTES: u64 = 4 << 20;

/// A flag's key and value, which outweigh file and environment.
#[derive(Debug, Default)]
pub struct Overrides(Vec<(&'static str, Value)>);

impl Overrides {
    /// Sets `key` (dotted) where a value is given.
    pub fn set(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.0.push((key, value.into()));
        }
    }

    /// Sets `key` to a path where one is given.
    pub fn set_path(&mut self, key: &'static str, path: Option<&Path>) {
        self.set(key, path.map(|p| p.to_string_lossy().into_owned()));
    }
}

/// Why there is no configuration.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read.
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Something does not parse: the text names file, line and key.
    Wrong {
        /// File, environment or flags.
        source: String,
        /// What, and where.
        error: String,
    },
    /// Values are out of their range or do not go together.
    Problems(Vec<String>),
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { file, error } => write!(f, "{}: {error}", file.display()),
            Self::Wrong { source, error } => write!(f, "{source}: {}", error.trim_end()),
            Self::Problems(problems) => write!(f, "{}", problems.join("\n")),
        }
    }
}

/// Reads `file`, then the environment (`KVGATE__ROOM__KEY`), then `overrides`.
///
/// # Errors
/// [`ConfigError`]: names file, line, key, the value and what would be right.
pub fn load(
    file: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    overrides: &Overrides,
) -> Result<Config, ConfigError> {
    let mut table = Table::new();
    if let Some(path) = file {
        let text = read(path).map_err(|error| ConfigError::Unreadable { file: path.to_owned(), error })?;
        let source = path.display().to_string();
        let wrong = |e: toml::de::Error| ConfigError::Wrong { source: source.clone(), error: e.to_string() };
        // Read alone first: only then an error can name its line.
        toml::from_str::<Config>(&text).map_err(wrong)?;
        table = text.parse::<Table>().map_err(wrong)?;
    }
    for (name, text) in env {
        let Some(key) = name.strip_prefix(PREFIX) else { continue };
        let key = key.to_ascii_lowercase().replace("__", ".");
        put(&mut table, &key, parse_value(&text))
            .and_then(|()| check(&table))
            .map_err(|error| ConfigError::Wrong { source: format!("environment variable {name}"), error })?;
    }
    for (key, value) in &overrides.0 {
        put(&mut table, key, value.clone())
            .and_then(|()| check(&table))
            .map_err(|error| ConfigError::Wrong { source: format!("command line ({key})"), error })?;
    }
    let config: Config = table.try_into().map_err(|e: toml::de::Error| ConfigError::Wrong {
        source: "configuration".into(),
        error: e.to_string(),
    })?;
    let problems = config.problems();
    if problems.is_empty() {
        return Ok(config);
    }
    let place = file.map_or(String::new(), |f| format!("{}: ", f.display()));
    Err(ConfigError::Problems(problems.into_iter().map(|p| format!("{place}{p}")).collect()))
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("over {MOST_BYTES} bytes")));
    }
    Ok(text)
}

fn check(table: &Table) -> Result<(), String> {
    table.clone().try_into::<Config>().map(|_| ()).map_err(|e| e.to_string())
}

/// A TOML value where the text is one (`5`, `true`, `["a"]`), else the text.
fn parse_value(text: &str) -> Value {
    let line = format!("v = {text}");
    line.parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

fn put(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let (path, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut at = table;
    for part in path.split('.').filter(|p| !p.is_empty()) {
        let next = at.entry(part).or_insert_with(|| Value::Table(Table::new()));
        at = next.as_table_mut().ok_or_else(|| format!("`{part}` in `{key}` is a value, not a table"))?;
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str, env: &[(&str, &str)], overrides: &Overrides) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        load(Some(file.path()), env, overrides)
    }

    #[test]
    fn flags_outweigh_the_environment_and_that_the_file() {
        let text = "[proxy]\nmax_body_bytes = 1000\nmax_connections = 5\nlinger_seconds = 1.0\n";
        let env = [
            ("KVGATE__PROXY__MAX_CONNECTIONS", "6"),
            ("KVGATE__PROXY__LINGER_SECONDS", "2.0"),
            ("HOME", "/"),
        ];
        let mut flags = Overrides::default();
        flags.set("proxy.linger_seconds", Some(3.0));
        let config = from(text, &env, &flags).unwrap();
        assert_eq!(config.proxy.max_body_bytes, 1000);
        assert_eq!(config.proxy.max_connections, 6);
        assert!((config.proxy.linger_seconds - 3.0).abs() < 1e-9);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = from("[proxy]\nlinger_seconds = 1.0\nmax_boddy_bytes = 3\n", &[], &Overrides::default());
        let text = error.unwrap_err().to_string();
        assert!(text.contains("line 3") && text.contains("max_boddy_bytes"), "{text}");
    }

    #[test]
    fn a_wrong_variable_is_named() {
        let error = from("", &[("KVGATE__PROXY__MAX_CONNECTIONS", "many")], &Overrides::default());
        let text = error.unwrap_err().to_string();
        assert!(text.contains("KVGATE__PROXY__MAX_CONNECTIONS"), "{text}");
    }

    #[test]
    fn a_value_out_of_range_names_key_value_and_range() {
        let error = from("[proxy]\nconnect_timeout_seconds = -1.0\n", &[], &Overrides::default());
        let text = error.unwrap_err().to_string();
        assert!(text.contains("proxy.connect_timeout_seconds = -1"), "{text}");
    }
}
