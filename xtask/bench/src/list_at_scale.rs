//! `list_at_scale`: pages and counts of a store with a million runs in it.
//!
//! Each kind of page is asked for twice: for what many runs have in common, and for what only a few
//! of the oldest have, so that no page is quick only because its runs come first.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use everstep::{Client, Filter, RunId, RunStatus, prelude::*};
use rusqlite::Connection;

use crate::{
    Directory, Problem,
    line::Line,
    postgres,
    seed::{self, Past},
};

/// The variable that says how many runs there are, if not a million.
const RUNS: &str = "EVERSTEP_BENCH_RUNS";
const MILLION: u64 = 1_000_000;

/// How many there are in the store that the first page is compared with.
const FEW: u64 = 1_000;

/// How many runs a page has.
const PAGE: usize = 50;

/// How often each is asked for: so many times, or for so long and a few times at least.
const CALLS: usize = 200;
const CALLS_AT_LEAST: usize = 5;
const TIME: Duration = Duration::from_secs(3);

#[workflow]
async fn order(_ctx: Ctx, n: u64) -> Result<u64> {
    Ok(n)
}

/// The n-th of all runs. A thousandth, the oldest, are of a workflow of their own, and as many are
/// paused; the rest are of two workflows, and nineteen of twenty of them have ended.
fn past_run(n: u64, all: u64) -> Past {
    let few = all / 1_000;
    let workflow = match n % 5 {
        _ if n < few => "once",
        0 | 1 => "invoice",
        _ => "order",
    };
    let past = Past::new(n, workflow)
        .key(format!("{workflow}-{n:08}"))
        .tag("region", ["eu", "us", "asia"][n as usize % 3].to_owned())
        .tag("batch", (n / 100).to_string());
    match n % 100 {
        _ if (few..2 * few).contains(&n) => past.idle(RunStatus::Paused),
        0..4 => past.ended(RunStatus::Failed),
        4 => past.ended(RunStatus::Cancelled),
        5..9 => past.sleeping(4_000_000_000_000 + n as i64),
        9 => past.idle(RunStatus::Sleeping),
        _ => past.ended(RunStatus::Completed),
    }
}

/// A store with so many runs, and a client of it.
async fn filled(path: &Path, runs: u64) -> Result<Client, Problem> {
    let engine = Engine::open(path).register(order).start().await?;
    engine.shutdown().await;
    let place = path.to_owned();
    let fill = move || seed::fill(&place, (0..runs).map(|n| past_run(n, runs)));
    tokio::task::spawn_blocking(fill).await??;
    Ok(Client::open(path).await?)
}

/// One thing that is asked for.
struct Question {
    name: &'static str,
    filter: Filter,
    asks: Asks,
}

#[derive(Clone, Copy)]
enum Asks {
    /// A page, of which so many runs are there.
    Page(usize),
    /// The page after this run.
    After(RunId),
    /// How many there are of each status, which are so many.
    Counts(u64),
}

fn questions(runs: u64) -> Vec<Question> {
    let page = |name, filter| Question { name, filter, asks: Asks::Page(PAGE) };
    let few = runs / 1_000;
    let (all, middle) = (Filter::new, past_run(runs / 2, runs).id);
    let eu = || all().tag("region", "eu");
    let counts = |name, filter, number| Question { name, filter, asks: Asks::Counts(number) };
    vec![
        page("first_page", all()),
        Question { asks: Asks::After(middle), ..page("deep_page", all()) },
        page("status_page", all().status(RunStatus::Failed)),
        page("rare_status_page", all().status(RunStatus::Paused)),
        Question {
            asks: Asks::Page(0),
            ..page("no_status_page", all().status(RunStatus::Running))
        },
        page("workflow_page", all().workflow("invoice")),
        page("rare_workflow_page", all().workflow("once")),
        page("workflow_status_page", all().workflow("order").status(RunStatus::Cancelled)),
        page("tag_page", eu()),
        page("rare_tag_page", all().tag("batch", "0")),
        Question { asks: Asks::After(middle), ..page("deep_tag_page", eu()) },
        page("key_page", all().key_prefix("order-")),
        page("rare_key_page", all().key_prefix("once-000000")),
        page("workflow_key_page", all().workflow("order").key_prefix("order-")),
        counts("counts", all(), runs),
        counts("workflow_counts", all().workflow("once"), few),
        counts("tag_counts", eu(), runs.div_ceil(3)),
        counts("rare_tag_counts", all().tag("batch", "0"), 100),
        counts("rare_key_counts", all().key_prefix("once-000000"), 100),
    ]
}

impl Question {
    /// Asks once, and fails if the answer is wrong.
    async fn ask(&self, client: &Client) -> Result<(), Problem> {
        let (asked, wanted) = match self.asks {
            Asks::Counts(number) => {
                let counts = client.count_by_status(self.filter.clone()).await?;
                (counts.total(), number)
            }
            Asks::Page(number) => (self.page(client, None).await?, number as u64),
            Asks::After(run) => (self.page(client, Some(run)).await?, PAGE as u64),
        };
        match asked == wanted {
            true => Ok(()),
            false => Err(format!("`{}` has {asked} runs, not {wanted}", self.name).into()),
        }
    }

