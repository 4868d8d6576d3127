//! The URL of a database: what PostgreSQL's own tools take, and a little more.

use std::str::FromStr;

use tokio_postgres::{Config, config::Host};

use super::PostgresOptions;
use crate::store::StoreError;

/// Takes what is ours out of the query part, and gives the rest to the driver.
pub(super) fn parse(
    url: &str,
    mut options: PostgresOptions,
) -> Result<(Config, PostgresOptions), StoreError> {
    let wrong = |what: String| StoreError::CannotOpen {
        // Not the URL itself: it may hold a password.
        store: "the PostgreSQL database of the URL".to_owned(),
        source: what.into(),
    };
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut rest = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("schema", "")) => return Err(wrong("`schema` is empty".to_owned())),
            Some(("schema", schema)) => options.schema = schema.to_owned(),
            Some(("pooled", "true")) => options.pooled = true,
            Some(("pooled", "false")) => options.pooled = false,
            Some(("pooled", other)) => {
                let what = format!("`pooled` is `{other}`, and must be `true` or `false`");
                return Err(wrong(what));
            }
            _ => rest.push(pair),
        }
    }
    let url = if rest.is_empty() {
        base.to_owned()
    } else {
        format!("{base}?{}", rest.join("&"))
    };
    let mut config = Config::from_str(&url).map_err(|error| wrong(error.to_string()))?;
    if config.get_application_name().is_none() {
        config.application_name("everstep");
    }
    if config.get_dbname().is_none() {
        return Err(wrong("it names no database".to_owned()));
    }
    Ok((config, options))
}

/// For messages: no password.
pub(super) fn describe(config: &Config, schema: &str) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let database = config.get_dbname().unwrap_or_default();
    format!("PostgreSQL database `{database}` on {hosts} (schema `{schema}`)")
}
