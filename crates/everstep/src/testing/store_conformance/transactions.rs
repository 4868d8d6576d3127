//! Transactions of a workflow's own: a store runs them with their commit, or says that it cannot.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::{
    commit::{TransactionBody, TransactionLimits},
    error::{Error, FailureKind},
    history::{Entry, EntryKind, EntryStatus, EntryValue, decode_entry, encode_payload_prefix},
};

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_transaction_is_run_with_its_commit_or_refused,
    a_transaction_that_fails_leaves_its_commit,
    a_refused_commit_runs_no_transaction,
    a_commit_without_a_fence_that_holds_runs_no_transaction,
];

/// What a transaction gives, and how often it was run.
struct Pay {
    answer: fn() -> Result<Vec<u8>, Error>,
    calls: AtomicU32,
}

impl Pay {
    fn run(&self) -> Result<Vec<u8>, Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        (self.answer)()
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// A transaction at the key `pay` for every kind of store.
fn transactions(answer: fn() -> Result<Vec<u8>, Error>) -> Vec<(Transaction, Arc<Pay>)> {
    let pay = || {
        let calls = AtomicU32::new(0);
        Arc::new(Pay { answer, calls })
    };
    vec![
        #[cfg(feature = "sqlite")]
        {
            let pay = pay();
            let run = Arc::clone(&pay);
            let body = TransactionBody::Sqlite(Arc::new(move |_| run.run()));
            (transaction(body), pay)
        },
        #[cfg(feature = "postgres")]
        {
            let pay = pay();
            let run = Arc::clone(&pay);
            let body = TransactionBody::Postgres(Arc::new(move |_| {
                Box::pin(std::future::ready(run.run()))
            }));
            (transaction(body), pay)
        },
    ]
}

fn transaction(body: TransactionBody) -> Transaction {
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
    let limits = TransactionLimits {
        body: Duration::from_secs(60),
        batch: Duration::from_secs(60),
    };
    let (key, prefix) = (b"pay".to_vec(), encode_payload_prefix(&entry));
    Transaction::new(key, prefix, "pay".to_owned(), body, limits)
}

fn with(id: RunId, transaction: &Transaction) -> Commit {
    Commit {
        puts: vec![put("a", "1")],
        effects: vec![Effect::Transaction(transaction.clone())],
        ..commit(id)
    }
}

fn a_transaction_is_run_with_its_commit_or_refused(world: &World) {
    for (pay, body) in transactions(|| Ok(vec![0x18, 42])) {
        let id = world.running();
        assert!(world.accept(with(id, &pay)).is_empty(), "no receipt");
        match pay.take_answer() {
            Some(Ok(payload)) => {
                assert_eq!(body.calls(), 1);
                assert_eq!(world.keys(id), [b"a".to_vec(), b"pay".to_vec()]);
                let stored = world.store.history(id.no(), Some(b"a"), 1);
                let stored = decode_entry(&stored.expect("history")[0].value);
                let value = stored.expect("the stored entry").value;
                assert_eq!(value, EntryValue::Payload(payload));
            }
            Some(Err(error)) => {
                assert_eq!(error.kind(), FailureKind::Fatal, "to try again is no use");
                assert_eq!(body.calls(), 0);
                assert_eq!(world.keys(id), [b"a".to_vec()]);
            }
            None => panic!("a store that has time runs it, or says that it cannot"),
        }
    }
}

fn a_transaction_that_fails_leaves_its_commit(world: &World) {
    for (pay, _) in transactions(|| Err(Error::msg("no"))) {
        let id = world.running();
        world.accept(with(id, &pay));
        assert!(matches!(pay.take_answer(), Some(Err(_))));
        assert_eq!(world.keys(id), [b"a".to_vec()]);
    }
}

fn a_refused_commit_runs_no_transaction(world: &World) {
    for (pay, body) in transactions(|| Ok(vec![0xF6])) {
        let id = world.running();
        world.control(id, Control::Cancel { rollback: false });
        let refusal = world.refuse(with(id, &pay));
        assert_eq!(refusal, Refusal::CancelRequested { rollback: false });
        assert!(pay.take_answer().is_none());
        assert_eq!(body.calls(), 0);
        assert!(world.keys(id).is_empty());
    }
}

fn a_commit_without_a_fence_that_holds_runs_no_transaction(world: &World) {
    for (pay, body) in transactions(|| Ok(vec![0xF6])) {
        let id = world.running();
        let stale = Fence {
            epoch: world.fence.epoch + 1,
            ..world.fence
        };
        let batch = Batch {
            fence: Some(stale),
            now: START,
            writes: vec![Write::Commit(Box::new(with(id, &pay)))],
        };
        let applied = world.store.commit(&batch).expect("commit");
        assert_eq!(applied.outcomes, [Outcome::Refused(Refusal::Fenced)]);
        assert!(pay.take_answer().is_none());
        assert_eq!(body.calls(), 0);
        assert!(world.keys(id).is_empty());
    }
}
