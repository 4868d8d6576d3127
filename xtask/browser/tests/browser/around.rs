//! What can be done around runs: events, schedules, queues, dead letters, many runs at once.

use everstep::{IfFinished, ItemState, RunStatus, prelude::*};
use serde_json::json;

use crate::{
    Bench, Problem,
    page::until,
    samples::{MAILS, THUMBNAILS, approval, checkout, heartbeat, order, subscription},
};

pub(crate) async fn event_is_published(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(subscription, "customer-99".to_owned()).await?;
    let id = run.id().to_string();
    world.until_status(&id, RunStatus::Sleeping).await?;
    page.go("/events").await?;
    page.until_text(".state", "Which event?").await?;
    page.press(".page-head", "Publish an event").await?;
    page.dialog("Publish an event").await?;
    page.fill("Event", "paid").await?;
    page.fill("Body", "{\"cents\": 1250}").await?;
    page.fill("Key", "customer-99").await?;
    page.confirm("The event was published").await?;
    page.until_at("/events?name=paid").await?;
    page.until(
        "how often it was published",
        "document.querySelector('.numbers dd')?.textContent > 0",
    )
    .await?;
    let output = world.until_status(&id, RunStatus::Completed).await?.output;
    match output == Some(json!({"cents": 1250})) {
        true => Ok(()),
        false => Err(format!("it ended with {output:?}").into()),
    }
}

pub(crate) async fn schedule_is_paused_resumed_and_triggered(bench: &Bench) -> Result<(), Problem> {
    let (page, client) = (&bench.page, &bench.world.client);
    let name = "on demand";
    client.schedule(name, heartbeat, ()).every(hours(9)).await?;
    let card = "article[aria-label='on demand']";
    let schedule = || async { Ok(client.schedule_named(name).info().await?) };
    page.go("/schedules").await?;
    page.until_text(&format!("{card} h2"), name).await?;
    page.press(card, "Pause").await?;
    page.confirm("The schedule was paused").await?;
    until("a paused schedule", schedule, |one: &everstep::ScheduleInfo| one.paused).await?;
    page.until_text(&format!("{card} .badge"), "Paused").await?;
    page.press(card, "Resume").await?;
    page.confirm("The schedule goes on").await?;
    until("a schedule that goes on", schedule, |one: &everstep::ScheduleInfo| !one.paused).await?;
    page.until_text(&format!("{card} .badge"), "Active").await?;
    page.press(card, "Trigger now").await?;
    page.confirm("A run was started").await?;
    until("a run", schedule, |one: &everstep::ScheduleInfo| one.last_run.is_some()).await?;
    // A new one, and its end.
    page.press(".page-head", "New schedule").await?;
    page.dialog("New schedule").await?;
    page.fill("Name", "made by hand").await?;
    page.fill("Cron expression", "15 4 * * SUN").await?;
    page.fill("Time zone", "Europe/Vienna").await?;
    page.confirm("The schedule was created").await?;
    let card = "article[aria-label='made by hand']";
    page.until_text(&format!("{card} code"), "15 4 * * SUN").await?;
    page.press(card, "More for made by hand").await?;
    page.press(&format!("{card} .menu"), "Delete").await?;
    page.confirm("The schedule was deleted").await?;
    page.until_gone(card).await?;
    let left = client.schedules().await?.schedules;
    match left.iter().any(|schedule| schedule.name == "made by hand") {
        false => Ok(()),
        true => Err("the schedule is still there".into()),
    }
}

pub(crate) async fn queue_items_are_replayed_and_dropped(bench: &Bench) -> Result<(), Problem> {
    let (page, client) = (&bench.page, &bench.world.client);
    let stats = || async { Ok(client.queue_stats(THUMBNAILS.name()).await?) };
    let before = until("dead items", stats, |one: &everstep::QueueStats| one.dead > 1).await?;
    page.go("/queues?queue=thumbnails&state=dead").await?;
    page.press(".section td.tools", "Drop").await?;
    page.dialog("Drop this item?").await?;
    page.confirm("The item was dropped").await?;
    until("an item less", stats, |now: &everstep::QueueStats| now.dead + 1 == before.dead).await?;
    page.press(".section td.tools", "Replay").await?;
    page.dialog("Replay this item?").await?;
    page.confirm("The item is ready again").await?;
    page.go("/queues?queue=mails").await?;
    page.press(".section", "Put in an item").await?;
    page.fill("Input", "{\"to\": \"tony@example.org\"}").await?;
    page.fill("Dedupe key", "tony").await?;
    page.click("dialog[open] button[type=submit]").await?;
    page.until_gone("dialog[open]").await?;
    page.until_text(".section tbody tr", "tony@example.org").await?;
    let item = client.enqueue(MAILS, &json!(null)).dedupe("tony").await?;
    if item.status().await? != ItemState::Ready {
        return Err("the item is not ready".into());
    }
    page.press(".section tr:has(p.muted) td.tools", "Cancel").await?;
    page.confirm("The item was cancelled").await
}

