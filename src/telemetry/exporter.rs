//! The Prometheus text of all metrics.

use std::sync::{Mutex, PoisonError};

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use super::names::{self, Kind};

/// Seconds, from a tenth of a millisecond to ten minutes.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];

/// Tokens, from one to a million.
const TOKENS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    16384.0,
    32768.0,
    65536.0,
    131_072.0,
    262_144.0,
    524_288.0,
    1_048_576.0,
];

/// Renders the metrics; cheap to clone.
#[derive(Clone)]
pub struct Exporter(PrometheusHandle);

impl Exporter {
    /// Installs the recorder of this process; a second call gives the handle of the first.
    ///
    /// # Errors
    /// Where another recorder was installed by somebody else.
    pub fn install() -> Result<Self, BuildError> {
        static INSTALLED: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
        // Held to the end: of two gateways that start at once, one installs.
        let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = installed.as_ref() {
            return Ok(Self(handle.clone()));
        }
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
            .set_buckets_for_metric(Matcher::Suffix("_tokens".to_owned()), TOKENS)?;
        let handle = builder.install_recorder()?;
        *installed = Some(handle.clone());
        describe();
        Ok(Self(handle))
    }

    /// The Prometheus text (format 0.0.4).
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Moves buffered histogram samples into their buckets, and notes the log lines that were dropped; to be
    /// called every few seconds.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
        counter!(names::LOG_LINES_DROPPED).absolute(super::logs::dropped());
    }
}

fn describe() {
    for m in names::ALL {
        match m.kind {
            Kind::Counter => describe_counter!(m.name, m.unit, m.help),
            Kind::Gauge => describe_gauge!(m.name, m.unit, m.help),
            Kind::Histogram => describe_histogram!(m.name, m.unit, m.help),
        }
    }
    gauge!(names::BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    // Series that alerts rate() over must exist before their first event.
    counter!(names::LEDGER_WRITE_ERRORS).absolute(0);
    counter!(names::LOG_LINES_DROPPED).absolute(0);
    counter!(names::ENGINE_PREEMPTIONS).absolute(0);
    counter!(names::ENGINE_STARTS).absolute(0);
    counter!(names::COUNT_COMPARED).absolute(0);
    counter!(names::COUNT_BOUNDED).absolute(0);
    for direction in ["over", "under"] {
        counter!(names::COUNT_DRIFT, "direction" => direction).absolute(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{Event, emit};

    #[test]
    fn what_counts_is_one_series_of_several() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for library in ["none", "fast"] {
                emit(Event::CountsWith { library, all: &["fast", "slow", "none"] });
            }
            emit(Event::Bounded);
        });
        let page = recorder.handle().render();
        for (library, value) in [("fast", 1), ("slow", 0), ("none", 0)] {
            let line = format!("kvgate_tokenizer_info{{library=\"{library}\"}} {value}\n");
            assert!(page.contains(&line), "{page}");
        }
        assert!(page.contains("kvgate_count_bounded_total 1\n"), "{page}");
    }
}
