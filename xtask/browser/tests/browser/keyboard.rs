//! The dashboard without a mouse.

use everstep::{RunStatus, prelude::*};
use serde_json::json;

use crate::{Bench, Problem, samples::approval, world::until_waits};

const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
const TAB: &str = "\u{e004}";
const DOWN: &str = "\u{e015}";
const LEFT: &str = "\u{e012}";
const RIGHT: &str = "\u{e014}";

pub(crate) async fn list_and_dialogs_work_by_keyboard(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(approval, json!({"what": "a bell"})).key("by keyboard").await?;
    until_waits(&run).await?;
    page.go("/runs?workflow=approval").await?;
    page.until("rows", "document.querySelectorAll('.rows .row').length > 3").await?;
    let row = |n: u32| {
        let n = n + 1;
        format!("document.activeElement.closest('.row')?.getAttribute('aria-rowindex') === '{n}'")
    };
    page.keys("jjj").await?;
    page.until("the third row in focus", &row(3)).await?;
    page.keys("k").await?;
    page.until("the second row in focus", &row(2)).await?;
    page.keys("k").await?;
    page.until("the first row in focus", &row(1)).await?;
    // The newest is the first.
    page.keys(ENTER).await?;
    page.until_at(&format!("/runs/{}", run.id())).await?;
    page.until_text(".run-title .badge", "Sleeping").await?;
    // Tab leads to every action.
    for _ in 0..40 {
        let at = page.value("document.activeElement.textContent.trim()").await?;
        if at == json!("Pause") {
            break;
        }
        page.keys(TAB).await?;
    }
    page.keys(ENTER).await?;
    page.dialog("Pause this run?").await?;
    let inside = "document.activeElement.closest('dialog[open]') !== null";
    page.until("the focus in the dialog", inside).await?;
    page.keys(ESCAPE).await?;
    page.until_gone("dialog[open]").await?;
    let back = "document.activeElement.textContent.trim() === 'Pause'";
    page.until("the focus where it was", back).await?;
    page.keys(ENTER).await?;
    page.dialog("Pause this run?").await?;
    page.until("the focus on the answer", "document.activeElement.type === 'submit'").await?;
    page.keys(ENTER).await?;
    page.until_gone("dialog[open]").await?;
    world.until_status(&run.id().to_string(), RunStatus::Paused).await?;
    page.until_text(".run-title .badge", "Paused").await?;
    // Menus follow the arrow keys.
    page.run("document.querySelector('.run-actions [aria-haspopup=menu]').focus()", vec![]).await?;
    page.keys(ENTER).await?;
    let item = |n: usize| {
        format!(
            "document.activeElement === document.querySelectorAll('.run-actions [role=menuitem]')[{n}]"
        )
    };
    page.until("the first entry of the menu in focus", &item(0)).await?;
    page.keys(DOWN).await?;
    page.until("the second entry of the menu in focus", &item(1)).await?;
    page.keys(ESCAPE).await?;
    let button = "document.activeElement.getAttribute('aria-haspopup') === 'menu'";
    page.until("the focus on the button of the menu", button).await?;
    let ways = [
        ("gs", "/schedules"),
        ("gq", "/queues"),
        ("ge", "/events"),
        ("gd", "/dead-letters"),
        ("gt", "/charts"),
        ("gc", "/cluster"),
        ("ga", "/audit"),
        ("gr", "/runs"),
    ];
    for (keys, address) in ways {
        page.keys(keys).await?;
        page.until_at(address).await?;
    }
    page.keys("/").await?;
    page.until("the focus in the search", "document.activeElement.id === 'search'").await?;
    page.keys(ESCAPE).await?;
    page.keys("?").await?;
    page.dialog("Keyboard shortcuts").await?;
    page.keys(ESCAPE).await?;
    page.until_gone("dialog[open]").await?;
    page.keys("n").await?;
    page.dialog("Start a run").await?;
    page.keys(ESCAPE).await?;
    page.until_gone("dialog[open]").await
}

pub(crate) async fn history_works_by_keyboard(bench: &Bench) -> Result<(), Problem> {
    let (page, shown) = (&bench.page, &bench.world.shown);
    page.go(&format!("/runs/{}", shown.done)).await?;
    let at =
        |location: &str| format!("document.activeElement.dataset.location === {}", json!(location));
    page.until("entries", "document.querySelectorAll('.entry-body .entry').length > 3").await?;
    page.run("document.querySelector('.entry-body .entry').focus()", vec![]).await?;
    page.keys("\u{e011}").await?; // Home
    page.until("the first entry in focus", &at("reserve stock")).await?;
    page.keys(DOWN).await?;
    page.until("the branches in focus", &at("pay and pack")).await?;
    let rows = "document.querySelectorAll('.entry-body .entry').length";
    page.keys(LEFT).await?;
    page.until("the branches closed", &format!("{rows} <= 4")).await?;
    page.keys(RIGHT).await?;
    page.until("the branches open", &format!("{rows} > 4")).await?;
    page.keys(ENTER).await?;
    page.until_text(".inspector .location", "pay and pack").await?;
    page.keys(ESCAPE).await?;
    page.until("the entry closed", "document.querySelector('.inspector').hidden").await?;
    // The tabs follow the arrow keys, too.
    page.run("document.querySelector('[role=tab][aria-selected=true]').focus()", vec![]).await?;
    page.keys(RIGHT).await?;
    page.until_at(&format!("/runs/{}?tab=history", shown.done)).await?;
    page.keys("w").await?;
    page.until_at(&format!("/runs/{}?tab=why", shown.done)).await
}
