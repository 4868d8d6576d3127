//! Transactions of a workflow's own: a store runs them with their commit, or says that it cannot.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::{
    codec,
    commit::{TransactionBody, TransactionLimits},
    error::{Error, FailureKind},
    history::{Entry, EntryKind, EntryStatus, EntryValue},
};

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_transaction_is_run_with_its_commit_or_refused,
    a_transaction_that_fails_leaves_its_commit,
    a_refused_commit_runs_no_transaction,
];

/// A transaction at the key `pay` that gives `answer`, and how often it was run.
fn transaction(answer: fn() -> Result<Vec<u8>, Error>) -> (Transaction, Arc<AtomicU32>) {
    let entry = Entry {
        kind: EntryKind::Transaction,
        status: EntryStatus::Completed,
        number: None,
        born: 0,
        compensable: false,
        attempts: 1,
        deaths: 0,
        created_at: START,
        started_at: None,
        completed_at: Some(START),
        wake_at: None,
        errors: Vec::new(),
        value: EntryValue::Payload(Vec::new()),
    };
    let (prefix, calls) = (codec::encode_payload_prefix(&entry), Arc::default());
    let counted: Arc<AtomicU32> = Arc::clone(&calls);
    let body = TransactionBody::Sqlite(Arc::new(move |_: &Tx<'_>| {
        counted.fetch_add(1, Ordering::SeqCst);
        answer()
    }));
    let limits = TransactionLimits {
        body: Duration::from_secs(60),
        batch: Duration::from_secs(60),
    };
    let key = b"pay".to_vec();
    let transaction = Transaction::new(key, prefix, "pay".to_owned(), body, limits);
    (transaction, calls)
}

fn with(id: RunId, transaction: &Transaction) -> Commit {
    Commit {
        puts: vec![put("a", "1")],
        effects: vec![Effect::Transaction(transaction.clone())],
        ..commit(id)
    }
}

fn a_transaction_is_run_with_its_commit_or_refused(world: &World) {
    let id = world.running();
    let (pay, calls) = transaction(|| Ok(vec![0x18, 42]));
    assert!(world.accept(with(id, &pay)).is_empty(), "no receipt");
    match pay.take_answer() {
        Some(Ok(payload)) => {
            assert_eq!(calls.load(Ordering::SeqCst), 1);
            assert_eq!(world.keys(id), [b"a".to_vec(), b"pay".to_vec()]);
            let stored = world.store.history(id.no(), Some(b"a"), 1);
            let stored = codec::decode_entry(&stored.expect("history")[0].value);
            let value = stored.expect("the stored entry").value;
            assert_eq!(value, EntryValue::Payload(payload));
        }
        Some(Err(error)) => {
            assert_eq!(error.kind(), FailureKind::Fatal, "to try again is no use");
            assert_eq!(calls.load(Ordering::SeqCst), 0);
            assert_eq!(world.keys(id), [b"a".to_vec()]);
        }
        None => panic!("a store that has time runs it, or says that it cannot"),
    }
}

fn a_transaction_that_fails_leaves_its_commit(world: &World) {
    let id = world.running();
    let (pay, _) = transaction(|| Err(Error::msg("no")));
    world.accept(with(id, &pay));
    assert!(matches!(pay.take_answer(), Some(Err(_))));
    assert_eq!(world.keys(id), [b"a".to_vec()]);
}

fn a_refused_commit_runs_no_transaction(world: &World) {
    let id = world.running();
    world.control(id, Control::Cancel { rollback: false });
    let (pay, calls) = transaction(|| Ok(vec![0xF6]));
    let refusal = world.refuse(with(id, &pay));
    assert_eq!(refusal, Refusal::CancelRequested { rollback: false });
    assert!(pay.take_answer().is_none());
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert!(world.keys(id).is_empty());
}
