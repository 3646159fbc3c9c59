//! stub
/// x
#[derive(clap::Args)]
pub struct ReportsArgs {}
/// x
#[derive(clap::Args)]
pub struct ReportArgs {}
use std::process::ExitCode;
pub fn run_reports(_: &ReportsArgs) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
pub fn run_report(_: &ReportArgs) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
