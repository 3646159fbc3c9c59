//! `kvgate reports` and `kvgate report ID`: the crash reports on disk.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::crash::{Listing, Record, Report, Reports};

/// List the crash reports of a state directory, newest first.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  kvgate reports --state-dir /var/lib/kvgate")]
pub struct ReportsArgs {
    /// The state directory that `serve` was given.
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Show one crash report.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  kvgate report crash-1796000000-1 --state-dir /var/lib/kvgate --json")]
pub struct ReportArgs {
    /// The report's id, as `kvgate reports` lists it.
    pub id: String,
    /// The state directory that `serve` was given.
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Print the whole report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs `kvgate reports`; data to `out`, notes to stderr.
///
/// # Errors
/// Where the directory is none, or `out` cannot be written.
pub fn reports(args: &ReportsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let listing = open(&args.state_dir)?.list();
    for note in &listing.skipped {
        writeln!(std::io::stderr(), "skipped: {note}")?;
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&listing.reports)?)?;
        return Ok(());
    }
    list(&listing, out)
}

/// Runs `kvgate report ID`; data to `out`.
///
/// # Errors
/// Where there is no such report, or it cannot be read.
pub fn report(args: &ReportArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let reports = open(&args.state_dir)?;
    let report = reports.get(&args.id).context("see `kvgate reports` for the ids")?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
        return Ok(());
    }
    show(&report, out)
}

fn open(dir: &std::path::Path) -> anyhow::Result<Reports> {
    ensure!(dir.is_dir(), "--state-dir: {} is not a directory", dir.display());
    Ok(Reports::open(Some(dir)))
}

fn list(listing: &Listing, out: &mut dyn Write) -> anyhow::Result<()> {
    if listing.reports.is_empty() {
        writeln!(std::io::stderr(), "no crash reports")?;
        return Ok(());
    }
    writeln!(out, "{:<26}{:<22}{:<20}{:>9}  first suspect", "id", "died", "cause", "in flight")?;
    for one in &listing.reports {
        let suspect = one.first_suspect.as_deref().unwrap_or("-");
        let (died, cause) = (clock(one.t), one.cause.label());
        writeln!(out, "{:<26}{died:<22}{cause:<20}{:>9}  {suspect}", one.id, one.in_flight)?;
    }
    Ok(())
}

fn show(report: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}: the engine died at {}", report.id, clock(report.t))?;
    writeln!(out, "cause: {} (confidence {:.2})", report.cause.label(), report.confidence)?;
    writeln!(out, "confirmed by: {}", report.confirmed_by.join(", "))?;
    let engine = &report.engine;
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    let models = engine.models.join(", ");
    writeln!(out, "engine: {} {}, serving {models}", known(&engine.kind), known(&engine.version))?;
    for one in &report.evidence {
        writeln!(out, "evidence: {}:{}: {} ({})", one.file, one.line, one.quote, one.says)?;
    }
    writeln!(out, "\nsuspects: {}", report.suspects_are)?;
    for suspect in &report.suspects {
        writeln!(out, "  {:>4}  {}  {}", suspect.score, suspect.id, suspect.reasons.join("; "))?;
    }
    writeln!(out, "\nwith the engine: {}", report.in_flight.len())?;
    report.in_flight.iter().try_for_each(|r| line(r, out))?;
    if !report.sent_while_suspected.is_empty() {
        writeln!(out, "\nsent while the death was suspected: {}", report.sent_while_suspected.len())?;
        report.sent_while_suspected.iter().try_for_each(|r| line(r, out))?;
    }
    writeln!(out, "\nin kvgate's queue, never seen by the engine: {}", report.queued_total)?;
    for advice in &report.advice {
        writeln!(out, "advice: {advice}")?;
    }
    Ok(())
}

fn line(record: &Record, out: &mut dyn Write) -> anyhow::Result<()> {
    let number = |n: Option<u64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let phase = serde_json::to_value(record.phase)?;
    writeln!(
        out,
        "  {}  {}  {} + {} tokens, {} came",
        record.id,
        phase.as_str().unwrap_or_default(),
        number(record.shape.prompt_tokens),
        number(record.shape.max_output_tokens),
        record.output_tokens,
    )?;
    Ok(())
}

/// UTC, to the second.
fn clock(t: f64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(t as i64).ok();
    time.and_then(|t| t.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{t:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_print_what_is_on_disk() {
        let a_report =
            Report { id: "crash-1796000000-1".to_owned(), t: 1_796_000_000.0, ..Report::default() };
        let dir = tempfile::tempdir().unwrap();
        let id = Reports::open(Some(dir.path())).write(a_report);
        let state_dir = dir.path().to_owned();
        let mut out = Vec::new();
        reports(&ReportsArgs { state_dir: state_dir.clone(), json: false }, &mut out).unwrap();
        let text = String::from_utf8(std::mem::take(&mut out)).unwrap();
        assert!(text.contains(&id) && text.contains("2026-11-30T"), "{text}");
        report(&ReportArgs { id: id.clone(), state_dir: state_dir.clone(), json: true }, &mut out).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&std::mem::take(&mut out)).unwrap();
        assert_eq!((json["id"].as_str(), json["cause"].as_str()), (Some(id.as_str()), Some("unknown")));
        report(&ReportArgs { id, state_dir: state_dir.clone(), json: false }, &mut out).unwrap();
        assert!(String::from_utf8(std::mem::take(&mut out)).unwrap().contains("cause: unknown"));
        assert!(report(&ReportArgs { id: "../x".to_owned(), state_dir, json: false }, &mut out).is_err());
    }
}
