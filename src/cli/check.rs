//! `kvgate check`: the effective configuration.

use std::io::Write as _;
use std::process::ExitCode;

use super::options::Options;

/// Print the effective configuration as TOML; exit 2 with file, line and key where it is wrong
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kvgate check --config kvgate.toml")]
pub struct Args {
    #[command(flatten)]
    options: Options,
}

/// Runs the command.
///
/// # Errors
/// [`super::Usage`] where the configuration is wrong; an error of stdout.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.options.load()?;
    write!(std::io::stdout(), "{}", toml::to_string_pretty(&config)?)?;
    Ok(ExitCode::SUCCESS)
}
