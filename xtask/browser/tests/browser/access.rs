//! Who may see and change what.

use crate::{
    Bench, Problem,
    page::Page,
    world::{ADMIN, READER},
};

async fn log_in(page: &Page, token: &str) -> Result<(), Problem> {
    page.write("#token", token).await?;
    page.press(".login", "Log in").await
}

pub(crate) async fn token_logs_in_and_out(bench: &Bench) -> Result<(), Problem> {
    let page = &bench.page.at(&bench.world.guarded);
    page.go("/runs?status=failed").await?;
    page.until_at("/login?to=%2Fruns%3Fstatus%3Dfailed").await?;
    log_in(page, "a wrong token, made of dice").await?;
    page.until_text(".form-problem strong", "token").await?;
    page.quiet_but_for(&["status of 401"]).await?;
    log_in(page, ADMIN).await?;
    page.until_at("/runs?status=failed").await?;
    page.until("rows", "document.querySelectorAll('.rows .row').length > 2").await?;
    page.until_text(".who", "ada, admin").await?;
    // The cookie is the browser's alone, and is good for a load as well.
    page.until("that scripts see no cookie", "document.cookie === ''").await?;
    page.go("/audit").await?;
    page.until("the audit log", "document.querySelector('main table')").await?;
    page.click(".rail .logout").await?;
    page.until_at("/login").await?;
    page.go("/runs").await?;
    page.until_at("/login?to=%2Fruns").await?;
    page.quiet_but_for(&["status of 401"]).await
}

pub(crate) async fn reader_can_change_nothing(bench: &Bench) -> Result<(), Problem> {
    let (page, shown) = (&bench.page.at(&bench.world.guarded), &bench.world.shown);
    page.go("/login").await?;
    log_in(page, READER).await?;
    page.until_at("/runs").await?;
    page.until_text(".who", "rita, read").await?;
    let pages = [
        ("/runs".to_owned(), ".page-head button, .page-head [role=menuitem]"),
        (format!("/runs/{}", shown.waiting), ".run-actions > button, .run-actions [role=menuitem]"),
        (
            format!("/runs/{}", shown.failed),
            ".run-actions > button, .run-actions [role=menuitem], .inspect .actions button",
        ),
        (
            "/schedules".to_owned(),
            ".page-head button, .card .actions > button, .card [role=menuitem]",
        ),
        (
            "/queues?queue=thumbnails&state=dead".to_owned(),
            ".section-head .actions button, td.tools button",
        ),
        ("/events?name=paid".to_owned(), ".page-head button, .section-head button"),
        ("/dead-letters".to_owned(), "td.tools button"),
    ];
    for (address, buttons) in pages {
        page.go(&address).await?;
        let buttons = format!(
            "[...document.querySelectorAll('{buttons}')].filter((one) => one.getAttribute('aria-haspopup') !== 'menu')"
        );
        page.until("buttons", &format!("{buttons}.length > 1")).await?;
        let enabled = format!(
            "{buttons}.filter((one) => one.getAttribute('aria-disabled') !== 'true' && !one.disabled).map((one) => one.textContent)"
        );
        let enabled = page.value(&enabled).await?;
        if enabled.as_array().is_none_or(|names| !names.is_empty()) {
            return Err(format!("a reader can press {enabled} at {address}").into());
        }
    }
    page.go("/runs").await?;
    page.click("#start-run").await?;
    page.until_text(".toast", "This needs the role operate; you have read.").await?;
    if page.value("Boolean(document.querySelector('dialog[open]'))").await? != false {
        return Err("a reader gets a dialog to start a run".into());
    }
    page.keys("n").await?;
    page.until("a second note", "document.querySelectorAll('.toast').length === 2").await?;
    page.go("/audit").await?;
    page.until_text(".state, .state-problem", "admin").await?;
    page.quiet_but_for(&["status of 403"]).await?;
    page.click(".rail .logout").await?;
    page.until_at("/login").await
}
