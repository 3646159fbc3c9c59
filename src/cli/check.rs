//! `kvgate check`: the effective configuration, and whether the tokenizer that it names can be used.

use std::io::Write as _;
use std::process::ExitCode;

use super::Usage;
use super::options::Options;
use crate::tokens::discover;

/// Print the effective configuration as TOML; exit 2 with file, line and key where it is wrong, or where the tokenizer
/// or chat template that it names cannot be used
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
    discover::configured(&config.tokens).map_err(Usage)?;
    write!(std::io::stdout(), "{}", toml::to_string_pretty(&config)?)?;
    Ok(ExitCode::SUCCESS)
}
