use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tokio::time::Instant;

use super::compose::compose_from;
use super::suspects::suspects;
use super::*;
use crate::ledger::{Arrival, Ending, Entry, Flight, Ledger};
use crate::request::{Api, Outcome, RequestId, Shape, Tenant, Tokens};

fn arrive(ledger: &Ledger, prompt: u64) -> Entry {
    let shape = Shape { api: Some(Api::Chat), prompts: 1, max_output_tokens: Some(100), ..Shape::default() };
    let entry =
        ledger.arrive(Arrival { id: RequestId::next(), client_id: None, tenant: Tenant::anonymous(), shape });
    entry.counted(Tokens(prompt));
    entry
}

async fn sent(ledger: &Ledger, prompt: u64) -> Entry {
    let entry = arrive(ledger, prompt);
    entry.send(Tokens(prompt + 100)).await;
    entry
}

fn end(entry: Entry, outcome: Outcome) -> String {
    let id = entry.id().to_owned();
    entry.end(Ending { outcome, status: 200, reason: None });
    id
}

fn death(suspected_at: Instant) -> Death {
    Death {
        at: Instant::now(),
        time: SystemTime::now(),
        suspected_at,
        before: None,
        confirmed_by: vec!["connect_refused", "start_time_changed"],
        engine: Engine { kind: Some("vllm".to_owned()), incarnation: 1, ..Engine::default() },
        verdict: None,
    }
}

async fn a_while() {
    tokio::time::advance(Duration::from_secs(6)).await;
}

