//! Whether the test can fail: everything that can be broken on purpose is, with ten seeds on each
//! store, and must be found every time.

use std::{sync::Arc, time::Instant};

use everstep_pg::Instance;

use crate::{Options, Problem, Store, parent, sabotage};

/// With how many seeds each thing is broken.
const SEEDS: u64 = 10;

/// Prints a line for each thing and store; whether all was found.
pub(crate) fn run(options: &Options, stores: &[Store]) -> Result<bool, Problem> {
    let begun = Instant::now();
    let mut all_found = true;
    for store in stores {
        let server = match store {
            Store::Sqlite => None,
            Store::Postgres => Some(Arc::new(Instance::start_new()?)),
        };
        for known in &sabotage::ALL {
            let options =
                Options { store: *store, sabotage: Some(known.sabotage), ..options.clone() };
            let missed = missed(&options, server.as_ref())?;
            all_found &= missed.is_empty();
            let (name, of, seconds) = (known.name, store.name(), begun.elapsed().as_secs());
            println!(
                "{{\"sabotage\":\"{name}\",\"store\":\"{of}\",\"seeds\":{SEEDS},\"caught\":{},\
                 \"missed\":{missed:?},\"seconds\":{seconds}}}",
                SEEDS - missed.len() as u64
            );
        }
    }
    Ok(all_found)
}

/// The seeds with which what is broken was not found.
fn missed(options: &Options, server: Option<&Arc<Instance>>) -> Result<Vec<u64>, Problem> {
    let mut missed = Vec::new();
    for seed in options.seed..options.seed + SEEDS {
        let options = Options { seed, ..options.clone() };
        let outcome = parent::run(&options, server.cloned())?;
        match outcome.caught {
            Some(what) => eprintln!("seed {seed}: {what}"),
            None => missed.push(seed),
        }
    }
    Ok(missed)
}
