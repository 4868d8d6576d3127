//! A run that is tried again as a whole: what failed is made fresh, what was done before stands.

use std::{sync::Arc, time::Duration};

use super::{
    hands,
    owner::{Gone, Owner, workflow_with},
};
use crate::{
    commit::{Outcome, Reopen, RunStatus, Write},
    ctx::{
        Ctx,
        composite::branch,
        step::{Step, StepCall},
    },
    error::{Error, Result},
    retry::Retry,
    run::Definition,
    workflow::WorkflowOptions,
};

fn work<'a>(ctx: &Ctx, name: &str) -> StepCall<'a, u64> {
    let seen = ctx.core().state.borrow().taken;
    ctx.step_with(name, async move |step: Step| Ok(hands::body(step.location(), seen).await))
}

/// Fails while the run is tried for the first time.
fn flaky<'a>(ctx: &Ctx, name: &str) -> StepCall<'a, u64> {
    let (seen, first) = (ctx.core().state.borrow().taken, ctx.run_attempt() == 1);
    let step = ctx.step_with(name, async move |step: Step| {
        let value = hands::body(step.location(), seen).await;
        match first {
            true => Err(Error::msg("not yet")),
            false => Ok(value),
        }
    });
    step.retry(Retry::never())
}

fn undone<'a>(step: StepCall<'a, u64>, name: &'static str) -> StepCall<'a, u64> {
    step.rollback(async move |_, value| {
        hands::note_undone(name, &format!("{value}"));
        Ok(())
    })
}

fn twice<O, F, R>(function: F) -> Arc<Definition>
where
    O: crate::codec::Value,
    F: Fn(Ctx) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O>> + 'static,
{
    let retry = Retry::fixed(2, Duration::from_secs(1));
    workflow_with(WorkflowOptions::new().retry(retry), function)
}

#[test]
fn only_the_failed_step_is_made_fresh() {
    let mut owner = Owner::start(twice(|ctx: Ctx| async move {
        let a = work(&ctx, "a").await?;
        let f = flaky(&ctx, "f").await?;
        Ok((a, f, work(&ctx, "b").await?))
    }));
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
    assert_eq!(hands::starts(), ["a", "f", "f", "b"]);
    assert_eq!(owner.row().attempts, 2);
    let aside = owner.entry("f (set aside by attempt 2)").expect("kept for people");
    assert_eq!(aside.number, Some(2));
}

#[test]
fn what_was_born_before_the_failure_keeps_its_result_and_what_came_later_is_set_aside() {
    let definition = twice(|ctx: Ctx| async move {
        let arms = vec![
            branch("f", async |ctx: Ctx| flaky(&ctx, "f").await),
            branch("x", async |ctx: Ctx| {
                let first = work(&ctx, "first").await?;
                Ok(first + work(&ctx, "second").await?)
            }),
        ];
        ctx.join("both", arms).await
    });
    let mut owner = Owner::start(definition.clone());
    owner.record();
    owner.settle();
    owner.finish("both/f/f");
    owner.finish("both/x/first");
    owner.finish("both/x/second");
    assert_eq!(owner.row().attempts, 2);
    owner.finish_all();
    let starts = hands::starts();
    // `first` was made before f failed (k = 1), `second` after it.
    assert_eq!(starts, ["both/f/f", "both/x/first", "both/x/second", "both/f/f", "both/x/second"]);
    let aside = |place: &str| owner.entry(&format!("{place} (set aside by attempt 2)")).is_some();
    assert!(aside("both/f/f") && aside("both/x/second") && !aside("both/x/first"));
    for point in owner.take_points() {
        let mut again = Owner::after(&point, definition.clone(), &owner);
        if again.row().status.is_terminal() {
            continue;
        }
        again.finish_all();
        assert_eq!(again.gone, Some(Gone::Finished(RunStatus::Completed)));
        assert_eq!(hands::violation(), None);
    }
}

#[test]
fn a_caught_failure_stays_as_it_was() {
    let mut owner = Owner::start(twice(|ctx: Ctx| async move {
        let caught = flaky(&ctx, "caught").await.is_err();
        flaky(&ctx, "f").await?;
        Ok(caught)
    }));
    owner.finish_all();
    assert!(owner.output::<bool>());
    assert_eq!(hands::starts(), ["caught", "f", "f"]);
}

#[test]
fn an_error_of_the_workflow_itself_is_not_tried_again() {
    let mut owner = Owner::start(twice(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        Err::<(), _>(Error::msg("made by the code"))
    }));
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Failed)));
    assert_eq!(owner.row().attempts, 1);
}

/// Makes a finished run live again by hand, as `retry` does.
fn reopen(owner: &mut Owner) {
    let row = owner.row();
    let reopen = Reopen {
        run: owner.id.no(),
        status: row.status,
        attempts: row.attempts,
        puts: Vec::new(),
        deletes: Vec::new(),
    };
    let outcome = owner.write(Write::Reopen(Box::new(reopen)));
    assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
    owner.gone = None;
    owner.reload();
}

#[test]
fn compensated_steps_are_made_fresh() {
    let once = workflow_with(WorkflowOptions::new(), |ctx: Ctx| async move {
        let a = work(&ctx, "a").await?;
        let b = undone(work(&ctx, "b"), "b").await?;
        let c = work(&ctx, "c").await?;
        Ok((a, b, c, flaky(&ctx, "f").await?))
    });
    let mut owner = Owner::start(once);
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Failed)));
    assert_eq!(hands::undone().len(), 1);
    reopen(&mut owner);
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
    // `a` stands; `b` was undone, so it and what was made after it are done again.
    assert_eq!(hands::starts(), ["a", "b", "c", "f", "b", "c", "f"]);
    assert_eq!(hands::undone().len(), 1);
}

#[test]
fn the_compensated_loser_of_a_race_stays_lost() {
    // The rollback of a race's loser is a rollback like any other, but the race is over: only
    // rollbacks from the failure on make their steps fresh.
    let definition = twice(|ctx: Ctx| async move {
        let arms = vec![
            branch("x", async |ctx: Ctx| {
                undone(work(&ctx, "loser"), "loser").await?;
                work(&ctx, "never").await
            }),
            branch("y", async |ctx: Ctx| {
                work(&ctx, "slow").await?;
                work(&ctx, "winner").await
            }),
        ];
        let won = ctx.race("race", arms).await?;
        flaky(&ctx, "f").await?;
        Ok(won.name)
    });
    let mut owner = Owner::start(definition);
    owner.settle();
    owner.finish("race/x/loser");
    owner.finish("race/y/slow");
    owner.finish("race/y/winner");
    owner.finish_all();
    assert_eq!(owner.output::<String>(), "y");
    let starts = ["race/x/loser", "race/y/slow", "race/x/never", "race/y/winner", "f", "f"];
    assert_eq!(hands::starts(), starts);
    assert_eq!(hands::undone().len(), 1);
}
