//! What happens is shown while it happens, without a load of the page.

use everstep::RunStatus;
use serde_json::json;

use crate::{
    Bench, Problem,
    samples::{checkout, import, order},
};

/// Marks the page, so that a load would be noticed.
const MARK: &str = "(window.__mark = 'not loaded again')";
const IS_MARKED: &str = "window.__mark === 'not loaded again'";

/// The number of the tile of a status, `All` without one.
fn tile(status: &str) -> String {
    let class = match status.is_empty() {
        true => "chip:not([class*=s-])".to_owned(),
        false => format!("s-{status}"),
    };
    format!(
        "Number(document.querySelector('.tiles .{class} .chip-count').textContent.replace(/\\D/g, ''))"
    )
}

pub(crate) async fn list_follows_what_happens(bench: &Bench) -> Result<(), Problem> {
    let (page, client) = (&bench.page, &bench.world.client);
    page.go("/runs?workflow=checkout").await?;
    let shown = "document.querySelectorAll('.rows .row').length > 5";
    page.until("rows", shown).await?;
    page.until("a count", &format!("{} > 5", tile(""))).await?;
    page.until_text(".connection", "Live").await?;
    page.value(MARK).await?;
    let before = page.value(&tile("")).await?.as_u64().unwrap_or(0);
    let run = client.start(checkout, order(101)).key("order-101").await?;
    let more = format!("{} > {before}", tile(""));
    page.until("a higher count", &more).await?;
    page.until_text(".pill:not([hidden])", "1 new run").await?;
    page.click(".pill").await?;
    page.until_text(".rows .row .key", "order-101").await?;
    let row = format!(".rows .row[data-id='{}']", run.id());
    page.until_text(&row, "Sleeping").await?;
    run.send("parcel arrived", &json!("at the door")).await?;
    page.until_text(&row, "Completed").await?;
    page.until("that the page was not loaded again", IS_MARKED).await?;
    Ok(())
}

/// Browsers keep a page that was left as it was, and its connections with it if it lets them.
pub(crate) async fn page_that_one_comes_back_to_is_live(bench: &Bench) -> Result<(), Problem> {
    let (page, client) = (&bench.page, &bench.world.client);
    // More than a browser opens connections to one server.
    for _ in 0..8 {
        page.go("/runs?workflow=checkout").await?;
        page.until_text(".connection", "Live").await?;
    }
    page.go("/schedules").await?;
    page.until("schedules", "document.querySelectorAll('.schedule').length > 2").await?;
    page.run("history.back()", vec![]).await?;
    page.until("a count", &format!("{} > 5", tile(""))).await?;
    page.until_text(".connection", "Live").await?;
    let before = page.value(&tile("")).await?.as_u64().unwrap_or(0);
    client.start(checkout, order(105)).key("order-105").await?;
    let more = format!("{} > {before}", tile(""));
    page.until("a higher count", &more).await?;
    Ok(())
}

pub(crate) async fn run_follows_what_happens(bench: &Bench) -> Result<(), Problem> {
    let (page, client) = (&bench.page, &bench.world.client);
    let run = client.start(checkout, order(103)).key("order-103").await?;
    page.go(&format!("/runs/{}", run.id())).await?;
    page.until_text(".run-title .badge", "Sleeping").await?;
    page.until_text(".entry-body .entry", "parcel arrived").await?;
    page.value(MARK).await?;
    run.send("parcel arrived", &json!({"door": 7})).await?;
    page.until_text(".run-title .badge", "Completed").await?;
    page.press("[role=tablist]", "Data").await?;
    page.until_text(".json-block", "hold-103 for").await?;
    page.until("that the page was not loaded again", IS_MARKED).await?;
    bench.world.until_status(&run.id().to_string(), RunStatus::Completed).await?;
    Ok(())
}

pub(crate) async fn stream_follows_what_happens(bench: &Bench) -> Result<(), Problem> {
    let (page, client) = (&bench.page, &bench.world.client);
    let run = client.start(import, 100_000).await?;
    page.go(&format!("/runs/{}?tab=streams", run.id())).await?;
    let last = "Number([...document.querySelectorAll('.stream-item')].at(-1)?.firstChild.textContent ?? -1)";
    let first = page.until("an item", &format!("{last} + 1")).await?;
    page.until_text(".stream-tools", "Following live").await?;
    page.until("later items", &format!("{last} > {first} + 3")).await?;
    run.cancel().await?;
    page.until_text(".stream-tools", "The stream has ended").await?;
    Ok(())
}

pub(crate) async fn search_and_filters_find_runs(bench: &Bench) -> Result<(), Problem> {
    let page = &bench.page;
    let keys = "[...document.querySelectorAll('.rows .key')]";
    let rows = "document.querySelectorAll('.rows .row').length";
    page.go("/runs").await?;
    page.until("rows", &format!("{rows} > 5")).await?;
    page.write("#search", "order-13").await?;
    page.until_at("/runs?q=order-13").await?;
    let only = format!("{rows} === 1 && {keys}[0].textContent === 'order-13'");
    page.until("order 13 alone, by its key", &only).await?;
    page.write("#search", "customer:ada").await?;
    page.until_at("/runs?q=customer%3Aada").await?;
    let tagged = format!(
        "{rows} > 2 && {keys}.every((one) => (Number(one.textContent.slice(6)) % 6) === 0)"
    );
    page.until("the orders of ada, by their tag", &tagged).await?;
    let id = &bench.world.shown.failed;
    page.write("#search", id).await?;
    page.until("order 13 alone, by its id", &only).await?;
    page.go("/runs").await?;
    page.until("rows", &format!("{rows} > 5")).await?;
    page.click(".tiles .s-failed").await?;
    page.until_at("/runs?status=failed").await?;
    let failed = format!(
        "{rows} > 2 && [...document.querySelectorAll('.rows .badge')].every((one) => one.textContent === 'Failed')"
    );
    page.until("failed runs alone", &failed).await?;
    page.value("history.back()").await?;
    let others = "[...document.querySelectorAll('.rows .badge')].some((one) => one.textContent !== 'Failed')";
    page.until("all runs again", others).await?;
    page.press(".list-tools", "More filters").await?;
    page.dialog("More filters").await?;
    page.fill("Key begins with", "order-2").await?;
    page.fill("Tags", "region:eu").await?;
    page.click("dialog[open] button[type=submit]").await?;
    let eu = format!(
        "{rows} === 2 && {keys}.map((one) => one.textContent).join() === 'order-24,order-21'"
    );
    page.until("orders 24 and 21", &eu).await?;
    page.press(".filter-bar", "Clear all").await?;
    page.until_at("/runs").await?;
    page.go("/runs?q=nothing-like-this").await?;
    page.until_text(".list-state", "No run matches").await?;
    page.quiet_but_for(&[]).await
}
