//! Golden files: commands, and what each of them says.
//!
//! ```text
//! $ everstep runs pause [done]
//! ! error: run [done] is completed and cannot be paused: ..
//! ? 4
//! ```
//!
//! Lines after a command are what it prints; those after `!` go to standard error; `?` is the exit code
//! if it is not 0. Of a command that ends with `| head 3` only so many lines are kept. A line that begins
//! with `%` is an act of the test itself, see [`super::seed`]; lines after `##` are for readers. One file
//! holds for both stores. `EVERSTEP_GOLDEN=update` writes the files anew, from SQLite.

use std::{fmt::Write as _, path::PathBuf};

use super::{Place, seed::Seed};

/// Plays a file on both stores.
pub(crate) fn plays(name: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let golden = std::fs::read_to_string(&path).unwrap();
    let is_updated = std::env::var_os("EVERSTEP_GOLDEN").is_some_and(|it| it == "update");
    for place in Place::both() {
        let store = if place.is_postgres() { "PostgreSQL" } else { "SQLite" };
        let said = play(&place, &golden);
        if is_updated && !place.is_postgres() {
            std::fs::write(&path, &said).unwrap();
            continue;
        }
        let golden = match is_updated {
            true => std::fs::read_to_string(&path).unwrap(),
            false => golden.clone(),
        };
        compare(&golden, &said, &format!("{name} on {store}"));
        everstep::testing::ran_on(store);
    }
}

fn play(place: &Place, golden: &str) -> String {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut seed = Seed::new(place, runtime.handle().clone());
    let mut said = String::new();
    for line in golden.lines() {
        if let Some(act) = line.strip_prefix("% ") {
            let _ = write!(said, "\n{line}\n");
            seed.act(act);
        } else if let Some(command) = line.strip_prefix("$ everstep") {
            let _ = write!(said, "\n{line}\n");
            said += &output_of(&mut seed, command);
        } else if line.starts_with("## ") {
            let _ = writeln!(said, "{line}");
        }
    }
    seed.end();
    runtime.shutdown_background();
    said
}

fn output_of(seed: &mut Seed<'_>, command: &str) -> String {
    let command = seed.words.spelled_out(command);
    let (command, most) = match command.split_once(" | head ") {
        Some((command, most)) => (command, most.parse().unwrap()),
        None => (&*command, usize::MAX),
    };
    let output = seed.place.everstep(&arguments(command));
    let out = String::from_utf8_lossy(&output.stdout);
    let out: String = out.split_inclusive('\n').take(most).collect();
    let mut said = seed.words.told(&out);
    let errors = seed.words.told(&String::from_utf8_lossy(&output.stderr));
    for line in errors.lines() {
        let _ = writeln!(said, "! {line}");
    }
    match output.status.code() {
        Some(0) => {}
        Some(code) => _ = writeln!(said, "? {code}"),
        None => said += "? a signal\n",
    }
    said
}

/// The words of a command line; those in single quotes belong together.
fn arguments(line: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        match at % 2 {
            1 => arguments.push(part.to_owned()),
            _ => arguments.extend(part.split_whitespace().map(str::to_owned)),
        }
    }
    arguments
}

fn compare(golden: &str, said: &str, what: &str) {
    // Empty lines are for people.
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines.map(str::to_owned).collect()
    };
    let (expected, found) = (lines(golden), lines(said));
    let differs =
        (0..expected.len().max(found.len())).find(|at| expected.get(*at) != found.get(*at));
    let Some(at) = differs else { return };
    let command = found[..at.min(found.len())].iter().rfind(|line| line.starts_with("$ "));
    let nothing = "(nothing)".to_owned();
    panic!(
        "{what}, in `{}`:\nexpected: {}\nfound:    {}\n\nall of it:\n{said}",
        command.unwrap_or(&nothing),
        expected.get(at).unwrap_or(&nothing),
        found.get(at).unwrap_or(&nothing)
    );
}