    async fn page(&self, client: &Client, after: Option<RunId>) -> Result<u64, Problem> {
        let mut list = client.list().filter(self.filter.clone()).limit(PAGE);
        if let Some(run) = after {
            list = list.after(run);
        }
        Ok(list.await?.runs.len() as u64)
    }

    /// Asks again and again: how long each took.
    async fn times(&self, client: &Client) -> Result<Vec<Duration>, Problem> {
        // The first one finds everything cold.
        self.ask(client).await?;
        let (mut times, began) = (Vec::new(), Instant::now());
        while times.len() < CALLS && (times.len() < CALLS_AT_LEAST || began.elapsed() < TIME) {
            let asked = Instant::now();
            self.ask(client).await?;
            times.push(asked.elapsed());
        }
        times.sort_unstable();
        Ok(times)
    }
}

fn ms(times: &[Duration], part: usize) -> f64 {
    times[(times.len() * part / 100).min(times.len() - 1)].as_secs_f64() * 1e3
}

pub(crate) fn list_at_scale(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    let runs = match std::env::var(RUNS) {
        Ok(runs) => runs.parse().map_err(|_| format!("{RUNS} is `{runs}`"))?,
        Err(_) => MILLION,
    };
    if runs < 100_000 {
        // A thousandth of them fills no page otherwise, and no batch.
        return Err(format!("{RUNS} is {runs}, and must be 100000 at least").into());
    }
    let few = runtime.block_on(async {
        let client = filled(&directory.fresh("few.db"), FEW).await?;
        let first = questions(MILLION).swap_remove(0);
        first.times(&client).await
    })?;
    let path = directory.fresh("full.db");
    let client = runtime.block_on(filled(&path, runs))?;
    let mut all = Vec::new();
    for question in questions(runs) {
        let times = runtime.block_on(question.times(&client))?;
        all.push((question.name, times));
    }
    let raw_page = bare(&path, &format!("{BARE_PAGE} LIMIT {PAGE}"))?;
    let raw_counts = bare(&path, BARE_COUNTS)?;
    let (calls, time) = (
        all.iter().map(|(_, times)| times.len() as u64).sum(),
        all.iter().flat_map(|(_, times)| times).sum(),
    );
    let mut line = Line::new("list_at_scale", calls, time)
        .count("runs", runs)
        .count("bytes", crate::directory::bytes_of(&path)?)
        .number("ratio", ms(&few, 50) / ms(&all[0].1, 50))
        .number("few_first_page_p50_ms", ms(&few, 50))
        .number("raw_first_page_p50_ms", ms(&raw_page, 50))
        .number("raw_counts_p50_ms", ms(&raw_counts, 50));
    for (name, times) in &all {
        line = line
            .number(&format!("{name}_p50_ms"), ms(times, 50))
            .number(&format!("{name}_p99_ms"), ms(times, 99));
    }
    line.print();
    Ok(())
}

const BARE_PAGE: &str = "SELECT * FROM everstep_runs ORDER BY no DESC";
const BARE_COUNTS: &str = "SELECT status, count(*) FROM everstep_runs GROUP BY status";

/// The same by one statement on a connection of its own, and nothing else.
fn bare(place: &Path, sql: &str) -> Result<Vec<Duration>, Problem> {
    let mut ask: Box<dyn FnMut() -> Result<(), Problem>> = match postgres::Schema::at(place) {
        Some(schema) => {
            let (runtime, client) = schema.connect()?;
            let statement = runtime.block_on(client.prepare(sql))?;
            Box::new(move || Ok(runtime.block_on(client.query(&statement, &[])).map(drop)?))
        }
        None => {
            let conn = Connection::open(place)?;
            Box::new(move || {
                let mut statement = conn.prepare_cached(sql)?;
                let columns = statement.column_count();
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    for column in 0..columns {
                        row.get_ref(column)?;
                    }
                }
                Ok(())
            })
        }
    };
    ask()?;
    let (mut times, began) = (Vec::new(), Instant::now());
    while times.len() < CALLS && (times.len() < CALLS_AT_LEAST || began.elapsed() < TIME) {
        let asked = Instant::now();
        ask()?;
        times.push(asked.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_filled_store_is_read_as_an_engine_would_have_left_it() {
        let directory = Directory::new(&std::env::temp_dir(), "filled", None).expect("a directory");
        let client = filled(&directory.fresh("few.db"), FEW).await;
        let client = client.expect("a store with runs");
        let counts = client.count_by_status(Filter::new()).await.expect("counts");
        let of = |status| counts.of(status);
        let ended = [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled];
        assert_eq!(ended.map(of), [900, 39, 10]);
        let live = [RunStatus::Running, RunStatus::Sleeping, RunStatus::Paused];
        assert_eq!(live.map(of), [0, 50, 1]);
        let eu = client.count().tag("region", "eu").await.expect("a count");
        assert_eq!(eu, FEW.div_ceil(3));
        let page = client.list().limit(PAGE).await.expect("a page");
        assert_eq!(page.runs.len(), PAGE);
        assert_eq!(page.runs[0].key.as_deref(), Some("order-00000999"));
        let once = client.list().key_prefix("once-").await.expect("a page");
        assert_eq!(once.runs.len(), 1);
        assert_eq!(once.runs[0].id, past_run(0, FEW).id);
    }
}
