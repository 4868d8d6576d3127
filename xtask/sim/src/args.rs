//! The arguments of the command.

use std::{path::PathBuf, time::Duration};

use everstep::Sabotage;

use crate::{
    breaks::{self, Break},
    fleet::Share,
};

pub(crate) const USAGE: &str = "\
Usage: cargo xtask sim [OPTIONS]

  --seeds N        live so many lives (1000 if nothing else is said)
  --minutes M      live for so long instead
  --from N         begin with this seed (0)
  --seed N         live one life, and print its plan, its trace and the verdict; if a promise was broken,
                   also a smaller life that breaks it
  --plan FILE      live the life of a plan, as it was printed for a smaller life
  --no-shrink      make no life smaller
  --break NAME     break a promise on purpose: how many seeds it takes to be found, of 2000;
                   `all` for one after another, `help` for their names; with `--seed`, show one life
  --compare        do what was done to the store to a SQLite file and to a PostgreSQL schema, too, and
                   compare all answers and tables (300 lives if nothing else is said)
  --workers N      so many worker processes, each pinned to a core (as many as there are cores)
  --json           print nothing but one object for the whole, or one for each break
";

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Args {
    pub(crate) task: Task,
    pub(crate) from: u64,
    pub(crate) amount: Amount,
    pub(crate) workers: usize,
    pub(crate) json: bool,
    /// What is broken in the one life that is shown.
    pub(crate) sabotage: Option<Sabotage>,
    /// A life that has broken a promise is made smaller.
    pub(crate) shrinks: bool,
    /// The simulated store is compared with the others.
    pub(crate) compares: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Task {
    Help,
    ListBreaks,
    One(u64),
    /// The life of the plan in this file.
    Plan(PathBuf),
    Many,
    Break(Vec<Break>),
    /// One of the processes of a fleet.
    Worker(Share),
}

/// How much is lived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Seeds(u64),
    Time(Duration),
}

impl Args {
    pub(crate) fn parse(arguments: &[String]) -> Result<Args, String> {
        if let [flag, rest @ ..] = arguments
            && flag == "--worker"
        {
            return Ok(Args::new(Task::Worker(Share::parse(rest)?)));
        }
        let mut args = Args::new(Task::Many);
        let (mut one, mut broken, mut amount) = (None, None, None);
        let mut rest = arguments.iter();
        while let Some(flag) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("`{flag}` needs a value"));
            match flag.as_str() {
                "--help" | "-h" => args.task = Task::Help,
                "--json" => args.json = true,
                "--no-shrink" => args.shrinks = false,
                "--compare" => (args.compares, args.amount) = (true, Amount::Seeds(300)),
                "--seeds" => amount = Some(Amount::Seeds(number(value()?)?)),
                "--minutes" => {
                    let minutes: f64 = number(value()?)?;
                    let seconds = minutes * 60.0;
                    let time = Duration::try_from_secs_f64(seconds);
                    amount = Some(Amount::Time(time.map_err(|error| error.to_string())?));
                }
                "--from" => args.from = number(value()?)?,
                "--seed" => one = Some(Task::One(number(value()?)?)),
                "--plan" => one = Some(Task::Plan(value()?.into())),
                "--workers" => args.workers = number::<usize>(value()?)?.max(1),
                "--break" => broken = Some(value()?.clone()),
                unknown => return Err(format!("`{unknown}` is no option")),
            }
        }
        if let Some(name) = broken {
            args.amount = Amount::Seeds(breaks::SEEDS);
            args.task = match name.as_str() {
                "help" => Task::ListBreaks,
                "all" => Task::Break(breaks::ALL.to_vec()),
                name => Task::Break(vec![breaks::by_name(name)?]),
            };
        }
        if let Some(amount) = amount {
            args.amount = amount;
        }
        if let Some(one) = one {
            if let Task::Break(broken) = &args.task {
                args.sabotage = broken.first().map(|it| it.sabotage);
            }
            args.task = one;
        }
        Ok(args)
    }

    fn new(task: Task) -> Args {
        Args {
            task,
            from: 0,
            amount: Amount::Seeds(1_000),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            json: false,
            sabotage: None,
            shrinks: true,
            compares: false,
        }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}
