//! `ctx.race`: the first success wins.
//!
//! Which arm wins follows from the order in which completions are taken, so it is the same on
//! every replay. The losers are dropped; what they had completed is compensated inside the race.
//! The effect of a loser's body that was in flight is not: nothing is known about it.

use std::{future::poll_fn, task::Poll};

use super::{
    Ctx,
    composite::{Arm, Composite, Place, StartedArm},
    join::collect_failures,
    rollback::compensate_below,
    step::LocalBox,
};
use crate::{
    error::{FailureKind, Result},
    history::{EntryKind, Key},
};

impl Ctx {
    /// Runs all arms at the same time and gives the value of the first that succeeds; the others
    /// are dropped, and what they had completed is rolled back.
    ///
    /// Arms may be branches or bare operations, so this also waits for any of several things. A
    /// tuple of different types gives an enum ([`First2`] to [`First8`]), an array or a `Vec` of
    /// one type gives a [`Won`].
    ///
    /// The effect of a body that was in flight in a losing arm is not compensated.
    ///
    /// # Errors
    ///
    /// If all arms fail: the failures are in a [`JoinError`](crate::JoinError), which
    /// `err.details::<JoinError>()` gives.
    pub fn race<'a, R: Race<'a> + 'a>(&self, name: &str, arms: R) -> Composite<'a, R::Output> {
        Composite::new(self, EntryKind::Race, name, move |place| arms.race(place))
    }
}

/// What can be raced.
pub trait Race<'a> {
    /// What the race gives.
    type Output: 'a;

    /// Runs the arms.
    #[doc(hidden)]
    fn race(self, place: Place) -> LocalBox<'a, Result<Self::Output>>;
}

/// The winner of a race of arms of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Won<T> {
    /// Its place among the arms, from 0.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// What it gave.
    pub value: T,
}

macro_rules! race_tuples {
    ($($first:ident, $words:literal: ($($arm:ident $field:tt),+);)+) => {$(
        #[doc = concat!("The winner of a race of ", $words, " arms.")]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $first<$($arm),+> {
            $(
                #[doc = concat!("Arm ", stringify!($field), " won, counted from 0.")]
                $arm($arm),
            )+
        }

        impl<'a, $($arm: Arm<'a>),+> Race<'a> for ($($arm,)+) {
            type Output = $first<$($arm::Output),+>;

            fn race(self, place: Place) -> LocalBox<'a, Result<Self::Output>> {
                let arms = vec![$({
                    let arm = self.$field.start(&place);
                    StartedArm {
                        name: arm.name,
                        key: arm.key,
                        future: Box::pin(async move { arm.future.await.map($first::$arm) }),
                    }
                }),+];
                Box::pin(async move { Ok(first_of(place, arms).await?.value) })
            }
        }
    )+};
}

race_tuples! {
    First2, "two": (A 0, B 1);
    First3, "three": (A 0, B 1, C 2);
    First4, "four": (A 0, B 1, C 2, D 3);
    First5, "five": (A 0, B 1, C 2, D 3, E 4);
    First6, "six": (A 0, B 1, C 2, D 3, E 4, F 5);
    First7, "seven": (A 0, B 1, C 2, D 3, E 4, F 5, G 6);
    First8, "eight": (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
}

impl<'a, A: Arm<'a> + 'a> Race<'a> for Vec<A> {
    type Output = Won<A::Output>;

    fn race(self, place: Place) -> LocalBox<'a, Result<Self::Output>> {
        let arms = self.into_iter().map(|arm| arm.start(&place)).collect();
        Box::pin(first_of(place, arms))
    }
}

impl<'a, A: Arm<'a> + 'a, const N: usize> Race<'a> for [A; N] {
    type Output = Won<A::Output>;

    fn race(self, place: Place) -> LocalBox<'a, Result<Self::Output>> {
        Vec::from(self).race(place)
    }
}

/// Polls the arms in order; the first that gives a value wins.
async fn first_of<T>(place: Place, arms: Vec<StartedArm<'_, T>>) -> Result<Won<T>> {
    let mut open: Vec<_> = arms.into_iter().map(Some).collect();
    let mut errors = Vec::new();
    let won = poll_fn(|cx| {
        for (index, slot) in open.iter_mut().enumerate() {
            let Some(arm) = slot else { continue };
            let Poll::Ready(result) = arm.future.as_mut().poll(cx) else {
                continue;
            };
            let name = std::mem::take(&mut arm.name);
            let key = arm.key.clone();
            *slot = None;
            match result {
                Ok(value) => return Poll::Ready(Some((Won { index, name, value }, key))),
                Err(error) => errors.push((index, name, error, key)),
            }
        }
        if open.iter().all(Option::is_none) { Poll::Ready(None) } else { Poll::Pending }
    })
    .await;
    let Some((won, winner)) = won else {
        errors.sort_by_key(|(index, ..)| *index);
        let errors = errors.into_iter().map(|(_, name, error, _)| (name, error)).collect();
        return Err(collect_failures(FailureKind::Race, errors));
    };
    let failed = errors.into_iter().map(|(.., key)| key);
    let losers: Vec<Key> = open.iter().flatten().map(|arm| arm.key.clone()).chain(failed).collect();
    // Losing ends an arm at once: nothing of it may complete while others are compensated.
    drop(open);
    compensate_below(&place.core, &losers, &winner).await?;
    Ok(won)
}
