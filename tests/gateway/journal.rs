//! `kill -9` at random moments: what the journal then says.
//!
//! The test runs its own binary again as the one to be killed: that opens a ledger and says on stdout
//! what it is about to send, has sent, and has ended.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::{HashMap, HashSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use kvgate::ledger::{Arrival, Ending, Entry, Ledger, Recovered, Settings};
use kvgate::request::{Outcome, RequestId, Shape, Tenant, Tokens};

const DIRECTORY: &str = "KVGATE_TEST_JOURNAL_DIR";
const ROUNDS: usize = 20;
/// How old the end of a request may be and yet missing from the journal, in seconds …
const END_MAY_LAG: f64 = 0.050;
/// … except in so many rounds, where a busy machine gave the victim no processor time for longer.
const STALLED_ROUNDS: usize = 5;

fn settings(dir: &Path) -> Settings {
    // Small, so that segments are rotated under load too.
    Settings { state_dir: Some(dir.to_owned()), journal_bytes: 128 << 10, sync: false }
}

/// Opens the ledger, once whoever had the directory has let go of it.
fn opened(dir: &Path) -> (Ledger, Recovered) {
    for _ in 0..10_000 {
        let (ledger, recovered) = Ledger::open(&settings(dir));
        if recovered.durable {
            return (ledger, recovered);
        }
        std::thread::yield_now();
    }
    panic!("the directory stays taken");
}

fn unix_now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

fn say(word: &str, id: &str) {
    writeln!(std::io::stdout().lock(), "{word} {id} {:.6}", unix_now()).unwrap();
}

fn arrive(ledger: &Ledger) -> Entry {
    ledger.arrive(Arrival {
        id: RequestId::next(),
        client_id: None,
        tenant: Tenant::anonymous(),
        shape: Shape { prompts: 1, ..Shape::default() },
    })
}

/// The one to be killed; does nothing where it is not asked to.
#[test]
fn journal_victim() {
    let Some(dir) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let (ledger, _) = opened(&dir);
    // The test harness has begun a line.
    writeln!(std::io::stdout().lock()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let workers: Vec<_> = (0..8).map(|_| tokio::spawn(work(ledger.clone()))).collect();
        for worker in workers {
            worker.await.unwrap();
        }
    });
}

async fn work(ledger: Ledger) {
    let mut open: Vec<Entry> = Vec::new();
    loop {
        let entry = arrive(&ledger);
        let id = entry.id().to_owned();
        say("sending", &id);
        entry.send(Tokens(100)).await;
        // A record that was late has been said to be: no promise holds for it.
        say(if ledger.is_durable() { "sent" } else { "unsure" }, &id);
        open.push(entry);
        if open.len() > fastrand::usize(..16) {
            let entry = open.swap_remove(fastrand::usize(..open.len()));
            let id = entry.id().to_owned();
            say("ending", &id);
            entry.end(Ending { outcome: Outcome::Completed, status: 200, reason: None });
            say("ended", &id);
        }
        tokio::task::yield_now().await;
    }
}

fn victim(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "journal::journal_victim", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, dir)
        .env("RUST_LOG", "off")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What a victim said until it was killed.
#[derive(Default)]
struct Said {
    sending: HashSet<String>,
    sent: HashSet<String>,
    ending: HashSet<String>,
    ended: HashMap<String, f64>,
    /// Ended before the sending of one that was then sent: whoever wrote that one wrote these ends too.
    settled: HashSet<String>,
    /// For each that is being sent: those that had ended when it began.
    before: HashMap<String, Vec<String>>,
    killed_after: f64,
}

impl Said {
    fn hear(&mut self, word: &str, id: &str, at: f64) -> bool {
        let id = id.to_owned();
        match word {
            "sending" => {
                let unsettled = self.ended.keys().filter(|e| !self.settled.contains(*e)).cloned().collect();
                self.before.insert(id.clone(), unsettled);
                self.sending.insert(id)
            }
            "sent" => {
                self.settled.extend(self.before.remove(&id).unwrap_or_default());
                self.sent.insert(id)
            }
            "ending" => self.ending.insert(id),
            "ended" => self.ended.insert(id, at).is_none(),
            _ => return false,
        };
        true
    }
}

/// Kills the victim after a random number of its lines and reads what it still had said.
fn kill_at_random(mut child: Child) -> Said {
    let mut said = Said::default();
    let mut lines = 0;
    let kill_at = fastrand::usize(50..3000);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let Ok(line) = line else { break };
        let words: Vec<_> = line.split(' ').collect();
        // The last line may have been cut short by the kill.
        let [word, id, at] = words[..] else { continue };
        if !said.hear(word, id, at.parse().unwrap_or(f64::MAX)) {
            continue;
        }
        lines += 1;
        if lines == kill_at {
            said.killed_after = unix_now();
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(lines >= kill_at, "the victim ended by itself after {lines} lines");
    said
}

#[test]
fn after_kill_9_the_journal_holds_all_that_was_sent_and_nothing_that_ended_long_ago() {
    let dir = tempfile::tempdir().unwrap();
    let (mut stalled, mut sent) = (0, 0);
    for round in 0..ROUNDS {
        let said = kill_at_random(victim(dir.path()));
        let (_, recovered) = opened(dir.path());
        let found: HashSet<String> = recovered.unfinished.into_iter().map(|r| r.id).collect();
        for id in said.sent.difference(&said.ending) {
            assert!(found.contains(id), "round {round}: {id} is missing");
        }
        for id in &found {
            assert!(said.sending.contains(id), "round {round}: {id} was never sent");
            assert!(!said.settled.contains(id), "round {round}: {id} had ended before another was sent");
        }
        let lag = |id: &String| said.ended.get(id).map_or(0.0, |at| said.killed_after - at);
        stalled += usize::from(found.iter().any(|id| lag(id) > END_MAY_LAG));
        sent += said.sent.len();
        assert!(recovered.skipped <= 1, "round {round}: {} pieces were skipped", recovered.skipped);
    }
    assert!(stalled <= STALLED_ROUNDS, "in {stalled} rounds an end was missing for more than 50 ms");
    assert!(sent > ROUNDS * 10, "only {sent} were sent");
}
