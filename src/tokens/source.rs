//! Where counts come from.

use std::sync::Arc;

use serde::Serialize;

use super::{Ask, Encoder};

/// Where counts come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceInfo {
    /// `tokenizer`, `engine` (asked each time) or `none`.
    pub kind: &'static str,
    /// What named it: a path, a setting.
    pub said_by: Option<String>,
    /// The library that counts.
    pub library: Option<&'static str>,
    /// Why it is not the fastest one.
    pub why_slow: Option<String>,
    /// What renders conversations in the engine where it is no template: the engine is then asked for their
    /// counts, where it can be.
    pub renderer: Option<&'static str>,
}

impl SourceInfo {
    /// All labels: [`SourceInfo::label`].
    pub const LABELS: [&str; 5] = ["fastokens", "merges", "tokenizers", "engine", "none"];

    /// One word: the library, or where none counts the kind.
    #[must_use]
    pub fn label(&self) -> &'static str {
        self.library.unwrap_or(self.kind)
    }

    const fn of(kind: &'static str) -> Self {
        Self { kind, said_by: None, library: None, why_slow: None, renderer: None }
    }
}

/// The sources there are.
#[derive(Clone, Default)]
pub struct Sources {
    /// A tokenizer, and what named it.
    pub encoder: Option<(Arc<Encoder>, String)>,
    /// The way to ask the engine.
    pub engine: Option<Ask>,
}

impl Sources {
    /// The one in force.
    pub fn info(self) -> SourceInfo {
        match (self.encoder, self.engine) {
            (Some((encoder, said_by)), _) => {
                let (library, why_slow) = encoder.tokenizer().counted_by();
                let renderer = encoder.renderer();
                SourceInfo {
                    kind: "tokenizer",
                    said_by: Some(said_by),
                    library: Some(library),
                    why_slow,
                    renderer,
                }
            }
            (None, Some(_)) => {
                SourceInfo { said_by: Some("/tokenize".to_owned()), ..SourceInfo::of("engine") }
            }
            (None, None) => SourceInfo::of("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::unsplit::tests::file;

    #[test]
    fn every_source_has_its_label() {
        let json = include_bytes!("../sim/tokenizer/tokenizer.json");
        let encoder = Arc::new(Encoder::from_parts(json, None, None).unwrap());
        let engine: Ask = Arc::new(|_| Box::pin(async { Ok(1) }));
        let label = |encoder: Option<&Arc<Encoder>>, engine: Option<&Ask>| {
            let encoder = encoder.map(|encoder| (Arc::clone(encoder), String::new()));
            Sources { encoder, engine: engine.cloned() }.info().label()
        };
        let mut seen = vec![label(Some(&encoder), Some(&engine))];
        let unsplit = file(&[(1, 2)], true, true, false).to_string();
        let unsplit = Arc::new(Encoder::from_parts(unsplit.as_bytes(), None, None).unwrap());
        seen.push(label(Some(&unsplit), None));
        encoder.tokenizer().backend().distrust();
        seen.push(label(Some(&encoder), None));
        seen.extend([label(None, Some(&engine)), label(None, None)]);
        assert_eq!(seen, SourceInfo::LABELS);
    }
}
