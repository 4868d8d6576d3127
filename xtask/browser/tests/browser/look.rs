//! What every page looks like, in light and dark, on a desktop and on a phone.

use std::fs;

use crate::{
    Bench, Problem, axe,
    axe::Asked,
    driver::Shape,
    page::{Page, words},
    pages::{self, Shown},
};

/// What a page says of something that is not there, when it is asked for it.
const NOT_FOUND: &str = "status of 404";
/// And to somebody who has not logged in.
const UNAUTHORIZED: &str = "status of 401";

/// On every page, in both themes and both widths: nothing in the console, nothing that axe-core finds,
/// nothing out of a finger's reach, and a picture.
pub(crate) async fn every_page_is_shown_without_complaint(bench: &Bench) -> Result<(), Problem> {
    fs::create_dir_all(&bench.pictures)?;
    let phone = bench.driver.page(Shape::Phone, &bench.world.open).await?;
    let (desktop_wrong, phone_wrong) = tokio::join!(
        look_at_all(bench, &bench.page, Shape::Desktop),
        look_at_all(bench, &phone, Shape::Phone)
    );
    phone.close().await;
    let wrong = [desktop_wrong?, phone_wrong?].concat();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}

async fn look_at_all(bench: &Bench, page: &Page, shape: Shape) -> Result<Vec<String>, Problem> {
    let mut wrong = Vec::new();
    for shown in pages::all(&bench.world) {
        wrong.extend(look(bench, page, shape, &shown).await?);
    }
    let guarded = page.at(&bench.world.guarded);
    wrong.extend(look(bench, &guarded, shape, &pages::login()).await?);
    page.theme("light").await?;
    Ok(wrong)
}

async fn look(
    bench: &Bench,
    page: &Page,
    shape: Shape,
    shown: &Shown,
) -> Result<Vec<String>, Problem> {
    page.theme("light").await?;
    page.go(&shown.address).await?;
    page.until(&format!("the page `{}`", shown.name), shown.ready).await?;
    settled(page).await?;
    let mut wrong = Vec::new();
    for (theme, asked) in [("light", Asked::Everything), ("dark", Asked::Contrast)] {
        page.theme(theme).await?;
        settled(page).await?;
        let name = format!("{}-{}-{theme}", shown.name, shape.name());
        fs::write(bench.pictures.join(format!("{name}.png")), page.picture().await?)?;
        for found in axe::findings(page, &bench.axe, asked).await? {
            wrong.push(format!("{name}: {found}"));
        }
    }
    if shape == Shape::Phone {
        let beyond = out_of_reach(page).await?.into_iter();
        wrong.extend(beyond.map(|one| format!("{} on a phone: {one}", shown.name)));
    }
    for line in page.console().await? {
        let is_expected = match shown.name {
            "run-missing" | "nowhere" => line.contains(NOT_FOUND),
            "login" => line.contains(UNAUTHORIZED),
            _ => false,
        };
        if !is_expected {
            wrong.push(format!("{} on a {}: {line}", shown.name, shape.name()));
        }
    }
    Ok(wrong)
}

/// Waits until the page has been drawn as it is, and nothing on it moves any more.
async fn settled(page: &Page) -> Result<(), Problem> {
    let drawn = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => \
         Promise.allSettled(document.getAnimations().filter((one) => one.effect?.getTiming().iterations !== Infinity) \
             .map((one) => one.finished)).then(() => done(true))))";
    page.run_async(drawn, vec![]).await?;
    let loaded =
        "![...document.querySelectorAll('.skeleton')].some((one) => one.getClientRects().length)";
    page.until("that all of it is loaded", loaded).await?;
    Ok(())
}

/// What reaches beyond the right edge, unless something around it scrolls, and what is too low for a
/// finger (24 px are asked for by WCAG 2.2; buttons have 40 here).
const BEYOND: &str = "const main = document.querySelector('main'); \
    const clipped = (one) => { \
        for (let up = one.parentElement; up && up !== main; up = up.parentElement) \
            if (getComputedStyle(up).overflowX !== 'visible') return true; \
        return false; }; \
    const name = (one) => `${one.tagName}.${one.className}`; \
    const wide = [...main.querySelectorAll('*')].filter((one) => { \
        const box = one.getBoundingClientRect(); \
        return box.width > 0 && box.right > innerWidth + 1 && !clipped(one) \
            && !one.closest('.visually-hidden'); }); \
    const low = [...main.querySelectorAll('button, select, input:not([type=checkbox]):not([type=radio])')] \
        .filter((one) => { const box = one.getBoundingClientRect(); \
            return box.height > 0 && box.height < 39 && !one.classList.contains('link'); }); \
    const page = document.documentElement.scrollWidth > innerWidth ? ['the page scrolls sideways'] : []; \
    return [...page, ...wide.slice(0, 4).map((one) => `beyond the edge: ${name(one)}`), \
        ...low.slice(0, 4).map((one) => `too low for a finger: ${name(one)} ${one.textContent.slice(0, 20)}`)];";

async fn out_of_reach(page: &Page) -> Result<Vec<String>, Problem> {
    let found = page.run(BEYOND, vec![]).await?;
    Ok(found.as_array().into_iter().flatten().map(words).collect())
}
