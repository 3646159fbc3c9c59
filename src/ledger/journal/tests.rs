use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tempfile::TempDir;

use super::line::{Found, decode, encode};
use super::replay::{Replay, segments};
use super::*;
use crate::ledger::{Arrival, Ending, Entry, Ledger};
use crate::request::{Api, Outcome, Phase, RequestId, Shape, Tenant, Tokens};

fn record(id: &str) -> Record {
    Record {
        id: id.to_owned(),
        client_id: Some("client".to_owned()),
        t_arrived: 1_796_000_000.25,
        t_admitted: Some(1_796_000_000.5),
        t_first_token: None,
        t_ended: None,
        outcome: None,
        tenant: "anonymous".to_owned(),
        shape: Shape { api: Some(Api::Chat), prompt_tokens: Some(7), prompts: 1, ..Shape::default() },
        output_tokens: 0,
        reserved_tokens: Some(107),
        phase: Phase::Prefill,
    }
}

fn open(id: &str) -> Vec<u8> {
    encode(&Line::Open(Box::new(record(id))))
}

fn end(id: &str) -> Vec<u8> {
    encode(&Line::End(End::of(&record(id))))
}

fn left_of(bytes: &[u8]) -> (Vec<String>, usize) {
    let mut replay = Replay::default();
    replay.segment(bytes);
    let skipped = replay.unknown + replay.damaged;
    let unfinished = replay.unfinished();
    for one in &unfinished {
        let mut expected = record(&one.id);
        expected.shape.prompts = one.shape.prompts;
        assert_eq!(*one, expected, "a record was invented");
    }
    (unfinished.into_iter().map(|r| r.id).collect(), skipped)
}

fn small_journal() -> Vec<u8> {
    [open("a"), open("b"), end("a"), open("c"), end("b")].concat()
}

#[test]
fn what_has_an_open_and_no_end_is_unfinished() {
    assert_eq!(left_of(&small_journal()), (vec!["c".to_owned()], 0));
}

#[test]
fn a_journal_cut_at_any_byte_gives_what_stands_before_the_cut() {
    let whole = small_journal();
    let ends: Vec<usize> = memchr::memchr_iter(b'\n', &whole).map(|at| at + 1).collect();
    for cut in 0..=whole.len() {
        // A line whose newline alone is missing is whole.
        let lines = ends.iter().filter(|&&end| end <= cut + 1).count();
        let expected: &[&str] = [&[][..], &["a"], &["a", "b"], &["b"], &["b", "c"], &["c"]][lines];
        let (ids, skipped) = left_of(&whole[..cut]);
        assert_eq!(ids, expected, "cut at {cut}");
        assert!(skipped <= 1, "cut at {cut}");
    }
}

#[test]
fn one_flipped_bit_costs_one_line_at_most() {
    let whole = [open("a"), open("b"), open("c")].concat();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (ids, _) = left_of(&bytes);
        assert!(ids.len() >= 2, "bit {bit}: {ids:?}");
    }
}

#[test]
fn lines_of_another_version_are_skipped_and_said() {
    let dir = TempDir::new().unwrap();
    let later = [b"kv2 00000000 00000002 {}\n".to_vec(), open("a")].concat();
    std::fs::write(segment_path(dir.path(), 3), later).unwrap();
    std::fs::write(dir.path().join("journal-x.log"), "foreign").unwrap();
    let left = read(dir.path(), 1 << 20);
    assert_eq!((left.unfinished.len(), left.skipped, left.next_seq), (1, 1, 4));
    assert!(left.notes[0].contains("another version"), "{:?}", left.notes);
}

#[test]
fn a_directory_in_a_segments_place_is_noted() {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(segment_path(dir.path(), 1)).unwrap();
    std::fs::write(segment_path(dir.path(), 2), open("a")).unwrap();
    let left = read(dir.path(), 1 << 20);
    assert_eq!((left.unfinished.len(), left.notes.len()), (1, 1));
}

