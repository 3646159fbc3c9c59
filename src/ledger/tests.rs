use std::collections::BTreeSet;

use tempfile::TempDir;

use super::book::ENDED_KEPT;
use super::*;
use crate::request::{Api, ClientId, Outcome, Phase, PromptKind, RequestId, Shape, Tenant, Tokens};

fn arrival() -> Arrival {
    Arrival {
        id: RequestId::next(),
        client_id: ClientId::from_header(Some(&http::HeaderValue::from_static("abc"))),
        tenant: Tenant::anonymous(),
        shape: Shape { api: Some(Api::Completions), prompts: 1, n: 1, ..Shape::default() },
    }
}

fn ending(outcome: Outcome) -> Ending {
    Ending { outcome, status: 200, reason: None }
}

fn settings(dir: &TempDir) -> Settings {
    Settings { state_dir: Some(dir.path().to_owned()), ..Settings::default() }
}

#[test]
fn a_ledger_line_has_the_contracts_names_and_no_other() {
    let contract = "id client_id t_arrived t_admitted t_first_token t_ended outcome api model tenant \
        prompt_tokens max_output_tokens output_tokens reserved_tokens n best_of prompt_logprobs top_logprobs \
        echo images image_pixels audio_seconds adapter structured tools min_tokens logit_bias prompt_kind \
        stream prefix phase";
    let contract: BTreeSet<&str> = contract.split_whitespace().collect();
    let entry = Ledger::in_memory().arrive(arrival());
    let line = serde_json::to_value(entry.record()).unwrap();
    let names: BTreeSet<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, contract);
    assert_eq!(line["phase"], "queued");
    assert_eq!(line["prompt_kind"], "text");

    let many = Shape { prompts: 3, ..Shape::default() };
    let line =
        serde_json::to_value(Ledger::in_memory().arrive(Arrival { shape: many, ..arrival() }).record());
    assert_eq!(line.unwrap()["prompts"], 3);
}

#[test]
fn a_ledger_line_reads_back_as_written() {
    let shape = Shape {
        api: Some(Api::Chat),
        model: Some("m\n\"é".to_owned()),
        prompt_tokens: Some(9),
        max_output_tokens: Some(5),
        n: 2,
        best_of: Some(3),
        prompts: 4,
        prompt_logprobs: Some(0),
        top_logprobs: Some(20),
        echo: true,
        images: 1,
        image_pixels: Some(64),
        audio_seconds: Some(1.5),
        adapter: Some("a".to_owned()),
        structured: Some("regex".to_owned()),
        tools: 2,
        min_tokens: 1,
        logit_bias: 7,
        prompt_kind: PromptKind::Ids,
        stream: true,
        prefix: Some("00ff".to_owned()),
    };
    let mut record = Ledger::in_memory().arrive(Arrival { shape, ..arrival() }).record();
    record.t_arrived = 1_796_000_000.5;
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
}

#[tokio::test]
async fn an_entry_goes_through_its_phases_and_leaves() {
    let ledger = Ledger::in_memory();
    let entry = ledger.arrive(arrival());
    assert_eq!(ledger.in_flight()[0].phase, Phase::Queued);
    entry.counted(Tokens(12));
    entry.send(Tokens(40)).await;
    assert_eq!(ledger.in_flight()[0].phase, Phase::Prefill);
    entry.first_token();
    entry.output(Tokens(3));
    entry.output(Tokens(2));
    let record = entry.record();
    assert_eq!((record.phase, record.output_tokens), (Phase::Decode, 3));
    assert_eq!((record.shape.prompt_tokens, record.reserved_tokens), (Some(12), Some(40)));
    assert!(record.t_arrived <= record.t_admitted.unwrap());
    assert!(record.t_admitted <= record.t_first_token);
    entry.end(ending(Outcome::Completed));
    assert!(ledger.in_flight().is_empty());
    let ended = &ledger.ended_recently()[0];
    assert_eq!(ended.outcome, Some(Outcome::Completed));
    assert!(ended.t_ended.is_some());
}

#[test]
fn a_dropped_entry_is_a_client_that_left() {
    let ledger = Ledger::in_memory();
    drop(ledger.arrive(arrival()));
    assert_eq!(ledger.ended_recently()[0].outcome, Some(Outcome::ClientGone));
}

#[test]
fn a_storm_of_refusals_pushes_nothing_out() {
    let ledger = Ledger::in_memory();
    ledger.arrive(arrival()).end(ending(Outcome::EngineCrashed));
    for _ in 0..2 * ENDED_KEPT {
        ledger.arrive(arrival()).end(ending(Outcome::Rejected));
    }
    assert_eq!(ledger.ended_recently().len(), 1);
    for _ in 0..2 * ENDED_KEPT {
        ledger.arrive(arrival()).end(ending(Outcome::Completed));
    }
    assert_eq!(ledger.ended_recently().len(), ENDED_KEPT);
}

#[tokio::test]
async fn the_next_start_names_what_was_in_flight() {
    let dir = TempDir::new().unwrap();
    let (ledger, first) = Ledger::open(&settings(&dir));
    assert!(first.durable && first.unfinished.is_empty() && first.note.is_none());
    let (stays, ends, queued) =
        (ledger.arrive(arrival()), ledger.arrive(arrival()), ledger.arrive(arrival()));
    stays.counted(Tokens(5));
    stays.send(Tokens(10)).await;
    ends.send(Tokens(10)).await;
    ends.end(ending(Outcome::Completed));
    ledger.close();
    let stayed = stays.id().to_owned();
    // Entries hold the ledger, and the closed ledger no longer the directory.
    let (again, second) = Ledger::open(&settings(&dir));
    assert_eq!(second.unfinished.len(), 1);
    assert_eq!(second.unfinished[0].id, stayed);
    assert_eq!(second.unfinished[0].shape.prompt_tokens, Some(5));
    assert_eq!(second.unfinished[0].phase, Phase::Prefill);
    drop((stays, queued, again));
    // What was reported once is not reported again.
    assert!(Ledger::open(&settings(&dir)).1.unfinished.is_empty());
}

#[tokio::test]
async fn a_second_kvgate_on_the_same_directory_says_so_and_reads_nothing() {
    let dir = TempDir::new().unwrap();
    let (ledger, _) = Ledger::open(&settings(&dir));
    let entry = ledger.arrive(arrival());
    entry.send(Tokens(1)).await;
    let (_, second) = Ledger::open(&settings(&dir));
    assert!(!second.durable && second.unfinished.is_empty());
    assert!(second.note.unwrap().contains("another kvgate"));
}

#[test]
fn without_a_directory_it_is_memory_only_and_said_so() {
    let (_, recovered) = Ledger::open(&Settings::default());
    assert!(!recovered.durable && recovered.note.is_some());
}

#[test]
fn the_tenant_key_is_kept_and_a_broken_one_replaced() {
    let dir = TempDir::new().unwrap();
    let key = tenant_key(&settings(&dir)).to_bytes();
    assert_eq!(tenant_key(&settings(&dir)).to_bytes(), key);
    std::fs::write(dir.path().join("key"), "short").unwrap();
    let new = tenant_key(&settings(&dir)).to_bytes();
    assert_ne!(new, key);
    assert_eq!(tenant_key(&settings(&dir)).to_bytes(), new);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn the_settings_refuse_a_key_they_do_not_know() {
    assert!(toml::from_str::<Settings>("fsync = true").is_err());
    let set: Settings = toml::from_str("state_dir = \"/x\"\nsync = true").unwrap();
    assert!(set.sync && set.journal_bytes == 64 << 20);
}
