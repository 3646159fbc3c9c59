//! The `kvgate` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvgate::cli::main()
}
