//! A model of lease, fence, takeover and hand-off, run as `cargo xtask model`.
//!
//! The protocol by which runners share the shards of one database ([`protocol`]) over a state that is
//! small enough to be searched to its end ([`state`]). What must hold in every state is in
//! [`search`], which also tells how a state was reached in which it does not. Two small models stand
//! beside it: the start of a body ([`body`]), and runs that are put away ([`away`]).
//!
//! With `--break` a part of the protocol is left out. The search must then find what goes wrong: a
//! model that cannot fail shows nothing.

use std::process::ExitCode;

mod away;
mod body;
mod normal;
mod protocol;
mod search;
mod state;

use protocol::Break;
use search::{Bounds, Rule, Variant, report_small};

/// What is left out.
#[derive(Clone, Copy)]
enum LeftOut {
    Part(Break),
    Rule(Rule),
}

/// The greatest bound that the numbers of the model have room for. Memory ends long before.
const BOUND_MAX: u8 = 9;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (broken, bounds) = match options(&arguments) {
        Ok(options) => options,
        Err(problem) => {
            let names = Break::ALL.map(Break::name).join("|");
            let rules = Rule::ALL.map(Rule::name).join("|");
            eprintln!(
                "{problem}\nusage: cargo xtask model [--break {names}|{rules}] \
                 [--faults N] [--moves N] [--commits N] [--ticks N]"
            );
            return ExitCode::from(2);
        }
    };
    let holds = match broken {
        Some(LeftOut::Part(part)) => Variant::to_break(part).within(bounds).report(),
        Some(LeftOut::Rule(rule)) => report_small(Some(rule)),
        None => {
            let mut variants = Variant::ALL.into_iter();
            report_small(None) && variants.all(|variant| variant.within(bounds).report())
        }
    };
    match holds {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn options(arguments: &[String]) -> Result<(Option<LeftOut>, Bounds), String> {
    let (mut broken, mut bounds) = (None, Bounds::default());
    let mut arguments = arguments.iter();
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("`{option}` needs a value"))?;
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

fn part(name: &str) -> Result<LeftOut, String> {
    let part = Break::ALL.into_iter().find(|part| part.name() == name);
    let rule = Rule::ALL.into_iter().find(|rule| rule.name() == name);
    let part = part.map(LeftOut::Part).or(rule.map(LeftOut::Rule));
    part.ok_or_else(|| format!("`{name}` is not a part that can be left out"))
}
