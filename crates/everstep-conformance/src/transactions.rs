//! Transactions of a workflow's own: a store runs them with their commit, or says that it cannot.

use super::*;
use everstep::{Error, FailureKind, testing::internal::CountedTransaction};

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_transaction_is_run_with_its_commit_or_refused,
    a_transaction_that_fails_leaves_its_commit,
    a_refused_commit_runs_no_transaction,
    a_commit_without_a_fence_that_holds_runs_no_transaction,
];

fn transactions(answer: fn() -> Result<Vec<u8>, Error>) -> Vec<CountedTransaction> {
    CountedTransaction::for_each_store(answer)
}

fn with(id: RunId, pay: &CountedTransaction) -> Commit {
    Commit {
        puts: vec![put("a", "1")],
        effects: vec![Effect::Transaction(pay.transaction())],
        ..commit(id)
    }
}

fn a_transaction_is_run_with_its_commit_or_refused(world: &World) {
    for pay in transactions(|| Ok(vec![0x18, 42])) {
        let id = world.running();
        assert!(world.accept(with(id, &pay)).is_empty(), "no receipt");
        match pay.take_answer() {
            Some(Ok(payload)) => {
                assert_eq!(pay.calls(), 1);
                assert_eq!(world.keys(id), [b"a".to_vec(), b"pay".to_vec()]);
                let stored = world.store.history(id.no(), Some(b"a"), 1);
                let value = internal::payload_of_entry(&stored.expect("history")[0].value);
                assert_eq!(value, Some(payload));
            }
            Some(Err(error)) => {
                assert_eq!(error.kind(), FailureKind::Fatal, "to try again is no use");
                assert_eq!(pay.calls(), 0);
                assert_eq!(world.keys(id), [b"a".to_vec()]);
            }
            None => panic!("a store that has time runs it, or says that it cannot"),
        }
    }
}

fn a_transaction_that_fails_leaves_its_commit(world: &World) {
    for pay in transactions(|| Err(Error::msg("no"))) {
        let id = world.running();
        world.accept(with(id, &pay));
        assert!(matches!(pay.take_answer(), Some(Err(_))));
        assert_eq!(world.keys(id), [b"a".to_vec()]);
    }
}

fn a_refused_commit_runs_no_transaction(world: &World) {
    for pay in transactions(|| Ok(vec![0xF6])) {
        let id = world.running();
        world.control(id, Control::Cancel { rollback: false });
        let refusal = world.refuse(with(id, &pay));
        assert_eq!(refusal, Refusal::CancelRequested { rollback: false });
        assert!(pay.take_answer().is_none());
        assert_eq!(pay.calls(), 0);
        assert!(world.keys(id).is_empty());
    }
}

fn a_commit_without_a_fence_that_holds_runs_no_transaction(world: &World) {
    for pay in transactions(|| Ok(vec![0xF6])) {
        let id = world.running();
        let stale = Fence { epoch: world.fence.epoch + 1, ..world.fence };
        let batch = Batch {
            fence: Some(stale),
            now: START,
            writes: vec![Write::Commit(Box::new(with(id, &pay)))],
        };
        let applied = world.store.commit(&batch).expect("commit");
        assert_eq!(applied.outcomes, [Outcome::Refused(Refusal::Fenced)]);
        assert!(pay.take_answer().is_none());
        assert_eq!(pay.calls(), 0);
        assert!(world.keys(id).is_empty());
    }
}
