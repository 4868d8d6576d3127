//! A model of lease, fence, takeover and hand-off, run as `cargo xtask model`.
//!
//! The protocol by which runners share the shards of one database ([`protocol`]) over a state that is
//! small enough to be searched to its end ([`state`]). What must hold in every state is in
//! [`search`], which also tells how a state was reached in which it does not.
//!
//! With `--break` a part of the protocol is left out. The search must then find what goes wrong: a
//! model that cannot fail shows nothing.

use std::process::ExitCode;

mod protocol;
mod search;
mod state;

use protocol::Break;
use search::Variant;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let broken = match options(&arguments) {
        Ok(broken) => broken,
        Err(problem) => {
            let names = Break::ALL.map(Break::name).join("|");
            eprintln!("{problem}\nusage: cargo xtask model [--break {names}]");
            return ExitCode::from(2);
        }
    };
    let held = match broken {
        Some(part) => Variant::to_break(part).report(),
        None => Variant::ALL.iter().all(Variant::report),
    };
    match held {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn options(arguments: &[String]) -> Result<Option<Break>, String> {
    match arguments {
        [] => Ok(None),
        [option, name] if option == "--break" => {
            let part = Break::ALL.into_iter().find(|part| part.name() == name);
            part.map(Some)
                .ok_or_else(|| format!("`{name}` is not a part that can be left out"))
        }
        other => Err(format!("`{}` is not an option", other.join(" "))),
    }
}
