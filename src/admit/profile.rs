//! The profile file: the longest prompt that is known to run, for each class of request.
//!
//! ```toml
//! [max_prompt_tokens]
//! text = 32000
//! logprobs = 4000
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::request::{Shape, Tokens};

/// A class of requests that stress the engine in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Every request.
    Text,
    /// `prompt_logprobs`, or `echo` with `logprobs`: a row of the vocabulary for each prompt token.
    Logprobs,
    /// Images in the prompt.
    Images,
    /// Audio in the prompt.
    Audio,
    /// A LoRA adapter.
    Adapter,
    /// More than one sequence (`n`, `best_of`).
    Parallel,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 6] =
        [Self::Text, Self::Logprobs, Self::Images, Self::Audio, Self::Adapter, Self::Parallel];

    /// The word in the file.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Logprobs => "logprobs",
            Self::Images => "images",
            Self::Audio => "audio",
            Self::Adapter => "adapter",
            Self::Parallel => "parallel",
        }
    }

    /// Whether a request of this shape is in the class; one may be in several.
    #[must_use]
    pub fn holds(self, shape: &Shape) -> bool {
        match self {
            Self::Text => true,
            Self::Logprobs => shape.prompt_logprobs.is_some() || (shape.echo && shape.top_logprobs.is_some()),
            Self::Images => shape.images > 0,
            Self::Audio => shape.audio_seconds.is_some_and(|seconds| seconds > 0.0),
            Self::Adapter => shape.adapter.is_some(),
            Self::Parallel => shape.n > 1 || shape.best_of.is_some_and(|n| n > 1),
        }
    }
}

/// What is wrong with a profile file.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Not TOML, or not of this form.
    #[error("the profile cannot be read: {0}")]
    Form(#[from] toml::de::Error),
    /// A class that this version does not know: it would otherwise be silently unenforced.
    #[error("unknown class `{name}` in the profile's max_prompt_tokens; known are: {known}")]
    UnknownClass {
        /// The name in the file.
        name: String,
        /// The names that are known.
        known: String,
    },
    /// A limit of zero.
    #[error("max_prompt_tokens.{class} is 0; a limit is at least 1")]
    Zero {
        /// The class.
        class: &'static str,
    },
}

/// A profile file, read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    limits: BTreeMap<Class, Tokens>,
}

#[derive(Deserialize)]
struct File {
    max_prompt_tokens: BTreeMap<String, u64>,
}

impl Profile {
    /// Reads the text of a profile file; further tables in it (how it was measured) are ignored.
    ///
    /// # Errors
    ///
    /// [`ProfileError`]: not TOML, no table of limits, an unknown class, a limit of zero.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let file: File = toml::from_str(text)?;
        let mut limits = BTreeMap::new();
        for (name, limit) in file.max_prompt_tokens {
            let Some(class) = Class::ALL.into_iter().find(|class| class.label() == name) else {
                let known = Class::ALL.map(Class::label).join(", ");
                return Err(ProfileError::UnknownClass { name, known });
            };
            if limit == 0 {
                return Err(ProfileError::Zero { class: class.label() });
            }
            limits.insert(class, Tokens(limit));
        }
        Ok(Self { limits })
    }

    /// The smallest limit of the classes that hold for a shape.
    #[must_use]
    pub fn limit_for(&self, shape: &Shape) -> Option<Tokens> {
        self.limits.iter().filter(|(class, _)| class.holds(shape)).map(|(_, limit)| *limit).min()
    }

    /// The limits by class, for the state page.
    pub fn limits(&self) -> impl Iterator<Item = (Class, Tokens)> + '_ {
        self.limits.iter().map(|(class, limit)| (*class, *limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_smallest_limit_of_the_classes_of_a_shape_holds() {
        let profile = Profile::parse(
            "[max_prompt_tokens]\ntext = 32000\nlogprobs = 4000\nimages = 9000\n[measured]\nwhen = 1",
        )
        .unwrap();
        assert_eq!(profile.limit_for(&Shape::default()), Some(Tokens(32_000)));
        let logprobs = Shape { prompt_logprobs: Some(0), images: 1, ..Shape::default() };
        assert_eq!(profile.limit_for(&logprobs), Some(Tokens(4000)));
        assert_eq!(Profile::parse("[max_prompt_tokens]").unwrap().limit_for(&Shape::default()), None);
        // A misspelt table would otherwise be no limit at all.
        let error = Profile::parse("[max_promt_tokens]\ntext = 1").unwrap_err().to_string();
        assert!(error.contains("max_prompt_tokens"), "{error}");
    }

    #[test]
    fn an_unknown_class_is_a_clear_error() {
        let error = Profile::parse("[max_prompt_tokens]\nvideo = 1").unwrap_err();
        assert!(error.to_string().contains("`video`") && error.to_string().contains("logprobs"), "{error}");
        assert!(matches!(
            Profile::parse("[max_prompt_tokens]\ntext = 0"),
            Err(ProfileError::Zero { class: "text" })
        ));
        assert!(Profile::parse("[max_prompt_tokens]\ntext = -1").is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = Profile::parse(&text);
        }
    }
}
