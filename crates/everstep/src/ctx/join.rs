//! `ctx.join`: all branches, and all settle.

use std::{collections::BTreeMap, future::poll_fn, task::Poll};

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde::{Deserialize, Serialize};

use super::{
    Ctx,
    composite::{Arm, Composite, Place, StartedArm},
    step::LocalBox,
};
use crate::{
    error::{Error, Failure, FailureKind, Result},
    history::EntryKind,
};

impl Ctx {
    /// Runs all branches at the same time and waits until all of them have ended.
    ///
    /// Takes a tuple of up to eight branches or operations, a `Vec` of them, or a `BTreeMap` from
    /// names to them.
    ///
    /// # Errors
    ///
    /// If any branch fails, after all have ended: the failures are in a [`JoinError`], which
    /// `err.details::<JoinError>()` gives.
    pub fn join<'a, J: Join<'a> + 'a>(&self, name: &str, arms: J) -> Composite<'a, J::Output> {
        Composite::new(self, EntryKind::Join, name, move |place| arms.join(place))
    }
}

/// What can be joined.
pub trait Join<'a> {
    /// What the join gives.
    type Output: 'a;

    /// Runs the parts.
    #[doc(hidden)]
    fn join(self, place: Place) -> LocalBox<'a, Result<Self::Output>>;
}

/// The failures of the branches of a join, a map or a race.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JoinError {
    /// The branches that failed, in the order in which they were given.
    pub failures: Vec<BranchFailure>,
}

/// Why one branch failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BranchFailure {
    /// The branch.
    pub branch: String,
    /// Its message, with its causes.
    pub message: String,
}

/// One error for the failures of several branches.
pub(crate) fn collect_failures(kind: FailureKind, errors: Vec<(String, Error)>) -> Error {
    let rollback = errors.iter().any(|(_, error)| error.kind() == FailureKind::Rollback);
    let kind = if rollback { FailureKind::Rollback } else { kind };
    let failures = errors.iter().map(|(branch, error)| BranchFailure {
        branch: branch.clone(),
        message: error.failure().full(),
    });
    let details = JoinError { failures: failures.collect() };
    let names: Vec<_> = errors.iter().map(|(branch, _)| format!("`{branch}`")).collect();
    let message = match kind {
        FailureKind::Race => format!("all arms failed: {}", names.join(", ")),
        _ => format!("{} of its branches failed: {}", names.len(), names.join(", ")),
    };
    let mut failure = Failure::new(kind, message);
    let causes = details.failures.iter().map(|f| format!("`{}`: {}", f.branch, f.message));
    failure.causes = causes.collect();
    let origins = errors.iter().flat_map(|(_, error)| error.origins().iter().cloned());
    let origins = origins.collect();
    Error::recorded(failure, origins).with_details(&details)
}

macro_rules! join_tuples {
    ($(($($arm:ident $field:tt),+);)+) => {$(
        impl<'a, $($arm: Arm<'a>),+> Join<'a> for ($($arm,)+) {
            type Output = ($($arm::Output,)+);

            fn join(self, place: Place) -> LocalBox<'a, Result<Self::Output>> {
                let mut arms = ($(self.$field.start(&place),)+);
                let mut ended = ($(None::<Result<$arm::Output>>,)+);
                Box::pin(async move {
                    poll_fn(|cx| {
                        let mut all = true;
                        $(if ended.$field.is_none() {
                            match arms.$field.future.as_mut().poll(cx) {
                                Poll::Ready(result) => ended.$field = Some(result),
                                Poll::Pending => all = false,
                            }
                        })+
                        if all { Poll::Ready(()) } else { Poll::Pending }
                    })
                    .await;
                    let mut errors = Vec::new();
                    let values = ($(match ended.$field.take() {
                        Some(Ok(value)) => Some(value),
                        Some(Err(error)) => {
                            errors.push((arms.$field.name.clone(), error));
                            None
                        }
                        None => None,
                    },)+);
                    match values {
                        #[allow(non_snake_case)]
                        ($(Some($arm),)+) => Ok(($($arm,)+)),
                        _ => Err(collect_failures(FailureKind::Join, errors)),
                    }
                })
            }
        }
    )+};
}

join_tuples! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
}

impl<'a, A: Arm<'a> + 'a> Join<'a> for Vec<A> {
    type Output = Vec<A::Output>;

    fn join(self, place: Place) -> LocalBox<'a, Result<Self::Output>> {
        let arms: Vec<_> = self.into_iter().map(|arm| arm.start(&place)).collect();
        Box::pin(join_all(arms))
    }
}

impl<'a, A: Arm<'a> + 'a> Join<'a> for BTreeMap<String, A> {
    type Output = BTreeMap<String, A::Output>;

    fn join(self, place: Place) -> LocalBox<'a, Result<Self::Output>> {
        let (names, arms): (Vec<_>, Vec<_>) =
            self.into_iter().map(|(name, arm)| (name, arm.start(&place))).unzip();
        Box::pin(async move { Ok(names.into_iter().zip(join_all(arms).await?).collect()) })
    }
}

/// Waits for all, polling only those that were woken.
async fn join_all<T>(arms: Vec<StartedArm<'_, T>>) -> Result<Vec<T>> {
    let mut results: Vec<Option<Result<T>>> = Vec::new();
    results.resize_with(arms.len(), || None);
    let names: Vec<String> = arms.iter().map(|arm| arm.name.clone()).collect();
    let mut open: FuturesUnordered<_> = arms
        .into_iter()
        .enumerate()
        .map(|(place, arm)| async move { (place, arm.future.await) })
        .collect();
    while let Some((place, result)) = open.next().await {
        results[place] = Some(result);
    }
    gather(names, results)
}

/// All values, or one error for all failures.
pub(crate) fn gather<T>(names: Vec<String>, results: Vec<Option<Result<T>>>) -> Result<Vec<T>> {
    let (mut values, mut errors) = (Vec::with_capacity(results.len()), Vec::new());
    for (name, result) in names.into_iter().zip(results.into_iter().flatten()) {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.push((name, error)),
        }
    }
    if errors.is_empty() { Ok(values) } else { Err(collect_failures(FailureKind::Join, errors)) }
}
