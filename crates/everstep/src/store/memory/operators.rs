//! The audit log and the tokens of the HTTP API.

use std::collections::BTreeMap;

use super::*;

#[derive(Clone, Default)]
pub(super) struct Operators {
    audit: BTreeMap<u64, AuditRow>,
    last_audit: u64,
    tokens: BTreeMap<String, ApiTokenRow>,
}

impl Operators {
    pub(super) fn begin_audit(&mut self, begun: &NewAudit) -> u64 {
        self.last_audit += 1;
        let row = AuditRow { no: self.last_audit, begun: begun.clone(), outcome: None };
        self.audit.insert(row.no, row);
        self.last_audit
    }

    pub(super) fn end_audit(&mut self, no: u64, outcome: &str) -> bool {
        match self.audit.get_mut(&no) {
            Some(row) if row.outcome.is_none() => {
                row.outcome = Some(outcome.to_owned());
                true
            }
            _ => false,
        }
    }

    pub(super) fn audits(&self, before: Option<u64>, limit: usize) -> Vec<AuditRow> {
        let rows = self.audit.range(..before.unwrap_or(u64::MAX)).rev();
        rows.take(limit).map(|(_, row)| row.clone()).collect()
    }

    pub(super) fn oldest_audit(&self) -> Option<Timestamp> {
        self.audit.values().map(|row| row.begun.at).min()
    }

    pub(super) fn delete_audits(&mut self, before: Timestamp, limit: usize) {
        let old = self.audit.values().filter(|row| row.begun.at < before);
        let mut old: Vec<(Timestamp, u64)> = old.map(|row| (row.begun.at, row.no)).collect();
        old.sort_unstable();
        for (_, no) in old.into_iter().take(limit) {
            self.audit.remove(&no);
        }
    }

    pub(super) fn add_token(&mut self, token: &ApiTokenRow) -> bool {
        let is_free = !self.tokens.contains_key(&token.name);
        if is_free {
            self.tokens.insert(token.name.clone(), token.clone());
        }
        is_free
    }

    pub(super) fn remove_token(&mut self, name: &str) -> bool {
        self.tokens.remove(name).is_some()
    }

    pub(super) fn note_token_used(&mut self, name: &str, at: Timestamp) {
        if let Some(token) = self.tokens.get_mut(name) {
            token.last_used_at = token.last_used_at.max(Some(at));
        }
    }

    pub(super) fn tokens(&self) -> Vec<ApiTokenRow> {
        self.tokens.values().cloned().collect()
    }
}
