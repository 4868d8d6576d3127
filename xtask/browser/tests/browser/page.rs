//! A page, as a person uses it: looks, clicks, types, waits for what should appear.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use fantoccini::{
    Client as Session, Locator,
    actions::{InputSource, KeyAction, KeyActions},
};
use serde_json::{Value as Json, json};

use crate::{Problem, driver::Extra};

/// How long something may take to appear. A slow machine that has other things to do as well needs
/// much of it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// How often is looked.
const LOOK: Duration = Duration::from_millis(40);
/// What one look counts for at most: a machine that stood still for a minute has not waited.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// What finds a button or link by the beginning of its name, inside of the last match of a selector.
const FIND_NAMED: &str = "const [scope, name] = arguments; \
    for (const old of document.querySelectorAll('[data-here]')) delete old.dataset.here; \
    const all = [...document.querySelectorAll(scope)].flatMap((root) => \
        [...root.querySelectorAll('button, a, [role=menuitem], [role=tab], summary')]); \
    const named = (one) => (one.getAttribute('aria-label') ?? one.textContent).trim(); \
    const found = all.find((one) => named(one).startsWith(name) && one.getClientRects().length); \
    if (!found) return false; \
    found.dataset.here = ''; return true;";

pub(crate) struct Page {
    session: Session,
    base: String,
}

impl Page {
    pub(crate) fn new(session: Session, base: &str) -> Page {
        let base = base.to_owned();
        Page { session, base }
    }

    /// Goes to an address of the dashboard, by a load of its own.
    pub(crate) async fn go(&self, path: &str) -> Result<(), Problem> {
        Ok(self.session.goto(&format!("{}{path}", self.base)).await?)
    }

    /// What an expression gives in the page.
    pub(crate) async fn value(&self, expression: &str) -> Result<Json, Problem> {
        self.run(&format!("return {expression}"), vec![]).await
    }

    /// What a script returns.
    pub(crate) async fn run(&self, script: &str, arguments: Vec<Json>) -> Result<Json, Problem> {
        Ok(self.session.execute(script, arguments).await?)
    }

    /// What a script hands to the last of its arguments.
    pub(crate) async fn run_async(
        &self,
        script: &str,
        arguments: Vec<Json>,
    ) -> Result<Json, Problem> {
        Ok(self.session.execute_async(script, arguments).await?)
    }

    /// Waits until an expression is true; `what` says in words what should be there.
    pub(crate) async fn until(&self, what: &str, expression: &str) -> Result<Json, Problem> {
        let look = async || {
            let value = self.value(expression).await?;
            let is_there = match &value {
                Json::Null | Json::Bool(false) => false,
                Json::Number(number) => number.as_f64() != Some(0.0),
                Json::String(text) => !text.is_empty(),
                _ => true,
            };
            Ok(is_there.then_some(value))
        };
        self.wait(what, look).await
    }

    /// Waits until something on the page has this text in it.
    pub(crate) async fn until_text(&self, selector: &str, text: &str) -> Result<(), Problem> {
        let what = format!("`{text}` in `{selector}`");
        let (selector, text) = (json!(selector), json!(text));
        let expression = format!(
            "[...document.querySelectorAll({selector})].some((one) => one.textContent.includes({text}))"
        );
        self.until(&what, &expression).await?;
        Ok(())
    }

    /// Waits until there is no such thing on the page.
    pub(crate) async fn until_gone(&self, selector: &str) -> Result<(), Problem> {
        let expression = format!("!document.querySelector({})", json!(selector));
        self.until(&format!("no `{selector}`"), &expression).await?;
        Ok(())
    }

    /// Waits until the address is this one.
    pub(crate) async fn until_at(&self, address: &str) -> Result<(), Problem> {
        let expression = format!("location.pathname + location.search === {}", json!(address));
        self.until(&format!("the address {address}"), &expression).await?;
        Ok(())
    }

