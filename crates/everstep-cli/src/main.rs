//! The `everstep` command.

use everstep_cli::Exit;

fn main() -> Exit {
    everstep_cli::main()
}
