//! Whether the disk takes what is written, and saying so: an alarm, a count, at most one log line a second.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::{self, Alarm, Event};

const SAY_EVERY: Duration = Duration::from_secs(1);

/// Shared by all who write and the thread.
#[derive(Debug)]
pub(super) struct Trouble {
    /// Whether what is handed over will be written: else the journal no longer says what is in flight,
    /// until a new segment does.
    accepting: AtomicBool,
    /// Whether it is written too late to be waited for; nothing is missing yet.
    late: AtomicBool,
    lost: AtomicU64,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    alarm: bool,
    last: Option<Instant>,
    why: String,
}

impl Default for Trouble {
    fn default() -> Self {
        let (accepting, late) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { accepting, late, lost: AtomicU64::new(0), said: Mutex::default() }
    }
}

impl Trouble {
    /// Whether records are to be handed to the thread at all.
    pub(super) fn accepting(&self) -> bool {
        self.accepting.load(Ordering::Acquire)
    }

    /// From now on records are handed over again; call it BEFORE reading what is in flight, so that an
    /// end which that reading misses is written behind it.
    pub(super) fn accept(&self) {
        self.accepting.store(true, Ordering::Release);
    }

    /// Whether the last write that was waited for came too late.
    pub(super) fn is_late(&self) -> bool {
        self.late.load(Ordering::Acquire)
    }

    /// A record was not written while its request waited; it will be.
    pub(super) fn late(&self, why: &str) {
        self.late.store(true, Ordering::Release);
        self.alarm(why, 1);
    }

    /// A write came through.
    pub(super) fn on_time(&self) {
        if self.is_late() && self.accepting() {
            self.clear();
        }
    }

    /// Records could not be written, and none will be tried until the thread has recovered.
    pub(super) fn raise(&self, why: &str, records: u64) {
        self.accepting.store(false, Ordering::Release);
        self.alarm(why, records);
    }

    fn alarm(&self, why: &str, records: u64) {
        self.lost.fetch_add(records, Ordering::Relaxed);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        why.clone_into(&mut said.why);
        if !std::mem::replace(&mut said.alarm, true) {
            let detail = format!("requests go on without a journal: {why}");
            telemetry::emit(Event::Alarm { alarm: Alarm::LedgerWrite, active: true, detail: &detail });
        }
        self.say(&mut said, false);
    }

    /// Further records are lost while the trouble lasts.
    pub(super) fn lost(&self, records: u64) {
        self.lost.fetch_add(records, Ordering::Relaxed);
        if let Ok(mut said) = self.said.try_lock() {
            self.say(&mut said, false);
        }
    }

    /// A new segment holds the truth, or a late write came through.
    pub(super) fn clear(&self) {
        self.late.store(false, Ordering::Release);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        self.say(&mut said, true);
        if std::mem::replace(&mut said.alarm, false) {
            let detail = "the journal is written again";
            telemetry::emit(Event::Alarm { alarm: Alarm::LedgerWrite, active: false, detail });
        }
    }

    fn say(&self, said: &mut Said, now: bool) {
        if !now && said.last.is_some_and(|at| at.elapsed() < SAY_EVERY) {
            return;
        }
        let records = self.lost.swap(0, Ordering::Relaxed);
        if records > 0 {
            said.last = Some(Instant::now());
            telemetry::emit(Event::LedgerWriteError { error: &said.why, records });
        }
    }
}