    async fn wait<T>(
        &self,
        what: &str,
        look: impl AsyncFn() -> Result<Option<T>, Problem>,
    ) -> Result<T, Problem> {
        let mut waited = Duration::ZERO;
        loop {
            let began = Instant::now();
            let looked = look().await;
            if let Ok(Some(found)) = looked {
                return Ok(found);
            }
            waited += LOOK + began.elapsed().min(LOOK_MAX);
            if waited > LIMIT {
                let error = looked.err().map(|error| format!(" ({error})"));
                return Err(self.unlike(what, &error.unwrap_or_default()).await);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What was expected, and what was there instead.
    async fn unlike(&self, what: &str, why: &str) -> Problem {
        let shown = "location.href + '\\n' + \
             (document.querySelector('dialog[open]') ?? document.body).innerText.slice(0, 1200)";
        let shown = self.value(shown).await;
        let shown = shown.map_or_else(|error| error.to_string(), |text| words(&text));
        let logs = self.console().await.unwrap_or_default().join("\n");
        format!("expected {what} within {LIMIT:?}{why}; the page shows {shown}\nconsole: {logs}")
            .into()
    }

    /// Clicks what a selector finds, as soon as it can be clicked.
    pub(crate) async fn click(&self, selector: &str) -> Result<(), Problem> {
        let click = async || {
            let element = self.session.find(Locator::Css(selector)).await?;
            element.click().await?;
            Ok(Some(()))
        };
        self.wait(&format!("`{selector}`, to click it"), click).await
    }

    /// Clicks the button, link, tab or entry of a menu whose name begins so, inside of a selector.
    pub(crate) async fn press(&self, scope: &str, name: &str) -> Result<(), Problem> {
        let press = async || {
            let found = self.run(FIND_NAMED, vec![json!(scope), json!(name)]).await?;
            if found != json!(true) {
                return Ok(None);
            }
            let element = self.session.find(Locator::Css("[data-here]")).await?;
            element.click().await?;
            Ok(Some(()))
        };
        self.wait(&format!("`{name}` in `{scope}`, to press it"), press).await
    }

    /// Writes into the field with this label, in the open dialog, instead of what is in it.
    pub(crate) async fn fill(&self, label: &str, text: &str) -> Result<(), Problem> {
        let find = "const found = [...document.querySelectorAll('dialog[open] label')] \
             .find((one) => one.textContent.startsWith(arguments[0])); return found?.htmlFor ?? null;";
        let fill = async || {
            let id = self.run(find, vec![json!(label)]).await?;
            let Some(id) = id.as_str() else {
                return Ok(None);
            };
            let element = self.session.find(Locator::Id(id)).await?;
            element.clear().await?;
            element.send_keys(text).await?;
            Ok(Some(()))
        };
        self.wait(&format!("a field `{label}`"), fill).await
    }

    /// Chooses one of several, or ticks a box, by the beginning of its label in the open dialog.
    pub(crate) async fn choose(&self, label: &str) -> Result<(), Problem> {
        let find = "for (const old of document.querySelectorAll('[data-here]')) delete old.dataset.here; \
             const found = [...document.querySelectorAll('dialog[open] label.check')] \
             .find((one) => one.textContent.startsWith(arguments[0])); \
             if (!found) return false; found.dataset.here = ''; return true;";
        let choose = async || {
            if self.run(find, vec![json!(label)]).await? != json!(true) {
                return Ok(None);
            }
            let element = self.session.find(Locator::Css("[data-here]")).await?;
            element.click().await?;
            Ok(Some(()))
        };
        self.wait(&format!("a choice `{label}`"), choose).await
    }

    /// Types into what a selector finds.
    pub(crate) async fn write(&self, selector: &str, text: &str) -> Result<(), Problem> {
        let write = async || {
            let element = self.session.find(Locator::Css(selector)).await?;
            element.clear().await?;
            element.send_keys(text).await?;
            Ok(Some(()))
        };
        self.wait(&format!("`{selector}`, to write into it"), write).await
    }

    /// Waits until a dialog with this title is open.
    pub(crate) async fn dialog(&self, title: &str) -> Result<(), Problem> {
        self.until_text("dialog[open] h2", title).await
    }

    /// Answers the open dialog, and waits until it has closed and a note with this text was shown.
    pub(crate) async fn confirm(&self, note: &str) -> Result<(), Problem> {
        self.click("dialog[open] button[type=submit]").await?;
        self.until_gone("dialog[open]").await?;
        self.until_text(".toast", note).await
    }

    /// Presses keys, one after the other.
    pub(crate) async fn keys(&self, keys: &str) -> Result<(), Problem> {
        let mut actions = KeyActions::new("keyboard".to_owned());
        for value in keys.chars() {
            actions = actions.then(KeyAction::Down { value });
            actions = actions.then(KeyAction::Up { value });
        }
        Ok(self.session.perform_actions(actions).await?)
    }

    /// A command of the protocol of the developer tools.
    pub(crate) async fn devtools(&self, command: &str, params: Json) -> Result<Json, Problem> {
        let body = json!({"cmd": command, "params": params});
        let path = "goog/cdp/execute";
        Ok(self.session.issue_cmd(Extra { path, body }).await?)
    }

    /// Shows the page as it is for people who like it dark, or light.
    pub(crate) async fn theme(&self, theme: &str) -> Result<(), Problem> {
        let features = json!([
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features})).await?;
        Ok(())
    }

    /// The picture of what is to be seen, as a PNG.
    pub(crate) async fn picture(&self) -> Result<Vec<u8>, Problem> {
        Ok(self.session.screenshot().await?)
    }

    /// The warnings and errors that were written into the console since it was last asked.
    pub(crate) async fn console(&self) -> Result<Vec<String>, Problem> {
        let body = json!({"type": "browser"});
        let path = "se/log";
        let entries = self.session.issue_cmd(Extra { path, body }).await?;
        let entries = entries.as_array().cloned().unwrap_or_default();
        let bad = entries
            .iter()
            .filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        Ok(bad.map(|entry| words(&entry["message"])).collect())
    }

    /// Fails if the console has words that none of these is part of.
    pub(crate) async fn quiet_but_for(&self, expected: &[&str]) -> Result<(), Problem> {
        let bad: Vec<String> = self.console().await?;
        let is_expected = |line: &String| expected.iter().any(|words| line.contains(words));
        let bad: Vec<&String> = bad.iter().filter(|line| !is_expected(line)).collect();
        match bad.is_empty() {
            true => Ok(()),
            false => Err(format!("the console has {bad:#?}").into()),
        }
    }

    /// The same page, for another server.
    pub(crate) fn at(&self, base: &str) -> Page {
        Page::new(self.session.clone(), base)
    }

    /// Ends its browser.
    pub(crate) async fn close(self) {
        // It is ended with its driver in any case.
        let _ = self.session.close().await;
    }

    /// How many elements there are.
    pub(crate) async fn elements(&self) -> Result<u64, Problem> {
        let count = self.value("document.querySelectorAll('*').length").await?;
        count.as_u64().ok_or_else(|| "no number of elements".into())
    }
}

/// A text without its quotes.
pub(crate) fn words(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Asks the engine until it is as it should be.
pub(crate) async fn until<T, F>(
    what: &str,
    mut ask: impl FnMut() -> F,
    is_right: impl Fn(&T) -> bool,
) -> Result<T, Problem>
where
    T: std::fmt::Debug,
    F: Future<Output = Result<T, Problem>>,
{
    let mut waited = Duration::ZERO;
    loop {
        let began = Instant::now();
        let value = ask().await?;
        if is_right(&value) {
            return Ok(value);
        }
        waited += LOOK + began.elapsed().min(LOOK_MAX);
        if waited > LIMIT {
            return Err(format!("expected {what} within {LIMIT:?}; it is {value:?}").into());
        }
        tokio::time::sleep(LOOK).await;
    }
}
