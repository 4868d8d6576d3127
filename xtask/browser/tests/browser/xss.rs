//! What users write stays text, wherever it is shown.

use crate::{Bench, Problem, world::PAYLOAD};

pub(crate) async fn what_users_write_stays_text(bench: &Bench) -> Result<(), Problem> {
    let (page, shown) = (&bench.page, &bench.world.shown);
    let tab = |tab: &str| format!("/runs/{}?tab={tab}", shown.payload);
    let pages = [
        // As a key and a tag, and as what went wrong.
        ("/runs?workflow=echo".to_owned(), ".rows .row .key"),
        ("/runs?workflow=echo".to_owned(), ".rows .row .doing-failure"),
        (format!("/runs/{}", shown.payload), ".run-title .key"),
        (format!("/runs/{}", shown.payload), ".run-facts .tag"),
        // As the name of a step, its result and its error.
        (tab("timeline"), ".entry-body .entry"),
        (tab("history"), ".entry-body .entry"),
        (tab("data"), ".failure-message"),
        (tab("data"), ".json-block"),
        (format!("/runs/{}?tab=messages", shown.unread), ".message"),
        (tab("streams"), ".stream-item"),
        (tab("raw"), ".raw-line"),
    ];
    for (address, place) in pages {
        page.go(&address).await?;
        // Inside of JSON the quotes are escaped, and long texts are cut.
        let begin = &PAYLOAD[..10];
        page.until_text(place, begin).await.map_err(|error| format!("{address}: {error}"))?;
        let made = "[...document.querySelectorAll('img, #app script, #app svg[onload], [onerror]')].length";
        let ran = "typeof window.__xss";
        let (made, ran) = (page.value(made).await?, page.value(ran).await?);
        if made != 0 || ran != "undefined" {
            return Err(format!(
                "{address}: {made} elements were made of a text; window.__xss is {ran}"
            )
            .into());
        }
    }
    // The chosen entry, with everything that is known of it.
    page.go(&format!("/runs/{}", shown.payload)).await?;
    page.click(".entry-body .entry").await?;
    page.until_text(".inspector .location", &PAYLOAD[..10]).await?;
    page.until_text(".inspector .json", &PAYLOAD[..10]).await?;
    page.until("that no script has run", "typeof window.__xss === 'undefined'").await?;
    // Also not when it is asked for.
    page.go(&format!("/runs?q={}", "%3Cimg%20src%3Dx%20onerror%3D%22window.__xss%3D1%22%3E"))
        .await?;
    page.until("an answer", "document.querySelector('.list-state h2, .rows .row')").await?;
    page.until(
        "that no script has run",
        "typeof window.__xss === 'undefined' && !document.querySelector('img')",
    )
    .await?;
    Ok(())
}
