//! What can be done with a run, done by clicks, and asked of the engine afterwards.

use everstep::{RunStatus, prelude::*};
use serde_json::{Value as Json, json};

use crate::{
    Bench, Problem,
    page::{Page, until},
    samples::{approval, checkout, heartbeat, import, invoice, order},
    world::until_waits,
};

/// Opens a run, and waits until this is its status.
async fn open(page: &Page, run: &str, status: &str) -> Result<(), Problem> {
    page.go(&format!("/runs/{run}")).await?;
    page.until_text(".run-title .badge", status).await
}

pub(crate) async fn run_is_started(bench: &Bench) -> Result<(), Problem> {
    let (page, client) = (&bench.page, &bench.world.client);
    page.go("/runs").await?;
    page.click("#start-run").await?;
    page.dialog("Start a run").await?;
    page.run(
        "const select = document.querySelector('dialog[open] select[name=workflow]'); \
         select.value = 'approval'; select.dispatchEvent(new Event('change'))",
        vec![],
    )
    .await?;
    page.fill("Input", "{\"what\": a chair}").await?;
    page.until_text("dialog[open] .field-error", "Line 1, column 10").await?;
    page.fill("Input", "{\"what\": \"a chair\"}").await?;
    page.fill("Key", "from the dashboard").await?;
    page.fill("Tags", "room:4 floor:2").await?;
    page.confirm("The run has started").await?;
    let found = client.get(("approval", "from the dashboard")).await?;
    let info = found.ok_or("there is no such run")?.info().await?;
    let tags =
        [("floor", "2"), ("room", "4")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut got = info.tags.clone();
    got.sort();
    if info.input != json!({"what": "a chair"}) || got != tags {
        return Err(format!("it was started as {:?} with {got:?}", info.input).into());
    }
    page.press(".toast", "Open the run").await?;
    page.until_at(&format!("/runs/{}", info.id)).await?;
    // The key is taken now: the same run is shown.
    page.press(".run-actions", "More").await?;
    page.press(".menu", "Start another with this input").await?;
    page.fill("Key", "from the dashboard").await?;
    page.confirm("The key is taken").await
}

/// A number that a browser cannot hold is shown, and started again with, as it is.
pub(crate) async fn large_numbers_stay_as_they_are(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let input = json!({"order": 9_007_199_254_740_993_u64});
    let run = world.client.start(approval, input.clone()).await?;
    page.go(&format!("/runs/{}?tab=data", run.id())).await?;
    page.until_text(".json-block .json-number", "9007199254740993").await?;
    page.press(".run-actions", "More").await?;
    page.press(".menu", "Start another with this input").await?;
    page.dialog("Start a run").await?;
    page.fill("Key", "a large number").await?;
    page.confirm("The run has started").await?;
    let found = world.client.get(("approval", "a large number")).await?;
    let info = found.ok_or("there is no such run")?.info().await?;
    match info.input == input {
        true => Ok(()),
        false => Err(format!("it was started with {:?}", info.input).into()),
    }
}

pub(crate) async fn run_is_paused_and_resumed(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(approval, json!({"what": "a lamp"})).await?;
    until_waits(&run).await?;
    let id = run.id().to_string();
    open(page, &id, "Sleeping").await?;
    page.press(".run-actions", "Pause").await?;
    page.dialog("Pause this run?").await?;
    page.confirm("The run was paused").await?;
    page.until_text(".run-title .badge", "Paused").await?;
    world.until_status(&id, RunStatus::Paused).await?;
    page.press(".run-actions", "Resume").await?;
    page.dialog("Resume this run?").await?;
    page.confirm("The run goes on").await?;
    page.until_text(".run-title .badge", "Sleeping").await?;
    world.until_status(&id, RunStatus::Sleeping).await?;
    Ok(())
}

pub(crate) async fn run_is_cancelled(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(import, 100_000).await?;
    let id = run.id().to_string();
    open(page, &id, "Running").await?;
    // A dialog that is closed does nothing.
    page.press(".run-actions", "Cancel").await?;
    page.dialog("Cancel this run?").await?;
    page.press("dialog[open] footer", "Close").await?;
    page.until_gone("dialog[open]").await?;
    if run.info().await?.cancel_requested {
        return Err("it was cancelled though the dialog was closed".into());
    }
    page.press(".run-actions", "Cancel").await?;
    page.confirm("The run was cancelled").await?;
    page.until_text(".run-title .badge", "Cancelled").await?;
    world.until_status(&id, RunStatus::Cancelled).await?;
    Ok(())
}

pub(crate) async fn run_is_cancelled_and_rolled_back(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(checkout, order(105)).await?;
    let id = run.id().to_string();
    world.until_status(&id, RunStatus::Sleeping).await?;
    open(page, &id, "Sleeping").await?;
    page.until_text(".entry-body .entry", "parcel arrived").await?;
    page.press(".run-actions", "Cancel").await?;
    page.choose("Roll it back").await?;
    page.confirm("The run is rolling back").await?;
    page.until_text(".run-title .badge", "Cancelled").await?;
    world.until_status(&id, RunStatus::Cancelled).await?;
    let history = run.history().await?;
    let undone = history.iter();
    let undone = undone.filter(|entry| entry.kind == everstep::EntryKind::Rollback);
    match undone.count() {
        2 => Ok(()),
        other => Err(format!("{other} of 2 steps were rolled back").into()),
    }
}

pub(crate) async fn run_is_retried(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(invoice, 77).await?;
    let id = run.id().to_string();
    world.until_status(&id, RunStatus::Failed).await?;
    open(page, &id, "Failed").await?;
    page.until_text(".banner", "does not know the address").await?;
    page.press(".run-actions", "Retry").await?;
    page.dialog("Retry this run?").await?;
    page.confirm("The run is tried again").await?;
    page.until_text(".run-title .badge", "Completed").await?;
    let output = world.until_status(&id, RunStatus::Completed).await?.output;
    match output == Some(json!("invoice 2026-77 was sent")) {
        true => Ok(()),
        false => Err(format!("it ended with {output:?}").into()),
    }
}

pub(crate) async fn run_is_forked_from_a_step(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    open(page, &world.shown.done, "Completed").await?;
    page.click(".entry-body .entry[data-location='cool off']").await?;
    page.press(".inspect", "Fork from this step").await?;
    page.dialog("Fork from this step").await?;
    let from = "document.querySelector('dialog[open] input[name=from]').value === 'cool off'";
    page.until("the step in the dialog", from).await?;
    page.fill("Key", "fork of order 2").await?;
    page.confirm("The fork has started").await?;
    let fork = world.client.get(("checkout", "fork of order 2")).await?;
    let fork = fork.ok_or("there is no fork")?.id().to_string();
    world.until_status(&fork, RunStatus::Completed).await?;
    page.press(".toast", "Open the fork").await?;
    page.until_at(&format!("/runs/{fork}")).await?;
    page.until_text(".run-title .badge", "Completed").await
}

pub(crate) async fn message_is_sent(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(checkout, order(107)).await?;
    let id = run.id().to_string();
    world.until_status(&id, RunStatus::Sleeping).await?;
    open(page, &id, "Sleeping").await?;
    // One that nobody reads stays in the list of messages.
    page.press(".run-actions", "Send a message").await?;
    page.dialog("Send a message").await?;
    page.fill("Name", "weather").await?;
    page.fill("Body", "{\"rain\": true}").await?;
    page.confirm("The message was sent").await?;
    page.press("[role=tablist]", "Messages").await?;
    page.until_text(".message", "weather").await?;
    page.press("[role=tablist]", "Timeline").await?;
    page.until_text(".entry-body .entry", "parcel arrived").await?;
    page.press(".run-actions", "Send a message").await?;
    page.fill("Name", "parcel arrived").await?;
    page.fill("Body", "{\"door\": 9}").await?;
    page.confirm("The message was sent").await?;
    page.until_text(".run-title .badge", "Completed").await?;
    let output = world.until_status(&id, RunStatus::Completed).await?.output;
    let text = output.as_ref().and_then(Json::as_str).unwrap_or_default();
    match text.ends_with("{\"door\":9}") {
        true => Ok(()),
        false => Err(format!("it ended with {output:?}").into()),
    }
}

pub(crate) async fn deferred_and_token_are_resolved(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(approval, json!({"what": "a desk"})).await?;
    until_waits(&run).await?;
    let id = run.id().to_string();
    open(page, &id, "Sleeping").await?;
    page.click(".entry-body .entry[data-location=review]").await?;
    page.press(".inspect", "Resolve").await?;
    page.dialog("Resolve a deferred").await?;
    page.fill("Value", "{\"yes\": true}").await?;
    page.confirm("The deferred was resolved").await?;
    let output = world.until_status(&id, RunStatus::Completed).await?.output;
    if output != Some(json!({"yes": true})) {
        return Err(format!("it ended with {output:?}").into());
    }
    let other = world.client.start(approval, json!({"what": "a boat"})).await?;
    let token = until_waits(&other).await?;
    page.go("/events").await?;
    page.press(".page-head", "Resolve a token").await?;
    page.dialog("Resolve a token").await?;
    page.fill("Token", "not a token").await?;
    page.click("dialog[open] button[type=submit]").await?;
    page.until_text("dialog[open] .form-problem strong", "token").await?;
    page.quiet_but_for(&["status of 4"]).await?;
    page.fill("Token", &token).await?;
    page.choose("Reject").await?;
    page.fill("Error", "\"no boats\"").await?;
    page.confirm("The token was resolved").await?;
    let failed = world.until_status(&other.id().to_string(), RunStatus::Failed).await?;
    let message = failed.failure.map(|failure| failure.full().to_string());
    match message.as_deref().is_some_and(|text| text.contains("no boats")) {
        true => Ok(()),
        false => Err(format!("it failed with {message:?}").into()),
    }
}

pub(crate) async fn tag_is_set_and_run_deleted(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(heartbeat, ()).await?;
    run.result().await?;
    open(page, &run.id().to_string(), "Completed").await?;
    page.press(".run-actions", "More").await?;
    page.press(".menu", "Set a tag").await?;
    page.fill("Name", "seen").await?;
    page.fill("Value", "yes").await?;
    page.click("dialog[open] button[type=submit]").await?;
    page.until_gone("dialog[open]").await?;
    page.until_text(".run-facts .tag", "seen").await?;
    let tags = || async { Ok(run.info().await?.tags) };
    let tag = ("seen".to_owned(), "yes".to_owned());
    until("the tag", tags, |tags: &Vec<(String, String)>| tags.contains(&tag)).await?;
    page.press(".run-actions", "More").await?;
    page.press(".menu", "Delete").await?;
    page.dialog("Delete this run for good?").await?;
    page.confirm("The run was deleted").await?;
    page.until_at("/runs").await?;
    match world.client.get(run.id()).await?.is_none() {
        true => Ok(()),
        false => Err("the run is still there".into()),
    }
}

/// A run is moved to a pool where it cannot be, and what is not possible is not offered.
pub(crate) async fn refused_action_says_why(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    open(page, &world.shown.done, "Completed").await?;
    page.press(".run-actions", "More").await?;
    let cancel = "[...document.querySelectorAll('.run-actions .menu [role=menuitem]')] \
         .find((one) => one.textContent.startsWith('Cancel'))?.getAttribute('aria-disabled') === 'true'";
    page.until("that a run that has ended cannot be cancelled", cancel).await?;
    page.keys("\u{e00c}").await?;
    page.press(".run-actions", "Send a message").await?;
    page.fill("Name", "too late").await?;
    page.click("dialog[open] button[type=submit]").await?;
    page.until_text("dialog[open] .form-problem", &world.shown.done[..8]).await?;
    page.quiet_but_for(&["status of 4"]).await
}
