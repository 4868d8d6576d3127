//! A filter of runs as conditions. Everything that a user has written is a parameter.

use super::{
    Sql, overview,
    value::{AsParam, Value},
};
use crate::store::{Filter, rules};

/// Conditions and their parameters.
#[derive(Default)]
pub(crate) struct Condition {
    pub(crate) terms: Vec<String>,
    pub(crate) params: Vec<Value>,
}

impl Condition {
    /// Conditions about the row of a run.
    pub(crate) fn of<S: Sql>(filter: &Filter) -> Condition {
        let mut condition = Condition::default();
        condition.restrict::<S>(filter);
        condition
    }

    /// Conditions for all runs that match: tables that lead to them come first.
    pub(crate) fn narrowed<S: Sql>(sql: &S, filter: &Filter) -> Result<Condition, S::Error> {
        let mut rest = filter.clone();
        let mut condition = Condition::default();
        if rest.key_prefix.take().is_some() {
            let found = condition.by_key(sql, filter)?;
            condition.terms.push(format!("no {}", S::is_in(&found)));
        }
        for (name, value) in rest.tags.drain(..) {
            let (name, value) = (condition.param(name), condition.param(value));
            let found =
                format!("SELECT run FROM everstep_tags WHERE name = {name} AND value = {value}");
            condition.terms.push(format!("no {}", S::is_in(&found)));
        }
        condition.restrict::<S>(&rest);
        Ok(condition)
    }

    /// Adds a parameter; how it is called.
    pub(crate) fn param(&mut self, value: impl AsParam) -> String {
        self.params.push(value.param().into());
        format!("?{}", self.params.len())
    }

    /// Adds a condition, unless there is nothing to compare with.
    pub(crate) fn require(&mut self, term: &str, value: Option<impl AsParam>) {
        if let Some(value) = value {
            let value = self.param(value);
            self.terms.push(format!("{term} {value}"));
        }
    }

    /// All conditions.
    pub(crate) fn text(&self) -> String {
        self.terms.join(" AND ")
    }

    fn restrict<S: Sql>(&mut self, filter: &Filter) {
        self.terms.push("TRUE".to_owned());
        if !filter.ids.is_empty() {
            let numbers = Value::ints(filter.ids.iter().map(|id| id.no().0));
            let numbers = self.param(numbers);
            let ids = self.param(Value::uuids(filter.ids.iter().map(|id| id.as_uuid())));
            self.terms.push(format!("no {}", S::is_any(&numbers)));
            self.terms.push(format!("id {}", S::is_any_bytes(&ids)));
        }
        if !filter.statuses.is_empty() {
            let codes = filter.statuses.iter().map(|status| status.code().to_string());
            let codes = codes.collect::<Vec<_>>().join(", ");
            self.terms.push(format!("status IN ({codes})"));
        }
        self.require("workflow =", filter.workflow.as_ref());
        for (name, value) in &filter.tags {
            let (name, value) = (self.param(name), self.param(value));
            self.terms.push(format!(
                "EXISTS (SELECT 1 FROM everstep_tags WHERE name = {name} AND value = {value} \
                 AND run = everstep_runs.no{})",
                S::apart()
            ));
        }
        self.require("created_at >=", filter.created_from);
        self.require("created_at <", filter.created_before);
        self.require("version =", filter.version);
        if let Some(prefix) = &filter.key_prefix {
            self.require("key >=", Some(prefix));
            self.require("key <", rules::prefix_end(prefix));
        }
        self.require("finished_at >=", filter.finished_from);
        self.require("finished_at <", filter.finished_before);
    }

    /// A query for the runs whose keys begin so. There are keys of one workflow after those of another.
    pub(crate) fn by_key<S: Sql>(&mut self, sql: &S, filter: &Filter) -> Result<String, S::Error> {
        let workflows = match &filter.workflow {
            Some(workflow) => vec![workflow.clone()],
            None => overview::names(sql, "everstep_keys", "TRUE")?,
        };
        let workflows = self.param(Value::texts(workflows));
        let prefix = filter.key_prefix.as_deref().unwrap_or_default();
        let mut range = format!("everstep_keys.key >= {}", self.param(prefix));
        if let Some(end) = rules::prefix_end(prefix) {
            range = format!("{range} AND everstep_keys.key < {}", self.param(end));
        }
        Ok(overview::of_workflows::<S>(&workflows, "run AS no", "everstep_keys", "", &range))
    }
}
