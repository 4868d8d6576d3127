//! What is undone is undone once, in order, wherever the process dies.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use super::{
    hands,
    owner::{Gone, Owner, workflow, workflow_with},
};
use crate::{
    commit::RunStatus,
    ctx::{
        Ctx,
        composite::branch,
        step::{Step, StepCall},
    },
    error::Error,
    run::Definition,
    workflow::{OnFailure, WorkflowOptions},
};

fn work<'a>(ctx: &Ctx, name: &str) -> StepCall<'a, u64> {
    let seen = ctx.core().state.borrow().taken;
    let undone = name.to_owned();
    let step =
        ctx.step_with(name, async move |step: Step| Ok(hands::body(step.location(), seen).await));
    step.rollback(async move |_, _| {
        hands::note_undone(&undone, "");
        Ok(())
    })
}

/// What was undone, in order.
fn undone() -> Vec<String> {
    hands::undone().into_iter().map(|(name, _)| name).collect()
}

/// Lets these bodies end, crashes after each if `cold`, and lets the rest end by itself.
fn play(definition: &Arc<Definition>, order: &[&str], cold: bool) -> Owner {
    let mut owner = Owner::start(definition.clone());
    owner.settle();
    for place in order {
        owner.finish(place);
        if cold && owner.gone.is_none() {
            owner.reload();
            owner.settle();
        }
    }
    owner.finish_all();
    assert_eq!(hands::violation(), None);
    owner
}

#[test]
fn the_loser_of_a_race_is_not_compensated_again_when_the_run_rolls_back() {
    // The finished rollback of the loser was forgotten while the run stayed in memory, so it ran a
    // second time when the run was rolled back.
    let definition = workflow(|ctx: Ctx| async move {
        work(&ctx, "before").await?;
        let arms = vec![
            branch("x", async |ctx: Ctx| {
                work(&ctx, "loser").await?;
                std::future::pending::<()>().await;
                Ok(0)
            }),
            branch("y", async |ctx: Ctx| work(&ctx, "winner").await),
        ];
        ctx.race("race", arms).await?;
        work(&ctx, "after").await?;
        Err::<(), _>(Error::rollback("enough"))
    });
    for cold in [false, true] {
        let order = ["before", "race/x/loser", "race/y/winner", "after"];
        let owner = play(&definition, &order, cold);
        assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Failed)));
        assert_eq!(undone(), ["loser", "after", "winner", "before"], "cold: {cold}");
    }
}

#[test]
fn a_race_does_not_compensate_what_a_race_inside_of_it_has_compensated() {
    let definition = workflow(|ctx: Ctx| async move {
        let inner = async |ctx: Ctx| {
            let arms = vec![
                branch("x", async |ctx: Ctx| {
                    work(&ctx, "loser").await?;
                    work(&ctx, "never").await
                }),
                branch("y", async |ctx: Ctx| work(&ctx, "winner").await),
            ];
            ctx.race("inner", arms).await?;
            work(&ctx, "never").await
        };
        let arms = vec![branch("x", inner), branch("y", async |ctx: Ctx| work(&ctx, "fast").await)];
        Ok(ctx.race("outer", arms).await?.value)
    });
    for cold in [false, true] {
        let order = ["outer/x/inner/x/loser", "outer/x/inner/y/winner", "outer/y/fast"];
        play(&definition, &order, cold);
        assert_eq!(undone(), ["loser", "winner"], "cold: {cold}");
    }
}

#[test]
fn a_race_compensates_all_iterations_of_a_loop_that_lost_also_after_a_crash() {
    // A replay jumped to the last iteration and did not meet the rollbacks of those before: they
    // were never compensated, and the numbers of those that were made what came later diverge.
    let definition = workflow(|ctx: Ctx| async move {
        let code = async |ctx: Ctx, n: u32| {
            work(&ctx, &format!("book{n}")).await?;
            Ok(ControlFlow::<u64, u32>::Continue(n + 1))
        };
        let arms = vec![
            branch("x", async move |ctx: Ctx| {
                let repeat = ctx.repeat("loop", 0, code);
                repeat.history_every(1).history_keep(1).await
            }),
            branch("y", async |ctx: Ctx| work(&ctx, "fast").await),
        ];
        ctx.race("race", arms).await?;
        ctx.sleep("nap", Duration::from_secs(9)).await?;
        work(&ctx, "last").await
    });
    for cold in [false, true] {
        let order =
            ["race/x/loop/~0/book0", "race/x/loop/~1/book1", "race/x/loop/~2/book2", "race/y/fast"];
        let owner = play(&definition, &order, cold);
        assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
        assert_eq!(undone(), ["book2", "book1", "book0"], "cold: {cold}");
    }
}

