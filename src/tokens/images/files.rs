//! Numbers out of a model's configuration files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_json::{Map, Value};

/// Why the cost of images is not known for a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VisionError {
    /// The model takes images (or sound, or video) in a way that is not known here.
    #[error("the cost of images is not known for models of type {model_type:?}")]
    UnknownFamily {
        /// `model_type` of `config.json`, at most 64 characters of it.
        model_type: String,
    },
    /// A file is missing that the family's rule needs.
    #[error("the cost of images cannot be known without {file}")]
    Missing {
        /// The file's name.
        file: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {file}: {reason}")]
    Read {
        /// The file's name.
        file: &'static str,
        /// The system's words.
        reason: String,
    },
    /// A file does not say what it should.
    #[error("{file} is not usable: {reason}")]
    Invalid {
        /// The file's name.
        file: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// Bytes of a configuration file that are read; real ones have a few thousand.
const MOST_BYTES: u64 = 4 << 20;

/// A file of a model's directory; nothing where it is not there.
pub fn read(dir: &Path, file: &'static str) -> Result<Option<Vec<u8>>, VisionError> {
    let failed = |error: io::Error| VisionError::Read { file, reason: error.to_string() };
    let opened = match File::open(dir.join(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    opened.take(MOST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// One configuration file, or an object in it.
#[derive(Debug, Clone, Copy)]
pub struct Section<'a> {
    file: &'static str,
    values: Option<&'a Map<String, Value>>,
}

/// No side, edge, patch or count is larger than this: the product of two, and a few sums, stay within
/// 64 bits.
const LARGEST: u64 = 1 << 31;

impl<'a> Section<'a> {
    /// A file's own values.
    pub const fn new(file: &'static str, values: Option<&'a Map<String, Value>>) -> Self {
        Self { file, values }
    }

    /// Whether there is anything.
    pub const fn exists(self) -> bool {
        self.values.is_some()
    }

    /// A value that is there and not null.
    pub fn get(self, key: &str) -> Option<&'a Value> {
        self.values?.get(key).filter(|value| !value.is_null())
    }

    /// A text.
    pub fn text(self, key: &str) -> Option<&'a str> {
        self.get(key)?.as_str()
    }

    /// The object behind a key, or one without values.
    pub fn section(self, key: &str) -> Self {
        Self { file: self.file, values: self.get(key).and_then(Value::as_object) }
    }

    /// A whole number from 1 to 2³¹; nothing where the key is absent.
    pub fn number(self, key: &str) -> Result<Option<u64>, VisionError> {
        self.get(key).map(|value| self.positive(key, value)).transpose()
    }

    /// The same, or what it is by default.
    pub fn number_or(self, key: &str, default: u64) -> Result<u64, VisionError> {
        Ok(self.number(key)?.unwrap_or(default))
    }

    /// A whole number from 1 to 2³¹.
    pub fn positive(self, key: &str, value: &Value) -> Result<u64, VisionError> {
        // Some files write 1024.0.
        let whole = value.as_f64().filter(|number| number.fract() == 0.0);
        let number = whole.filter(|number| (1.0..=LARGEST as f64).contains(number));
        number.map(|number| number as u64).ok_or_else(|| self.invalid(format!("{key} is {value}")))
    }

    /// An error about this file.
    pub fn invalid(self, reason: String) -> VisionError {
        VisionError::Invalid { file: self.file, reason: reason.chars().take(200).collect() }
    }
}
