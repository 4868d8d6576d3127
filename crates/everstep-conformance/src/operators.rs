//! What is kept for operators: the audit log and the tokens of the HTTP API.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    an_entry_of_the_audit_log_has_no_outcome_until_its_end_is_noted,
    the_first_outcome_of_an_entry_stays,
    the_audit_log_is_paged_newest_first,
    old_entries_of_the_audit_log_are_removed_oldest_first,
    numbers_of_removed_entries_are_not_used_again,
    a_token_is_kept_as_it_was_added,
    the_name_of_a_token_is_its_own,
    the_last_use_of_a_token_never_goes_back,
];

fn begun(ms: i64, who: &str) -> NewAudit {
    NewAudit {
        at: at(ms),
        who: who.to_owned(),
        action: "cancel".to_owned(),
        // Texts of all kinds come from outside.
        target: "a \0 \u{1} ä".to_owned(),
        detail: String::new(),
    }
}

fn begin(world: &World, ms: i64) -> u64 {
    let entry = begun(ms, "ada");
    world.store.begin_audit(&entry).expect("begin_audit")
}

fn numbers(world: &World, before: Option<u64>, limit: usize) -> Vec<u64> {
    let rows = world.store.audits(before, limit).expect("audits");
    rows.iter().map(|row| row.no).collect()
}

fn an_entry_of_the_audit_log_has_no_outcome_until_its_end_is_noted(world: &World) {
    let no = world.store.begin_audit(&begun(1, "ada")).expect("begin");
    let row = |outcome: Option<&str>| AuditRow {
        no,
        begun: begun(1, "ada"),
        outcome: outcome.map(str::to_owned),
    };
    assert_eq!(world.store.audits(None, 9).expect("audits"), [row(None)]);
    assert!(world.store.end_audit(no, "done").expect("end"));
    let ended = world.store.audits(None, 9).expect("audits");
    assert_eq!(ended, [row(Some("done"))]);
}

fn the_first_outcome_of_an_entry_stays(world: &World) {
    let no = begin(world, 1);
    assert!(world.store.end_audit(no, "done").expect("end"));
    assert!(!world.store.end_audit(no, "failed").expect("end"));
    assert!(!world.store.end_audit(no + 1, "done").expect("no such"));
    let rows = world.store.audits(None, 9).expect("audits");
    assert_eq!(rows[0].outcome.as_deref(), Some("done"));
}

fn the_audit_log_is_paged_newest_first(world: &World) {
    let nos: Vec<u64> = (0..5).map(|ms| begin(world, 5 - ms)).collect();
    assert!(nos.is_sorted(), "numbers rise: {nos:?}");
    assert_eq!(numbers(world, None, 2), [nos[4], nos[3]]);
    assert_eq!(numbers(world, Some(nos[3]), 2), [nos[2], nos[1]]);
    assert_eq!(numbers(world, Some(nos[1]), 2), [nos[0]]);
    assert_eq!(numbers(world, Some(nos[0]), 2), [] as [u64; 0]);
}

fn old_entries_of_the_audit_log_are_removed_oldest_first(world: &World) {
    let nos: Vec<u64> = [3, 1, 2, 4].map(|ms| begin(world, ms)).to_vec();
    let delete = |before, limit| world.store.delete_audits(at(before), limit);
    assert_eq!(delete(1, 9).expect("delete"), Some(at(1)));
    assert_eq!(numbers(world, None, 9).len(), 4);
    assert_eq!(delete(4, 2).expect("delete"), Some(at(3)));
    assert_eq!(numbers(world, None, 9), [nos[3], nos[0]]);
    assert_eq!(delete(9, 9).expect("delete"), None);
    assert_eq!(delete(9, 9).expect("nothing"), None);
    assert_eq!(numbers(world, None, 9), [] as [u64; 0]);
}

fn numbers_of_removed_entries_are_not_used_again(world: &World) {
    let first = begin(world, 1);
    world.store.delete_audits(at(2), 9).expect("delete");
    assert!(begin(world, 3) > first);
}

fn token(name: &str, byte: u8) -> ApiTokenRow {
    ApiTokenRow {
        name: name.to_owned(),
        role: Role::Operate,
        hash: [byte; 32],
        created_at: at(1),
        last_used_at: None,
    }
}

fn a_token_is_kept_as_it_was_added(world: &World) {
    let tokens = [Role::Admin, Role::Operate, Role::Read]
        .map(|role| ApiTokenRow { role, ..token(role.as_str(), role.as_str().len() as u8) });
    for token in tokens.iter().rev() {
        assert!(world.store.add_api_token(token).expect("add"));
    }
    assert_eq!(world.store.api_tokens().expect("api_tokens"), tokens);
    assert!(world.store.remove_api_token("operate").expect("remove"));
    assert!(!world.store.remove_api_token("operate").expect("gone"));
    let left = world.store.api_tokens().expect("api_tokens");
    assert_eq!(left, [tokens[0].clone(), tokens[2].clone()]);
}

fn the_name_of_a_token_is_its_own(world: &World) {
    let first = token("ci", 1);
    assert!(world.store.add_api_token(&first).expect("add"));
    assert!(!world.store.add_api_token(&token("ci", 2)).expect("taken"));
    assert_eq!(world.store.api_tokens().expect("api_tokens"), [first]);
}

fn the_last_use_of_a_token_never_goes_back(world: &World) {
    world.store.add_api_token(&token("ci", 1)).expect("add");
    for (ms, expected) in [(5, 5), (3, 5), (7, 7)] {
        let noted = world.store.note_api_token_used("ci", at(ms));
        noted.expect("note_api_token_used");
        let tokens = world.store.api_tokens().expect("api_tokens");
        assert_eq!(tokens[0].last_used_at, Some(at(expected)));
    }
    let unknown = world.store.note_api_token_used("other", at(1));
    unknown.expect("that there is none is no error");
}