/// Sorted: under a paused clock all arrive at one instant.
fn ids(records: &[crate::ledger::Record]) -> Vec<&str> {
    let mut ids: Vec<_> = records.iter().map(|r| r.id.as_str()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(start_paused = true)]
async fn a_report_names_all_that_were_with_the_engine_and_no_other() {
    let ledger = Ledger::in_memory();
    let long_gone = sent(&ledger, 10).await;
    end(long_gone, Outcome::EngineCrashed);
    a_while().await;
    a_while().await;
    let (crashed_first, done, open, left, unavailable) = (
        sent(&ledger, 1).await,
        sent(&ledger, 2).await,
        sent(&ledger, 3).await,
        sent(&ledger, 4).await,
        sent(&ledger, 5).await,
    );
    let waiting = arrive(&ledger, 6);
    let evicted = arrive(&ledger, 7);
    end(done, Outcome::Completed);
    tokio::time::advance(Duration::from_millis(10)).await;
    // The reset that this one got is what raises the suspicion.
    let crashed_first = end(crashed_first, Outcome::EngineCrashed);
    tokio::time::advance(Duration::from_millis(10)).await;
    let suspected = Instant::now();
    tokio::time::advance(Duration::from_millis(10)).await;
    let late = sent(&ledger, 8).await;
    let refused = arrive(&ledger, 9);
    end(refused, Outcome::Rejected);
    let left = end(left, Outcome::ClientGone);
    // Let in, and met a refused connection: no byte of it was sent.
    let unavailable = end(unavailable, Outcome::EngineUnavailable);
    let evicted = end(evicted, Outcome::Evicted);

    let report = compose(&death(suspected), &ledger);
    let mut expected = [&crashed_first, open.id(), &left];
    expected.sort_unstable();
    assert_eq!(ids(&report.in_flight), expected);
    assert_eq!(ids(&report.sent_while_suspected), [late.id()]);
    assert_eq!(report.queued_total, 3);
    let mut queued = [waiting.id(), &evicted, &unavailable];
    queued.sort_unstable();
    assert_eq!(ids(&report.queued), queued);
    assert_eq!((report.cause, report.confidence), (Cause::Unknown, 0.0));
    assert!(report.advice[0].contains("collect"));
    assert_eq!(report.confirmed_by, ["connect_refused", "start_time_changed"]);
    assert!((report.t - report.t_suspected - 0.01).abs() < 0.005);
}

#[tokio::test(start_paused = true)]
async fn the_long_strange_prompt_in_prefill_is_the_first_suspect() {
    let ledger = Ledger::in_memory();
    for _ in 0..30 {
        end(sent(&ledger, 100).await, Outcome::Completed);
    }
    let ordinary = sent(&ledger, 100).await;
    ordinary.first_token();
    a_while().await;
    a_while().await;
    let killer = sent(&ledger, 9000).await;
    let also_new = sent(&ledger, 100).await;
    let report = compose(&death(Instant::now()), &ledger);
    let first = &report.suspects[0];
    assert_eq!(first.id, killer.id());
    assert!((first.score - 9.0).abs() < f64::EPSILON, "{first:?}");
    assert_eq!(first.reasons.len(), 5);
    assert_eq!(report.suspects[1].id, also_new.id());
    assert!(report.suspects.iter().all(|s| s.id != ordinary.id()), "its shape is proven");
    assert!(report.suspects_are.contains("not proof"));
}

#[tokio::test(start_paused = true)]
async fn an_earlier_life_proves_nothing() {
    let ledger = Ledger::in_memory();
    for _ in 0..30 {
        end(sent(&ledger, 100).await, Outcome::Completed);
    }
    let open = sent(&ledger, 100).await;
    let mut death = death(Instant::now());
    death.engine.start_time = Some(open.record().t_arrived + 3600.0);
    let report = compose_from(&death, ledger.flights());
    assert!(report.suspects[0].score > 3.0, "{:?}", report.suspects);
}

#[tokio::test(start_paused = true)]
async fn a_second_death_does_not_name_the_first_one_s_casualties() {
    let ledger = Ledger::in_memory();
    end(sent(&ledger, 1).await, Outcome::EngineCrashed);
    let straggler = sent(&ledger, 2).await;
    let before = Instant::now();
    tokio::time::advance(Duration::from_millis(10)).await;
    end(straggler, Outcome::EngineCrashed);
    let own = sent(&ledger, 3).await;
    let death = Death { before: Some(before), ..death(Instant::now()) };
    let report = compose(&death, &ledger);
    assert_eq!(ids(&report.in_flight), [own.id()]);
}

#[test]
fn with_nobody_in_flight_nobody_is_suspect() {
    assert!(suspects(&[], &[], Instant::now()).is_empty());
    let report = compose(&death(Instant::now()), &Ledger::in_memory());
    assert!(report.in_flight.is_empty() && report.suspects.is_empty());
    let none: Vec<Flight> = Vec::new();
    assert_eq!(compose_from(&death(Instant::now()), none).queued_total, 0);
}

fn a_report(seconds: u64) -> Report {
    Report { id: format!("crash-{seconds}-1"), t: seconds as f64, ..Report::default() }
}

#[test]
fn a_report_on_disk_reads_back_and_ids_never_collide() {
    let dir = TempDir::new().unwrap();
    let reports = Reports::open(Some(dir.path()));
    assert!(reports.list().reports.is_empty());
    assert_eq!(reports.write(a_report(7)), "crash-7-1");
    assert_eq!(reports.write(a_report(7)), "crash-7-2");
    let again = Reports::open(Some(dir.path()));
    assert_eq!(again.write(a_report(7)), "crash-7-3");
    assert_eq!(again.get("crash-7-2").unwrap().id, "crash-7-2");
    let newest_first: Vec<_> = again.list().reports.into_iter().map(|s| s.id).collect();
    assert_eq!(newest_first, ["crash-7-3", "crash-7-2", "crash-7-1"]);
}

#[test]
fn the_oldest_reports_go() {
    let dir = TempDir::new().unwrap();
    for place in [Some(dir.path()), None] {
        let reports = Reports::open(place);
        for seconds in 1..=60 {
            reports.write(a_report(seconds));
        }
        let kept = reports.list().reports;
        assert_eq!((kept.len(), kept[0].id.as_str(), kept[49].id.as_str()), (50, "crash-60-1", "crash-11-1"));
    }
}

#[test]
fn an_id_never_becomes_another_path() {
    let dir = TempDir::new().unwrap();
    let reports = Reports::open(Some(dir.path()));
    std::fs::write(dir.path().join("secret.json"), "{}").unwrap();
    for id in
        ["../secret", "crash-1-1/../../secret", "crash-1-1\0", "crash-01-1", "crash-+1-1", "", "crash-1"]
    {
        assert!(matches!(reports.get(id), Err(ReportError::BadId { .. })), "{id:?}");
    }
    assert!(matches!(reports.get("crash-1-1"), Err(ReportError::NotFound { .. })));
}

#[test]
fn what_is_not_a_report_is_skipped_with_a_note() {
    let dir = TempDir::new().unwrap();
    let reports = Reports::open(Some(dir.path()));
    reports.write(a_report(1));
    let at = |name: &str| dir.path().join("reports").join(name);
    std::fs::write(at("crash-2-1.json"), "{\"id\":").unwrap();
    std::fs::write(at("crash-3-1.json"), "{\"id\":\"crash-9-9\"}").unwrap();
    std::fs::write(at("crash-4-1.123.tmp"), "half").unwrap();
    std::fs::write(at("notes.txt"), "foreign").unwrap();
    let listing = reports.list();
    assert_eq!((listing.reports.len(), listing.skipped.len()), (1, 2));
    assert!(matches!(reports.get("crash-2-1"), Err(ReportError::Unreadable { .. })));
}

#[test]
fn without_a_writable_place_reports_are_kept_in_memory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let reports = Reports::open(Some(file.path()));
    let id = reports.write(a_report(5));
    assert_eq!(reports.get(&id).unwrap().id, id);
    assert_eq!(reports.list().reports.len(), 1);
}

#[test]
fn a_cause_is_its_label_and_a_later_word_is_unknown() {
    for cause in [Cause::HostOomKill, Cause::ProbeKill, Cause::KvPoolExhausted, Cause::Unknown] {
        assert_eq!(serde_json::to_value(cause).unwrap(), cause.label());
        assert_eq!(serde_json::from_value::<Cause>(cause.label().into()).unwrap(), cause);
    }
    assert_eq!(serde_json::from_str::<Cause>("\"a_later_word\"").unwrap(), Cause::Unknown);
}
