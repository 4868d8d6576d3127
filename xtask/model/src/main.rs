//! A model of lease, fence, takeover and hand-off, run as `cargo xtask model`.
//!
//! The protocol by which runners share the shards of one database ([`protocol`]) over a state that is
//! small enough to be searched to its end ([`state`]). What must hold in every state is in
//! [`search`], which also tells how a state was reached in which it does not.
//!
//! With `--break` a part of the protocol is left out. The search must then find what goes wrong: a
//! model that cannot fail shows nothing.

use std::process::ExitCode;

mod normal;
mod protocol;
mod search;
mod state;

use protocol::Break;
use search::{Bounds, Variant};

/// The greatest bound that the numbers of the model have room for. Memory ends long before.
const BOUND_MAX: u8 = 9;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (broken, bounds) = match options(&arguments) {
        Ok(options) => options,
        Err(problem) => {
            let names = Break::ALL.map(Break::name).join("|");
            eprintln!(
                "{problem}\nusage: cargo xtask model [--break {names}] \
                 [--faults N] [--moves N] [--commits N] [--ticks N]"
            );
            return ExitCode::from(2);
        }
    };
    let variants = match broken {
        Some(part) => vec![Variant::to_break(part)],
        None => Variant::ALL.to_vec(),
    };
    let mut variants = variants.into_iter();
    match variants.all(|variant| variant.within(bounds).report()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn options(arguments: &[String]) -> Result<(Option<Break>, Bounds), String> {
    let (mut broken, mut bounds) = (None, Bounds::default());
    let mut arguments = arguments.iter();
    while let Some(option) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("`{option}` needs a value"))?;
        let bound = || match value.parse() {
            Ok(bound) if bound <= BOUND_MAX => Ok(Some(bound)),
            _ => Err(format!("`{value}` is not a number up to {BOUND_MAX}")),
        };
        match option.as_str() {
            "--break" => broken = Some(part(value)?),
            "--faults" => bounds.faults = bound()?,
            "--moves" => bounds.moves = bound()?,
            "--commits" => bounds.commits = bound()?,
            "--ticks" => bounds.ticks = bound()?,
            _ => return Err(format!("`{option}` is not an option")),
        }
    }
    Ok((broken, bounds))
}

fn part(name: &str) -> Result<Break, String> {
    let part = Break::ALL.into_iter().find(|part| part.name() == name);
    part.ok_or_else(|| format!("`{name}` is not a part that can be left out"))
}
