//! One file per command. stdout is data, stderr is messages; exit 0 ok, 1 failed, 2 wrong usage or
//! configuration.

mod check;
mod count;
mod demo;
mod options;
mod reports;
mod serve;
mod shadow;
mod sim;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// kvgate: an admission gateway in front of an LLM inference engine.
#[derive(Parser)]
#[command(name = "kvgate", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The gateway in front of a running engine
    Serve(serve::Args),
    /// The gateway in front of an embedded simulated engine, with light traffic
    Demo(demo::Args),
    /// Print the effective configuration, or say what is wrong with it
    Check(check::Args),
    /// Count the prompt tokens of request bodies
    Count(count::Args),
    /// List the crash reports on disk
    Reports(reports::ReportsArgs),
    /// Show one crash report
    Report(reports::ReportArgs),
    /// What the rules in shadow would have done, and in which order to switch them on
    ShadowReport(shadow::Args),
    /// The simulated engine alone
    Sim(sim::Args),
}

/// Runs a command that only prints.
fn print(command: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    command(&mut std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// Usage or configuration is wrong: exit 2, where other failures exit 1.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub String);

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    crate::tokens::one_thread_a_count();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Count(args) => count::run(&args),
        Command::Reports(args) => print(|out| reports::reports(&args, out)),
        Command::Report(args) => print(|out| reports::report(&args, out)),
        Command::ShadowReport(args) => print(|out| shadow::report(&args, out)),
        Command::Sim(args) => sim::run(args),
    };
    result.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "kvgate: {error:#}");
        ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
    })
}

/// The runtime of the data port: a thread for each processor.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