pub(crate) async fn dead_letters_are_replayed_and_dropped(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let dead = world.client.start(heartbeat, ()).await?;
    dead.result().await?;
    for name in ["first word", "last word"] {
        let letter = dead.send(name, &json!({"said": name}));
        letter.if_finished(IfFinished::DeadLetter).await?;
    }
    let reader = world.client.start(checkout, order(109)).await?;
    page.go(&format!("/dead-letters?run={}", dead.id())).await?;
    page.until("two letters", "document.querySelectorAll('tbody tr').length === 2").await?;
    page.press("td.tools", "Replay").await?;
    page.dialog("Send this letter again").await?;
    page.fill("To another run", &reader.id().to_string()).await?;
    page.confirm("The letter was sent again").await?;
    page.until("one letter", "document.querySelectorAll('tbody tr').length === 1").await?;
    let inbox = || async { Ok(reader.inbox(10).await?.len()) };
    until("the letter in the other run", inbox, |n: &usize| *n == 1).await?;
    page.press("td.tools", "Drop").await?;
    page.dialog("Drop this letter?").await?;
    page.confirm("The letter was dropped").await?;
    page.until_text(".state", "No dead letters").await?;
    match world.client.dead_letters().run(dead.id()).await?.letters.len() {
        0 => Ok(()),
        n => Err(format!("{n} letters are still there").into()),
    }
}

pub(crate) async fn many_runs_are_changed_at_once(bench: &Bench) -> Result<(), Problem> {
    let (page, client) = (&bench.page, &bench.world.client);
    for n in 0..7 {
        let start = client.start(approval, json!({"chair": n}));
        start.tag("batch", "chairs").await?;
    }
    let chairs = |status| client.count().tag("batch", "chairs").status(status);
    page.go("/runs?tag=batch%3Achairs&version=1").await?;
    page.until("seven rows", "document.querySelectorAll('.rows .row').length === 7").await?;
    page.press(".page-head", "Change many").await?;
    page.press(".page-head .menu", "Cancel all that match").await?;
    page.until_text("dialog[open] .bulk-count", "7 runs match").await?;
    let locked = "document.querySelector('dialog[open] button[type=submit]').disabled";
    page.until("that the number must be typed", locked).await?;
    page.write("#bulk-confirm", "7").await?;
    page.click("dialog[open] button[type=submit]").await?;
    page.until_text("dialog[open] .bulk-report", "7 cancelled").await?;
    page.press("dialog[open]", "Done").await?;
    let cancelled = || async { Ok(chairs(RunStatus::Cancelled).await?) };
    until("seven cancelled runs", cancelled, |n: &u64| *n == 7).await?;
    let rows = "[...document.querySelectorAll('.rows .badge')].every((one) => one.textContent === 'Cancelled')";
    page.until("rows that say so", rows).await?;
    Ok(())
}

pub(crate) async fn changes_are_in_the_audit_log(bench: &Bench) -> Result<(), Problem> {
    let (page, world) = (&bench.page, &bench.world);
    let run = world.client.start(approval, json!({"what": "a door"})).await?;
    let id = run.id().to_string();
    page.go(&format!("/runs/{id}")).await?;
    page.press(".run-actions", "Cancel").await?;
    page.confirm("The run was cancelled").await?;
    page.keys("ga").await?;
    page.until_at("/audit").await?;
    let row = format!(
        "[...document.querySelectorAll('tbody tr')].some((one) => one.textContent.includes('Cancel run') \
         && one.innerHTML.includes('{id}'))"
    );
    page.until("the cancel in the audit log", &row).await?;
    Ok(())
}
