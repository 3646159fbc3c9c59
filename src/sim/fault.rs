//! What can go wrong on demand: by [`super::Settings`], by [`super::Sim::fault`], by `POST /sim/fault`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One fault. As JSON: `{"fault":"die"}`, `{"fault":"slow_metrics","seconds":2.5}` and so on.
///
/// A death is over in a moment; the others last until [`Fault::Recover`] or a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// The engine core dies and the API server tells everybody, then goes: streams get an error
    /// event and `[DONE]`, plain requests 500, `/health` 503 for about 50 ms, then connections are
    /// refused (vLLM 0.32 after a SIGKILL of its core).
    Die {
        /// Seconds until it listens again; `None` takes the setting of that name.
        #[serde(default)]
        load_seconds: Option<f64>,
    },
    /// The whole process dies at once: every connection is reset.
    DieHard {
        /// Seconds until it listens again; `None` takes the setting of that name.
        #[serde(default)]
        load_seconds: Option<f64>,
    },
    /// A dead engine starts to load; a living one dies hard first.
    Restart {
        /// Seconds of loading.
        load_seconds: f64,
    },
    /// No step is made any more; `/health` still says 200 and the gauges stand still.
    Hang,
    /// One request gets no further output, though its sequences run on.
    Stall {
        /// Part of its id; `None` takes the oldest that is in flight.
        #[serde(default)]
        id: Option<String>,
    },
    /// `/metrics` answers late.
    SlowMetrics {
        /// How late, in seconds.
        seconds: f64,
    },
    /// `/metrics` answers 404.
    MetricsAbsent,
    /// Idle kept-alive connections accepted from now on are closed after a time.
    CloseIdle {
        /// That time in seconds.
        seconds: f64,
    },
    /// New requests are refused as busy beyond so many sequences.
    Busy {
        /// Sequences waiting and running that are still taken; 0 refuses all.
        max_num_queued_reqs: u64,
    },
    /// A prompt of so many tokens or more kills the engine with an out-of-memory error.
    OomPromptTokens {
        /// Tokens of a single prompt, at least 1.
        tokens: u64,
    },
    /// Streams end cleanly but without `[DONE]`.
    EndStreamEarly {
        /// After so many output tokens.
        after_tokens: u64,
    },
    /// Streams are cut inside the chunked body.
    CutStream {
        /// After so many output tokens.
        after_tokens: u64,
    },
    /// Everything above that lasts is over.
    Recover,
}

/// What a connection meets while the engine loads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loading {
    /// Connection refused (vLLM listens only once it is ready).
    #[default]
    Refused,
    /// 503 with llama.cpp's `Loading model` body.
    Answers503,
}

/// How a stream ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The chunked body ends properly, `[DONE]` is missing.
    Early,
    /// The connection is closed inside the chunked body.
    Cut,
}

/// How the engine dies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Death {
    /// Whether connections are reset instead of answered.
    pub hard: bool,
    /// Seconds of loading before the next life; `None` is for the settings to say.
    pub load_seconds: Option<f64>,
}

/// The lasting faults in force.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Switches {
    /// Steps stand still.
    pub hang: bool,
    /// How late `/metrics` answers.
    pub metrics_delay: Option<Duration>,
    /// Whether `/metrics` is gone.
    pub metrics_absent: bool,
    /// Idle time after which a connection is closed, where it differs from the setting.
    pub close_idle: Option<Duration>,
    /// Sequences still taken, where it differs from the setting.
    pub max_num_queued_reqs: Option<u64>,
    /// Prompt tokens that kill.
    pub oom_prompt_tokens: Option<u64>,
    /// After how many output tokens streams end, and how.
    pub stream_end: Option<(u64, StreamEnd)>,
}

/// What a fault asks for beyond a switch.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Deed {
    /// Nothing: a switch was set.
    Switched,
    /// The engine dies.
    Die(Death),
    /// The engine loads again, dying first where it lives.
    Restart(f64),
    /// One request falls silent.
    Stall(Option<String>),
}

impl Switches {
    /// Takes a fault: sets what lasts, says what is to be done.
    pub fn apply(&mut self, fault: Fault) -> Deed {
        match fault {
            Fault::Die { load_seconds } => return Deed::Die(Death { hard: false, load_seconds }),
            Fault::DieHard { load_seconds } => return Deed::Die(Death { hard: true, load_seconds }),
            Fault::Restart { load_seconds } => return Deed::Restart(load_seconds),
            Fault::Stall { id } => return Deed::Stall(id),
            Fault::Hang => self.hang = true,
            Fault::SlowMetrics { seconds } => self.metrics_delay = Some(duration(seconds)),
            Fault::MetricsAbsent => self.metrics_absent = true,
            Fault::CloseIdle { seconds } => self.close_idle = Some(duration(seconds)),
            Fault::Busy { max_num_queued_reqs } => self.max_num_queued_reqs = Some(max_num_queued_reqs),
            Fault::OomPromptTokens { tokens } => self.oom_prompt_tokens = Some(tokens.max(1)),
            Fault::EndStreamEarly { after_tokens } => {
                self.stream_end = Some((after_tokens, StreamEnd::Early));
            }
            Fault::CutStream { after_tokens } => self.stream_end = Some((after_tokens, StreamEnd::Cut)),
            Fault::Recover => *self = Self::default(),
        }
        Deed::Switched
    }
}

/// Seconds as a duration, at least a millisecond and at most a day; nonsense counts as a millisecond.
pub(super) fn duration(seconds: f64) -> Duration {
    let seconds = if seconds.is_finite() { seconds.clamp(0.001, 86_400.0) } else { 0.001 };
    Duration::from_secs_f64(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_from_json() {
        let read = |s: &str| serde_json::from_str::<Fault>(s);
        assert_eq!(read(r#"{"fault":"die"}"#).unwrap(), Fault::Die { load_seconds: None });
        assert_eq!(
            read(r#"{"fault":"die_hard","load_seconds":2}"#).unwrap(),
            Fault::DieHard { load_seconds: Some(2.0) }
        );
        assert_eq!(read(r#"{"fault":"hang"}"#).unwrap(), Fault::Hang);
        assert_eq!(
            read(r#"{"fault":"oom_prompt_tokens","tokens":9}"#).unwrap(),
            Fault::OomPromptTokens { tokens: 9 }
        );
        assert!(read(r#"{"fault":"nothing"}"#).is_err());
        assert!(read(r#"{"fault":"slow_metrics"}"#).is_err());
    }

    #[test]
    fn recover_clears_what_lasts() {
        let mut switches = Switches::default();
        assert_eq!(switches.apply(Fault::Hang), Deed::Switched);
        switches.apply(Fault::CutStream { after_tokens: 3 });
        assert!(switches.hang && switches.stream_end.is_some());
        switches.apply(Fault::Recover);
        assert_eq!(switches, Switches::default());
    }
}
