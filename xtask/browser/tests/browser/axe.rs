//! axe-core: what people who do not see, hear or point as others do would stumble over.

use serde_json::{Value as Json, json};

use crate::{
    Problem,
    page::{Page, words},
};

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Everything,
    /// Only what another theme can change.
    Contrast,
}

/// What it finds on the page as it is.
pub(crate) async fn findings(page: &Page, axe: &str, asked: Asked) -> Result<Vec<String>, Problem> {
    if page.value("typeof window.axe").await? == json!("undefined") {
        page.run(&format!("{axe}; window.axe = axe;"), vec![]).await?;
    }
    let mut options = json!({"resultTypes": ["violations"]});
    if asked == Asked::Contrast {
        options["runOnly"] = json!(["color-contrast"]);
    }
    let script = "const [options, done] = arguments; axe.run(document, options).then( \
         ({ violations }) => done(violations.flatMap((one) => one.nodes.map((node) => \
             `${one.id}: ${one.help}: ${node.target.join(' ')}: ${node.html.slice(0, 200)} ${node.failureSummary}`))), \
         (error) => done([String(error)]))";
    let found = page.run_async(script, vec![options]).await?;
    let found = found.as_array().cloned().ok_or("axe-core has said nothing")?;
    Ok(found.iter().map(|one: &Json| words(one)).collect())
}
