//! The `everstep` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    everstep_cli::main()
}
