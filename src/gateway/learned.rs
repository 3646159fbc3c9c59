//! What deaths have taught, kept in the state directory: a restart of the gateway does not let the killer in again.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::small_file;
use crate::admit::Gate;
use crate::request::Tokens;

/// The file.
const NAME: &str = "learned.json";
/// How often it is looked whether there is news.
const EVERY: Duration = Duration::from_secs(1);

/// The file's text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Learned {
    /// The longest prompt that passes the rule `guard`.
    guard_tokens: Option<u64>,
}

/// Tells the gate what an earlier run has learned, and returns what keeps the file from now on. A file that cannot be
/// read is said, and teaches nothing.
pub(super) fn recall(dir: &Path, gate: &Gate) -> Keeper {
    let file = dir.join(NAME);
    let known = match read(&file) {
        Ok(known) => known,
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "what earlier deaths taught cannot be read");
            Learned::default()
        }
    };
    if let Some(tokens) = known.guard_tokens {
        tracing::warn!(
            guard_tokens = tokens,
            file = %file.display(),
            "a death before this start taught the rule guard; PATCH /api/v1/limits with {{\"guard_tokens\":null}} forgets it"
        );
        gate.recall_guard(Tokens(tokens));
    }
    Keeper { file, known, gate: gate.clone() }
}

/// Writes what changes.
pub(super) struct Keeper {
    file: PathBuf,
    known: Learned,
    gate: Gate,
}

impl Keeper {
    /// For as long as the gateway runs. A disk that takes nothing is said once for each news, and tried again.
    pub(super) async fn run(mut self) {
        let mut turns = interval(EVERY);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = None;
        loop {
            turns.tick().await;
            let now = Learned { guard_tokens: self.gate.guard().map(Tokens::get) };
            if now == self.known {
                continue;
            }
            let file = self.file.clone();
            match spawn_blocking(move || write(&file, now)).await {
                Ok(Ok(())) => self.known = now,
                Ok(Err(error)) if said != Some(now) => {
                    said = Some(now);
                    tracing::warn!(file = %self.file.display(), %error, "what a death taught is not kept");
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}

fn read(file: &Path) -> io::Result<Learned> {
    match small_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Learned::default()),
        text => serde_json::from_str(&text?).map_err(Into::into),
    }
}

/// Beside first, then into place: at any moment the file is whole.
fn write(file: &Path, learned: Learned) -> io::Result<()> {
    let beside = file.with_extension("json.tmp");
    let mut to = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&beside)?;
    to.write_all(&serde_json::to_vec(&learned)?)?;
    to.sync_all()?;
    fs::rename(&beside, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::{Modes, Settings};

    #[tokio::test]
    async fn a_later_run_knows_what_an_earlier_one_has_learned_and_that_it_was_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let gate = || Gate::new(&Settings::default(), Modes::default());
        let first = gate();
        let keeper = tokio::spawn(recall(dir.path(), &first).run());
        first.recall_guard(Tokens(700));
        let kept = |want: Option<u64>| {
            let file = dir.path().join(NAME);
            async move {
                let so = || read(&file).is_ok_and(|learned| learned.guard_tokens == want);
                while !so() {
                    tokio::task::yield_now().await;
                }
            }
        };
        kept(Some(700)).await;
        let second = gate();
        drop(recall(dir.path(), &second));
        assert_eq!(second.guard(), Some(Tokens(700)));
        first.forget_guard();
        kept(None).await;
        keeper.abort();
        let third = gate();
        drop(recall(dir.path(), &third));
        assert_eq!(third.guard(), None);
    }

    #[test]
    fn a_file_that_is_no_such_file_teaches_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(NAME);
        for text in ["", "{", "[]", "{\"guard_tokens\":-1}", "{\"guard_tokens\":\"x\"}", &" ".repeat(5000)] {
            fs::write(&file, text).unwrap();
            assert!(read(&file).is_err(), "{text:?}");
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(read(&file).unwrap(), Learned::default());
        fs::create_dir(&file).unwrap();
        assert!(read(&file).is_err());
    }
}
