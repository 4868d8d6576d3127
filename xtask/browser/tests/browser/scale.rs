//! With very much to show, the page stays small.

use std::{path::Path, time::SystemTime};

use everstep::{RunId, prelude::*, rusqlite};
use everstep_server::Server;
use serde_json::json;

use crate::{Bench, Problem, page::Page, samples::crowd, world::Serving};

const RUNS: u64 = 100_000;
/// Two entries for each and one for all: a few more than ten thousand.
const PAIRS: u64 = 5_000;
/// How many elements a page may have, however much there is.
const ELEMENTS: u64 = 1_500;

pub(crate) async fn list_of_a_hundred_thousand_runs_stays_small(
    bench: &Bench,
) -> Result<(), Problem> {
    let path = bench.world.directory.join("many.db");
    // Only an engine makes a new file.
    Engine::open(&path).start().await?.shutdown().await;
    fill(&path)?;
    let client = Client::open(&path).await?;
    let (address, serving) = Serving::start(Server::new(client)).await?;
    let page = &bench.page.at(&address);
    let looked = look_at_many(page).await;
    // Its events would end with the server, and that would be in the console.
    bench.page.go("/cluster").await?;
    serving.end().await;
    looked
}

async fn look_at_many(page: &Page) -> Result<(), Problem> {
    page.go("/runs").await?;
    page.until("rows", "document.querySelectorAll('.rows .row').length > 5").await?;
    page.until_text(".tiles .chip-count", "100,000").await?;
    let mut most = page.elements().await?;
    let loaded = "Math.round(parseFloat(document.querySelector('.rows').style.height) / 44)";
    let mut rows = 0;
    while rows < 10_000 {
        page.run("const list = document.querySelector('.list .scroller'); list.scrollTop = list.scrollHeight", vec![]).await?;
        let more = format!("{loaded} > {rows} && {loaded}");
        rows = page.until("more rows", &more).await?.as_u64().unwrap_or(0);
        most = most.max(page.elements().await?);
    }
    // Somewhere in the middle there is something to see as well.
    page.run("const list = document.querySelector('.list .scroller'); list.scrollTop = list.scrollHeight / 2", vec![]).await?;
    let filled = "(() => { const list = document.querySelector('.list .scroller').getBoundingClientRect(); \
         const rows = [...document.querySelectorAll('.rows .row')].map((one) => one.getBoundingClientRect()); \
         return Math.min(...rows.map((one) => one.top)) <= list.top + 60 \
             && Math.max(...rows.map((one) => one.bottom)) >= list.bottom - 1; })()";
    page.until("rows from top to bottom", filled).await?;
    bounded(most.max(page.elements().await?), "the list")?;
    // Another filter of the same many.
    page.click(".tiles .s-failed").await?;
    let failed = "document.querySelectorAll('.rows .row').length > 5 \
         && [...document.querySelectorAll('.rows .badge')].every((one) => one.textContent === 'Failed')";
    page.until("failed runs alone", failed).await?;
    bounded(page.elements().await?, "the filtered list")
}

pub(crate) async fn history_of_ten_thousand_entries_stays_small(
    bench: &Bench,
) -> Result<(), Problem> {
    let (page, client) = (&bench.page, &bench.world.client);
    let run = client.start(crowd, PAIRS).key("a crowd").await?;
    run.result().await?;
    page.go(&format!("/runs/{}", run.id())).await?;
    let status = "document.querySelector('.history-status')?.textContent ?? ''";
    page.until("all entries", &format!("/^1\\d,\\d{{3}} entries/.test({status})")).await?;
    page.press(".history-tools", "Open all").await?;
    let height = "document.querySelector('.history-main .scroller').scrollHeight > 100_000";
    page.until("all entries, one below the other", height).await?;
    let mut most = page.elements().await?;
    for part in 0..20 {
        let script = "const list = document.querySelector('.history-main .scroller'); \
             list.scrollTop = list.scrollHeight * arguments[0] / 20";
        page.run(script, vec![json!(part)]).await?;
        let filled = "(() => { const list = document.querySelector('.history-main .scroller').getBoundingClientRect(); \
             const rows = [...document.querySelectorAll('.entry-body .entry')].map((one) => one.getBoundingClientRect()); \
             return Math.min(...rows.map((one) => one.top)) <= list.top + 60 \
                 && Math.max(...rows.map((one) => one.bottom)) >= list.bottom - 30; })()";
        page.until("entries from top to bottom", filled).await?;
        most = most.max(page.elements().await?);
    }
    bounded(most, "the timeline")?;
    page.write(".history-tools input", "4999").await?;
    page.until("what was searched for", &format!("/^[23] matches in/.test({status})")).await?;
    for tab in ["History", "Raw"] {
        page.press("[role=tablist]", tab).await?;
        page.until(
            "the tab",
            "document.querySelectorAll('.entry-body .entry, .raw-line').length > 9",
        )
        .await?;
        bounded(page.elements().await?, tab)?;
    }
    Ok(())
}

fn bounded(elements: u64, what: &str) -> Result<(), Problem> {
    match elements <= ELEMENTS {
        true => Ok(()),
        false => Err(format!("{what} has {elements} elements, of at most {ELEMENTS}").into()),
    }
}

/// Writes runs as an engine would have left them: most have ended, some failed, some sleep.
fn fill(path: &Path) -> rusqlite::Result<()> {
    let connection = rusqlite::Connection::open(path)?;
    connection.execute_batch("PRAGMA synchronous = OFF; BEGIN")?;
    let mut insert = connection.prepare(
        "INSERT INTO everstep_runs (no, id, workflow, version, key, pool, shard, status, generation, \
         available_at, created_at, updated_at, finished_at, attempts, recoveries, inbox_seq, \
         last_number, waiting, input, output) \
         VALUES (?1, ?2, 'checkout', 1, ?3, 'default', ?4, ?5, 1, ?6, ?7, ?7, ?8, 1, 0, 0, 0, ?9, \
         X'00', ?10)",
    )?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = now.unwrap_or_default().as_millis() as i64 - RUNS as i64 * 100;
    for n in 0..RUNS {
        let at = since + n as i64 * 100;
        let id = run_id(at as u64, n);
        let status = match n % 20 {
            0 => 2,
            1 => 6,
            _ => 5,
        };
        let sleeps = status == 2;
        insert.execute(rusqlite::params![
            id.no().0,
            id.as_uuid().as_bytes(),
            format!("order-{n}"),
            id.shard_in(everstep::PoolNo::DEFAULT).0,
            status,
            sleeps.then_some(at + 31_536_000_000),
            at,
            (!sleeps).then_some(at + 1_500),
            sleeps.then_some("sleep `year`"),
            (status == 5).then_some([0_u8]),
        ])?;
    }
    connection.execute_batch("COMMIT")
}

/// A run id of version 7 with this time.
fn run_id(milliseconds: u64, n: u64) -> RunId {
    let random = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 10;
    let rest = 0b10 << 62 | random & ((1 << 62) - 1);
    let text = format!("{milliseconds:012x}7000{rest:016x}");
    text.parse().expect("the text of a UUID of version 7")
}
