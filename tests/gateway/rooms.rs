//! Who may import whom: the table of `src/lib.rs` as data.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Each room, and the rooms it may import.
const TABLE: &[(&str, &[&str])] = &[
    ("telemetry", &[]),
    ("request", &[]),
    ("engine", &["request", "telemetry"]),
    ("ledger", &["request", "telemetry"]),
    ("tokens", &["request", "telemetry"]),
    ("admit", &["request", "engine", "telemetry"]),
    ("crash", &["request", "engine", "ledger", "telemetry"]),
    ("proxy", &["request", "tokens", "admit", "ledger", "engine", "telemetry"]),
    ("operate", &["request", "engine", "admit", "ledger", "crash", "tokens", "telemetry"]),
    ("sim", &["request", "tokens"]),
    ("config", &["engine", "proxy", "operate", "tokens", "admit", "ledger", "telemetry"]),
    (
        "gateway",
        &[
            "request",
            "tokens",
            "engine",
            "admit",
            "ledger",
            "crash",
            "proxy",
            "operate",
            "telemetry",
            "config",
            "sim",
        ],
    ),
    ("cli", &["config", "gateway", "tokens", "admit", "crash", "ledger", "sim", "request", "telemetry"]),
];

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    files
        .into_iter()
        .map(|f| (f.strip_prefix(&src).unwrap().to_owned(), fs::read_to_string(&f).unwrap()))
        .collect()
}

fn room_of(file: &Path) -> String {
    let first = file.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The rooms that a line of code names: `crate::room`, and each of `crate::{a, b}`.
fn named(line: &str) -> Vec<String> {
    let word = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = &line[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                found.extend(list.split(',').map(|part| word(part.trim())).filter(|w| !w.is_empty()))
            }
            None => found.push(word(rest)),
        }
    }
    found
}

#[test]
fn every_import_is_in_the_table() {
    let table: BTreeMap<&str, &[&str]> = TABLE.iter().copied().collect();
    let mut wrong = Vec::new();
    for (file, text) in all_sources() {
        let room = room_of(&file);
        if room == "lib" || room == "main" {
            continue;
        }
        let may = table.get(room.as_str()).unwrap_or_else(|| panic!("`{room}` is in no table"));
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for other in named(line) {
                let is_room = table.contains_key(other.as_str());
                if is_room && other != room && !may.contains(&other.as_str()) {
                    wrong.push(format!(
                        "src/{}:{}: {room} may not import {other}",
                        file.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn metrics_stay_inside_telemetry_and_clocks_are_tokio_s() {
    let mut wrong = Vec::new();
    for (file, text) in all_sources() {
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            let metrics = line.contains("metrics::") || line.contains("metrics_exporter");
            if metrics && room_of(&file) != "telemetry" && !line.contains("::metrics::") {
                wrong.push(format!("src/{}:{}: metrics outside telemetry", file.display(), number + 1));
            }
            if line.contains("std::time::Instant") || line.contains("time::{Instant, SystemTime") {
                wrong.push(format!("src/{}:{}: use tokio::time::Instant", file.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