#[test]
fn a_carried_segment_makes_the_older_obsolete_unless_it_is_damaged() {
    let older = [open("stale"), open("live")].concat();
    let newer = [open("live"), encode(&Line::Carried(1))].concat();
    let mut replay = Replay::default();
    replay.segment(&older);
    replay.segment(&newer);
    assert_eq!(replay.unfinished().iter().map(|r| r.id.as_str()).collect::<Vec<_>>(), ["live"]);

    let mut damaged = newer;
    damaged[40] ^= 1;
    let mut replay = Replay::default();
    replay.segment(&older);
    replay.segment(&damaged);
    assert_eq!(replay.unfinished().len(), 2);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic_and_nothing_is_invented(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        prop_assert!(left_of(&bytes).0.is_empty());
    }

    #[test]
    fn any_damage_in_the_middle_never_invents_a_record(
        at in 0..4000usize, noise in proptest::collection::vec(any::<u8>(), 0..600), replace in any::<bool>(),
    ) {
        let mut bytes = small_journal();
        let at = at % bytes.len();
        let to = if replace { (at + noise.len()).min(bytes.len()) } else { at };
        bytes.splice(at..to, noise);
        let (ids, _) = left_of(&bytes);
        prop_assert!(ids.iter().all(|id| ["a", "b", "c"].contains(&id.as_str())));
    }

    #[test]
    fn headlike_bytes_never_panic(head in "kv[0-9]{1,3} [0-9a-f +-]{8,9} [0-9 +-]{7,10}\\PC{0,40}") {
        let found = decode(head.as_bytes());
        prop_assert!(!matches!(found, Found::Whole(..)));
    }
}

fn arrival() -> Arrival {
    Arrival {
        id: RequestId::next(),
        client_id: None,
        tenant: Tenant::anonymous(),
        shape: Shape { prompts: 1, ..Shape::default() },
    }
}

async fn sent(ledger: &Ledger) -> Entry {
    let entry = ledger.arrive(arrival());
    entry.send(Tokens(100)).await;
    entry
}

fn done(entry: Entry) {
    entry.end(Ending { outcome: Outcome::Completed, status: 200, reason: None });
}

fn settings(dir: &TempDir) -> Settings {
    Settings { state_dir: Some(dir.path().to_owned()), journal_bytes: 0, sync: false }
}

type Create = Box<dyn FnMut(&Path) -> std::io::Result<File> + Send>;

/// A ledger whose segments are opened by `create`.
fn ledger_on(dir: &TempDir, create: Create) -> Ledger {
    let book = Arc::new(Book::default());
    let journal = start_on(Disk::new(dir.path(), &Settings::default(), 1, create), None, &book).unwrap();
    Ledger::with(book, Some(journal))
}

async fn until(what: impl Fn() -> bool) {
    let found = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), found).await.expect("it comes about");
}

fn accepting(ledger: &Ledger) -> bool {
    ledger.journal().unwrap().shared.trouble.accepting()
}

#[tokio::test]
async fn rotation_carries_what_is_in_flight_and_keeps_to_its_bytes() {
    let dir = TempDir::new().unwrap();
    let (ledger, _) = Ledger::open(&settings(&dir));
    let long_lived = [sent(&ledger).await, sent(&ledger).await];
    for _ in 0..500 {
        done(sent(&ledger).await);
    }
    ledger.close();
    let seqs = segments(dir.path());
    assert!(seqs.len() == 2 && seqs[0] > 2, "{seqs:?}");
    let bytes: u64 = seqs.iter().map(|&s| segment_path(dir.path(), s).metadata().unwrap().len()).sum();
    assert!(bytes <= 65_536 + 4096, "{bytes}");
    let mut ids: Vec<_> = read(dir.path(), 1 << 20).unfinished.into_iter().map(|r| r.id).collect();
    let mut expected: Vec<_> = long_lived.iter().map(|e| e.id().to_owned()).collect();
    ids.sort();
    expected.sort();
    assert_eq!(ids, expected);
}

#[tokio::test]
async fn a_full_disk_stops_nobody_and_is_recovered_from() {
    let dir = TempDir::new().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&full);
    let ledger = ledger_on(
        &dir,
        Box::new(move |path| {
            if switch.load(Ordering::SeqCst) {
                return File::options().append(true).open("/dev/full");
            }
            crate::ledger::directory::create(path)
        }),
    );
    full.store(true, Ordering::SeqCst);
    // A new segment is forced, and it is the full disk.
    ledger.journal().unwrap().raise("test");
    until(|| !accepting(&ledger)).await;
    let lasting = sent(&ledger).await;
    let ended = sent(&ledger).await;
    done(ended);
    // It is tried again now and then, and found full again.
    until(|| !accepting(&ledger)).await;
    full.store(false, Ordering::SeqCst);
    until(|| accepting(&ledger)).await;
    done(sent(&ledger).await);
    ledger.close();
    let left = read(dir.path(), 1 << 20);
    assert_eq!(left.unfinished.iter().map(|r| r.id.as_str()).collect::<Vec<_>>(), [lasting.id()]);
}

