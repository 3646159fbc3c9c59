//! Which rules decide, which only say what they would have decided, and which sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

use crate::telemetry::{self, Event};

/// What a rule does with its verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The rule does not look.
    Off,
    /// The rule decides on books of its own, says what it would have done, and lets everything pass.
    Shadow,
    /// The rule decides.
    Enforce,
}

impl Mode {
    /// All modes, in the order of their metric labels.
    pub const ALL: [Self; 3] = [Self::Off, Self::Shadow, Self::Enforce];
    /// The labels of [`Mode::ALL`].
    pub const LABELS: [&'static str; 3] = ["off", "shadow", "enforce"];

    /// The metric label and the word in the configuration.
    #[must_use]
    pub const fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }

    const fn from_u8(n: u8) -> Self {
        match n {
            0 => Self::Off,
            1 => Self::Shadow,
            _ => Self::Enforce,
        }
    }
}

/// A rule with a mode of its own; also a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Bytes of the body.
    Body,
    /// Tokens of the prompt.
    Length,
    /// Features of the request.
    Shape,
    /// Requests per minute of a tenant.
    Rates,
    /// Room in the engine.
    Capacity,
    /// The learned size guard.
    Guard,
    /// Shapes that killed the engine.
    Quarantine,
    /// Paths that change the engine.
    Paths,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 8] = [
        Self::Body,
        Self::Length,
        Self::Shape,
        Self::Rates,
        Self::Capacity,
        Self::Guard,
        Self::Quarantine,
        Self::Paths,
    ];

    /// The metric label and the word in the configuration.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Length => "length",
            Self::Shape => "shape",
            Self::Rates => "rates",
            Self::Capacity => "capacity",
            Self::Guard => "guard",
            Self::Quarantine => "quarantine",
            Self::Paths => "paths",
        }
    }
}

/// The modes a start begins with; each may be changed while running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModeSettings {
    /// Bytes of the body; `enforce` unless set.
    pub body: Mode,
    /// Prompt length; `enforce` unless set.
    pub length: Mode,
    /// Features of the request; `shadow` unless set.
    pub shape: Mode,
    /// Requests per minute (where a rate is configured); `enforce` unless set.
    pub rates: Mode,
    /// Room in the engine; `enforce` unless set.
    pub capacity: Mode,
    /// The learned size guard; `shadow` unless set.
    pub guard: Mode,
    /// Shapes that killed the engine; `enforce` unless set (weak causes stay in shadow regardless).
    pub quarantine: Mode,
    /// Paths that change the engine; `enforce` unless set.
    pub paths: Mode,
}

impl ModeSettings {
    /// The mode of one rule.
    #[must_use]
    pub const fn of(&self, rule: Rule) -> Mode {
        match rule {
            Rule::Body => self.body,
            Rule::Length => self.length,
            Rule::Shape => self.shape,
            Rule::Rates => self.rates,
            Rule::Capacity => self.capacity,
            Rule::Guard => self.guard,
            Rule::Quarantine => self.quarantine,
            Rule::Paths => self.paths,
        }
    }
}

impl Default for ModeSettings {
    fn default() -> Self {
        Self {
            body: Mode::Enforce,
            length: Mode::Enforce,
            shape: Mode::Shadow,
            rates: Mode::Enforce,
            capacity: Mode::Enforce,
            guard: Mode::Shadow,
            quarantine: Mode::Enforce,
            paths: Mode::Enforce,
        }
    }
}

/// The modes in force: shared by all rooms, changed at once by the admin port.
#[derive(Debug, Clone)]
pub struct Modes(Arc<[AtomicU8; 8]>);

impl Default for Modes {
    fn default() -> Self {
        Self::new(&ModeSettings::default())
    }
}

impl Modes {
    /// The modes of the settings.
    #[must_use]
    pub fn new(settings: &ModeSettings) -> Self {
        let modes = Self(Arc::new(std::array::from_fn(|_| AtomicU8::new(Mode::Enforce as u8))));
        for rule in Rule::ALL {
            modes.set(rule, settings.of(rule));
        }
        modes
    }

    /// The mode of one rule.
    #[must_use]
    pub fn get(&self, rule: Rule) -> Mode {
        Mode::from_u8(self.0[rule as usize].load(Ordering::Relaxed))
    }

    /// Sets the mode of one rule, for the requests from now on.
    pub fn set(&self, rule: Rule, mode: Mode) {
        self.0[rule as usize].store(mode as u8, Ordering::Relaxed);
        telemetry::emit(Event::Mode { rule: rule.label(), mode: mode.label(), all: &Mode::LABELS });
    }

    /// Sets every rule: `set_all(Mode::Off)` is the panic button.
    pub fn set_all(&self, mode: Mode) {
        for rule in Rule::ALL {
            self.set(rule, mode);
        }
    }

    /// Whether every rule is off: kvgate is a plain proxy.
    #[must_use]
    pub fn all_off(&self) -> bool {
        Rule::ALL.into_iter().all(|rule| self.get(rule) == Mode::Off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let modes = Modes::default();
        for rule in Rule::ALL {
            let expected = match rule {
                Rule::Shape | Rule::Guard => Mode::Shadow,
                _ => Mode::Enforce,
            };
            assert_eq!(modes.get(rule), expected, "{}", rule.label());
        }
    }

    #[test]
    fn one_call_makes_a_plain_proxy_of_every_clone() {
        let modes = Modes::default();
        let seen_elsewhere = modes.clone();
        modes.set_all(Mode::Off);
        assert!(Rule::ALL.iter().all(|rule| seen_elsewhere.get(*rule) == Mode::Off));
        modes.set(Rule::Length, Mode::Shadow);
        assert_eq!(seen_elsewhere.get(Rule::Length), Mode::Shadow);
        assert_eq!(seen_elsewhere.get(Rule::Body), Mode::Off);
    }

    #[test]
    fn labels_agree_with_the_modes() {
        for mode in Mode::ALL {
            assert_eq!(Mode::from_u8(mode as u8), mode);
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.label());
        }
    }
}
