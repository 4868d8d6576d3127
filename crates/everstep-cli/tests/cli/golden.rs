//! Every command on both stores, against files of what it says.

use crate::stage;

use stage::script::plays;

#[test]
fn errors_say_what_happened_and_what_to_do() {
    plays("errors.txt");
}

#[test]
fn runs_are_listed_and_shown() {
    plays("runs.txt");
}

#[test]
fn runs_are_shown_as_json() {
    plays("runs-json.txt");
}

#[test]
fn runs_are_changed_by_name() {
    plays("change.txt");
}

#[test]
fn runs_are_changed_by_what_they_have_in_common() {
    plays("bulk.txt");
}

#[test]
fn runs_are_told_things_and_followed() {
    plays("messages.txt");
}

#[test]
fn schedules_are_made_and_changed() {
    plays("schedules.txt");
}

#[test]
fn queues_limits_and_the_cluster_are_shown() {
    plays("around.txt");
}

#[test]
fn runs_go_into_files_and_come_back() {
    plays("transfer.txt");
}

#[test]
fn a_file_is_backed_up_and_restored() {
    plays("backup.txt");
}

#[test]
fn everything_moves_to_postgres() {
    plays("migrate.txt");
}

#[test]
fn changes_are_in_the_audit_log() {
    plays("audit.txt");
}

#[test]
fn completions_are_made_for_each_shell() {
    plays("completions.txt");
}

#[test]
fn operators_have_what_they_need() {
    plays("operators.txt");
}

#[test]
fn doctor_finds_and_mends() {
    plays("doctor.txt");
}

#[test]
fn tokens_are_made_and_taken_back() {
    plays("tokens.txt");
}

#[test]
fn every_command_explains_itself() {
    plays("help.txt");
}