#[tokio::test]
async fn a_file_that_takes_no_writes_is_left_for_a_new_one() {
    let dir = TempDir::new().unwrap();
    let mut nth = 0;
    // The second file is open for reading only.
    let ledger = ledger_on(
        &dir,
        Box::new(move |path| {
            nth += 1;
            let file = crate::ledger::directory::create(path)?;
            if nth == 2 { File::open(path) } else { Ok(file) }
        }),
    );
    let lasting = sent(&ledger).await;
    ledger.journal().unwrap().raise("test");
    until(|| segments(dir.path()).contains(&3)).await;
    until(|| accepting(&ledger)).await;
    ledger.close();
    assert_eq!(read(dir.path(), 1 << 20).unfinished[0].id, lasting.id());
}

#[tokio::test]
async fn a_disk_that_hangs_holds_no_request_for_long() {
    let dir = TempDir::new().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut stuck = Some(File::from(OwnedFd::from(writer)));
    // The first segment is a pipe that nobody reads: once it is full, write(2) does not return.
    let ledger = ledger_on(
        &dir,
        Box::new(move |path| stuck.take().map_or_else(|| crate::ledger::directory::create(path), Ok)),
    );
    let started = tokio::time::Instant::now();
    let mut entries = Vec::new();
    for _ in 0..1000 {
        entries.push(sent(&ledger).await);
    }
    assert!(!ledger.is_durable() && accepting(&ledger), "late, and nothing is lost yet");
    while accepting(&ledger) {
        entries.push(sent(&ledger).await);
    }
    // One wait of 250 ms, not one per request.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let drain = std::thread::spawn(move || std::io::copy(&mut reader.by_ref(), &mut std::io::sink()));
    until(|| accepting(&ledger)).await;
    for entry in entries.drain(1..) {
        done(entry);
    }
    ledger.close();
    drain.join().unwrap().unwrap();
    assert_eq!(read(dir.path(), 4 << 20).unfinished[0].id, entries[0].id());
    assert_eq!(read(dir.path(), 4 << 20).unfinished.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_from_one_write_to_the_next_holds_nobody() {
    let dir = TempDir::new().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut stuck = Some(File::from(OwnedFd::from(writer)));
    let ledger = ledger_on(
        &dir,
        Box::new(move |path| stuck.take().map_or_else(|| crate::ledger::directory::create(path), Ok)),
    );
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let ledger = ledger.clone();
        tasks.spawn(async move {
            for _ in 0..200 {
                sent(&ledger).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
    for _ in 0..8 {
        let one = tokio::time::timeout(Duration::from_secs(10), tasks.join_next()).await;
        one.expect("all go on").unwrap().unwrap();
    }
    let drain = std::thread::spawn(move || std::io::copy(&mut reader.by_ref(), &mut std::io::sink()));
    // It is the next request that finds the disk well again.
    let well = async {
        while !ledger.is_durable() {
            done(sent(&ledger).await);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), well).await.expect("it recovers");
    drop(ledger);
    drain.join().unwrap().unwrap();
}

#[tokio::test]
async fn an_unwritable_place_is_memory_only_and_still_read() {
    let dir = TempDir::new().unwrap();
    std::fs::write(segment_path(dir.path(), 1), open("a")).unwrap();
    // A directory where the next segment or the lock would stand refuses even root.
    std::fs::create_dir(dir.path().join("lock")).unwrap();
    let (ledger, recovered) = Ledger::open(&settings(&dir));
    assert!(!recovered.durable);
    assert!(recovered.note.unwrap().contains("memory only"));
    assert_eq!(recovered.unfinished.len(), 1);
    done(sent(&ledger).await);

    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"x").unwrap();
    let state_dir = Some(file.path().join("below"));
    let (_, recovered) = Ledger::open(&Settings { state_dir, ..Settings::default() });
    assert!(!recovered.durable && recovered.unfinished.is_empty());
}

#[tokio::test]
async fn files_are_for_the_owner_alone() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("made/here");
    let settings = Settings { state_dir: Some(state.clone()), ..Settings::default() };
    let (ledger, recovered) = Ledger::open(&settings);
    assert!(recovered.durable && recovered.note.is_none(), "{recovered:?}");
    let _ = crate::ledger::tenant_key(&settings);
    done(sent(&ledger).await);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    for name in ["lock", "key", "journal-1.log"] {
        assert_eq!(mode(&state.join(name)), 0o600, "{name}");
    }
}