/// The last that a run had taken before its own code failed was the rollback of a race's loser. A replay of
/// the ended run took that for one of those at the end, which the code has not seen, and stood in the race.
#[cfg(feature = "testing")]
#[test]
fn a_replay_of_a_failed_run_goes_past_the_rollbacks_of_its_races() {
    use crate::run::trial::{Verdict, try_run};
    let definition = workflow(|ctx: Ctx| async move {
        let arms = vec![
            branch("x", async |ctx: Ctx| {
                work(&ctx, "loser").await?;
                ctx.sleep("long", Duration::from_secs(86_400)).await.map(drop)
            }),
            branch("y", async |ctx: Ctx| {
                ctx.sleep("short", Duration::from_secs(1)).await.map(drop)
            }),
        ];
        ctx.race("race", arms).await?;
        Err::<(), _>(Error::fatal("by its own code"))
    });
    for cold in [false, true] {
        let owner = play(&definition, &["race/x/loser"], cold);
        assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Failed)));
        assert_eq!(undone(), ["loser"]);
        let verdict = try_run(owner.loaded(), definition.clone(), owner.env.clone());
        assert!(matches!(&verdict, Verdict::Fits(it) if it.ended), "{verdict:?}");
    }
}

/// A race whose loser is rolled back, a step behind it, then a wait.
fn races_then_waits(options: WorkflowOptions) -> Arc<Definition> {
    workflow_with(options, |ctx: Ctx| async move {
        let arms = vec![
            branch("x", async |ctx: Ctx| {
                work(&ctx, "loser").await?;
                ctx.sleep("long", Duration::from_secs(86_400)).await.map(drop)
            }),
            branch("y", async |ctx: Ctx| {
                ctx.sleep("short", Duration::from_secs(1)).await.map(drop)
            }),
        ];
        ctx.race("race", arms).await?;
        work(&ctx, "after").await?;
        ctx.listen::<u64>("end").await
    })
}

/// A run was cancelled while it was in nobody's memory, so the cancel came before its owner had replayed the
/// history, and 0 was recorded as the number of its end. A replay of the ended run then took the rollback of
/// the loser for one at the end, and the step behind the race for something that the code does not make.
#[cfg(feature = "testing")]
#[test]
fn a_run_that_is_cancelled_before_its_replay_records_the_number_of_its_end() {
    use crate::run::trial::{Verdict, try_run};
    let definition = races_then_waits(WorkflowOptions::new());
    for cold in [false, true] {
        let mut owner = play(&definition, &["race/x/loser"], false);
        if cold {
            owner.reload();
        }
        owner.run().request_cancel(true);
        owner.settle();
        assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Cancelled)));
        assert_eq!(undone(), ["loser", "after"]);
        let verdict = try_run(owner.loaded(), definition.clone(), owner.env.clone());
        assert!(matches!(&verdict, Verdict::Fits(it) if it.open == ["end"]), "{verdict:?}");
    }
}

/// The deadline of a run passed while it was in nobody's memory, and 0 was recorded as the number of its end.
/// Since the run pauses on failure, its next owner made the loser of the race fresh, and with it everything
/// behind: the step behind the race was forgotten, and a cancel did not roll it back.
#[test]
fn a_run_whose_deadline_passes_before_its_replay_forgets_no_step() {
    let definition = races_then_waits(WorkflowOptions::new().on_failure(OnFailure::Pause));
    let mut owner = play(&definition, &["race/x/loser"], false);
    owner.reload_past_deadline();
    owner.settle();
    assert!(owner.paused().contains("deadline"), "{}", owner.paused());
    owner.deploy(definition);
    owner.run().request_cancel(true);
    owner.settle();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Cancelled)));
    assert_eq!(undone(), ["loser", "after"]);
}
