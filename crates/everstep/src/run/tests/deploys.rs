//! Code that was changed while runs were under way, by `ctx.removed` and by version gates: whatever the
//! run had come to, it goes on, does the rest once, and replays exactly from then on.
//!
//! Each test lives a run of the old code by hand and deploys the new code at every crash point of that
//! life. The process dies again at every crash point of what follows.

use std::{sync::Arc, time::Duration};

use super::{
    hands,
    owner::{Gone, Owner, workflow},
};
use crate::{
    codec::payload,
    commit::RunStatus,
    ctx::{
        Ctx,
        composite::branch,
        step::{Step, StepCall},
    },
    error::Result,
    history::EntryKind,
    run::Definition,
    store::Store,
};

fn work<'a>(ctx: &Ctx, name: &str) -> StepCall<'a, u64> {
    let seen = ctx.core().state.borrow().taken;
    ctx.step_with(name, async move |step: Step| Ok(hands::body(step.location(), seen).await))
}

async fn nap(ctx: &Ctx, name: &str) -> Result<()> {
    ctx.sleep(name, Duration::from_secs(86_400)).await.map(drop)
}

/// Gives out everything that code can: each time it is given out it is another line of the stream.
fn tell(ctx: &Ctx, what: &str) -> Result<()> {
    ctx.emit("told", what)?;
    ctx.set_state(what, &true)?;
    ctx.set_tag(what, "told")
}

/// What clients can read of it at the end.
fn told(owner: &Owner) -> Vec<String> {
    let page = owner.store.stream(owner.id.no(), "told", 0, usize::MAX).unwrap();
    let items = page.map(|page| page.items).unwrap_or_default();
    let mut items: Vec<String> =
        items.iter().map(|item| payload::from_slice(&item.body).unwrap()).collect();
    items.sort();
    let mut tags: Vec<String> = owner.row().tags.into_iter().map(|(name, _)| name).collect();
    tags.sort();
    let mut states: Vec<String> =
        owner.store.state(owner.id.no()).unwrap().into_iter().map(|(key, _)| key).collect();
    states.sort();
    assert_eq!((&tags, &states), (&items, &items), "all was given out at the same places");
    items
}

/// A step that the code makes until it is changed.
async fn gone(ctx: &Ctx, name: &str, is_changed: bool) -> Result<()> {
    match is_changed {
        true => ctx.removed(name, EntryKind::Step).await,
        false => work(ctx, name).await.map(drop),
    }
}

/// Lives `code(false)` and deploys `code(true)` everywhere; `check` is asked about each run at its end.
fn deploy_everywhere(
    code: impl Fn(bool) -> Arc<Definition>,
    life: impl Fn(&mut Owner),
    check: impl Fn(&Owner),
) {
    let mut old = Owner::start(code(false));
    old.record();
    life(&mut old);
    old.finish_all();
    assert_eq!(old.gone, Some(Gone::Finished(RunStatus::Completed)));
    for point in old.take_points() {
        let mut new = Owner::after(&point, code(true), &old);
        new.record();
        end(&mut new);
        check(&new);
        for point in new.take_points() {
            let mut again = Owner::after(&point, code(true), &new);
            end(&mut again);
            check(&again);
        }
    }
}

fn end(owner: &mut Owner) {
    if !owner.row().status.is_terminal() {
        owner.finish_all();
        assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)), "{:?}", owner.entries());
    }
    assert_eq!(hands::violation(), None);
}

/// Code went past a removed step as soon as it came there, and said what it had to say with the number
/// of the completion before: the mark of an item said that a later one was in its stream already, and the
/// item was lost.
#[test]
fn what_is_given_out_behind_removed_steps_is_given_out_once() {
    let code = |is_changed: bool| {
        workflow(move |ctx: Ctx| async move {
            gone(&ctx, "one", is_changed).await?;
            tell(&ctx, "first")?;
            gone(&ctx, "two", is_changed).await?;
            tell(&ctx, "second")?;
            tell(&ctx, "third")?;
            work(&ctx, "last").await
        })
    };
    deploy_everywhere(code, Owner::settle, |owner| {
        assert_eq!(told(owner), ["first", "second", "third"]);
    });
}

/// A branch of a race that ends with a removed step had won as soon as it came there, before the results
/// that the other branches had taken. What came after the race was made too early, and the run was paused.
#[test]
fn a_removed_step_does_not_win_a_race_before_its_time() {
    let code = |is_changed: bool| {
        workflow(move |ctx: Ctx| async move {
            let one = async |ctx: Ctx| {
                work(&ctx, "a").await?;
                work(&ctx, "b").await?;
                tell(&ctx, "one")?;
                nap(&ctx, "nap").await
            };
            let two = async |ctx: Ctx| {
                gone(&ctx, "gone", is_changed).await?;
                tell(&ctx, "two")
            };
            ctx.race("race", (branch("one", one), branch("two", two))).await?;
            tell(&ctx, "won")?;
            work(&ctx, "last").await
        })
    };
    let life = |order: &'static [&'static str]| {
        move |owner: &mut Owner| {
            owner.settle();
            order.iter().for_each(|place| owner.finish(place));
        }
    };
    let check = |owner: &Owner| {
        let told = told(owner);
        assert!(told.starts_with(&["one".to_owned()]) || told.len() == 2, "{told:?}");
        assert!(told.contains(&"won".to_owned()), "{told:?}");
    };
    deploy_everywhere(code, life(&["race/one/a", "race/one/b", "race/two/gone"]), check);
    deploy_everywhere(code, life(&["race/one/a", "race/two/gone"]), check);
    deploy_everywhere(code, life(&["race/two/gone"]), check);
    deploy_everywhere(code, life(&["race/one/a", "race/one/b"]), check);
}

#[test]
fn a_removed_step_of_a_branch_is_passed_over_beside_any_results_of_another() {
    let code = |is_changed: bool| {
        workflow(move |ctx: Ctx| async move {
            let one = async |ctx: Ctx| {
                gone(&ctx, "gone", is_changed).await?;
                tell(&ctx, "one")?;
                work(&ctx, "b").await?;
                tell(&ctx, "both")
            };
            let two = async |ctx: Ctx| {
                work(&ctx, "c").await?;
                tell(&ctx, "two")?;
                nap(&ctx, "nap").await
            };
            ctx.join("join", (branch("one", one), branch("two", two))).await?;
            tell(&ctx, "zero")?;
            work(&ctx, "last").await
        })
    };
    let check = |owner: &Owner| assert_eq!(told(owner), ["both", "one", "two", "zero"]);
    deploy_everywhere(code, Owner::settle, check);
    let life = |owner: &mut Owner| {
        owner.settle();
        owner.finish("join/two/c");
        owner.finish("join/one/gone");
    };
    deploy_everywhere(code, life, check);
}

/// The completions of a composite are those below it, and those of the rollbacks of its losers: the latter
/// were not passed over.
#[test]
fn a_removed_composite_is_passed_over_with_its_losers() {
    let code = |is_changed: bool| {
        workflow(move |ctx: Ctx| async move {
            let one = async |ctx: Ctx| {
                if is_changed {
                    ctx.removed("race", EntryKind::Race).await?;
                } else {
                    let slow = async |ctx: Ctx| {
                        let held = work(&ctx, "held").rollback(async |_, _| Ok(()));
                        held.await?;
                        nap(&ctx, "nap").await
                    };
                    let fast = async |ctx: Ctx| work(&ctx, "fast").await.map(drop);
                    ctx.race("race", (branch("slow", slow), branch("fast", fast))).await?;
                }
                tell(&ctx, "one")?;
                work(&ctx, "b").await?;
                Ok(())
            };
            let two = async |ctx: Ctx| {
                work(&ctx, "c").await?;
                tell(&ctx, "two")?;
                work(&ctx, "d").await.map(drop)
            };
            ctx.join("join", (branch("one", one), branch("two", two))).await?;
            tell(&ctx, "zero")?;
            work(&ctx, "last").await
        })
    };
    let check = |owner: &Owner| assert_eq!(told(owner), ["one", "two", "zero"]);
    let life = |owner: &mut Owner| {
        owner.settle();
        owner.finish("join/one/race/slow/held");
        owner.finish("join/two/c");
        owner.finish("join/one/race/fast/fast");
        owner.finish("join/two/d");
    };
    deploy_everywhere(code, life, check);
}

/// What a removed operation had registered stayed, and what came for it stayed in the inbox of the run.
#[test]
fn a_removed_wait_is_given_up() {
    let code = |is_changed: bool| {
        workflow(move |ctx: Ctx| async move {
            work(&ctx, "a").await?;
            match is_changed {
                true => ctx.removed("wait", EntryKind::Event).await?,
                false => drop(ctx.event(crate::Event::<u64>::new("wait")).await?),
            }
            work(&ctx, "b").await
        })
    };
    let mut owner = Owner::start(code(false));
    owner.settle();
    owner.finish("a");
    owner.deploy(code(true));
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
    let gives_up =
        |effect: &crate::commit::Effect| matches!(effect, crate::commit::Effect::Abandon { .. });
    let effects = owner.commits.iter().flat_map(|commit| &commit.effects);
    assert_eq!(effects.filter(|effect| gives_up(effect)).count(), 1);
}

/// A run that was past a gate is past it whatever it has recorded since. What a gate found after it was
/// taken for the only sign of that; in a branch of a `select!` or at the end of a join there is none.
#[test]
fn a_gate_that_is_reached_in_a_replay_keeps_the_old_way() {
    let code = |is_changed: bool| {
        workflow(move |ctx: Ctx| async move {
            let part = async |ctx: &Ctx, name: &'static str| -> Result<()> {
                work(ctx, name).await?;
                if is_changed && ctx.version("gate", 2) >= 2 {
                    let scope = ctx.scope("new");
                    work(&scope, "extra").await?;
                    nap(&scope, "nap").await?;
                }
                Ok(())
            };
            let (one, two) = (ctx.scope("one"), ctx.scope("two"));
            let (left, right) = (part(&one, "a"), part(&two, "b"));
            futures::pin_mut!(left, right);
            futures::future::select(left, right).await.factor_first().0?;
            tell(&ctx, "won")?;
            if is_changed && ctx.version("late", 2) >= 2 {
                tell(&ctx, "late")?;
            }
            let one = async |ctx: Ctx| part(&ctx, "a").await;
            let two = async |ctx: Ctx| part(&ctx, "b").await;
            ctx.join("join", (branch("one", one), branch("two", two))).await?;
            tell(&ctx, "zero")?;
            work(&ctx, "last").await
        })
    };
    let check = |owner: &Owner| {
        let told = told(owner);
        assert!(told == ["late", "won", "zero"] || told == ["won", "zero"], "{told:?}");
    };
    deploy_everywhere(code, Owner::settle, check);
    let life = |owner: &mut Owner| {
        owner.settle();
        owner.finish("two/b");
        owner.finish("join/two/b");
    };
    deploy_everywhere(code, life, check);
}

/// A run was paused while the body of a step ran to which a gate had let it. The result was recorded, the
/// gate was not: the next time the gate took the result for that of code without a gate and led the old
/// way, on which nobody makes the step.
#[test]
fn a_gate_is_recorded_with_the_result_to_which_it_has_led() {
    let code = || {
        workflow(|ctx: Ctx| async move {
            if ctx.version("gate", 2) >= 2 {
                tell(&ctx, "new")?;
                work(&ctx.scope("new"), "extra").await?;
            }
            tell(&ctx, "zero")?;
            work(&ctx, "last").await
        })
    };
    let mut owner = Owner::start(code());
    owner.settle();
    owner.run().drain(true);
    owner.finish("new/extra");
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
    assert_eq!(hands::starts(), ["new/extra", "last"]);
    assert_eq!(told(&owner), ["new", "zero"]);
}

/// A removed operation that has not ended leaves a mark of its own kind, so that the code before the change
/// does not take it for one that is to be made.
#[test]
fn code_from_before_the_change_pauses_what_has_gone_past_it() {
    let code = |is_changed: bool| {
        workflow(move |ctx: Ctx| async move {
            gone(&ctx, "gone", is_changed).await?;
            work(&ctx, "last").await
        })
    };
    let mut owner = Owner::start(code(true));
    owner.settle();
    owner.deploy(code(false));
    owner.settle();
    assert!(owner.paused().contains("`gone` the history has Removed, the code makes Step"));
    owner.deploy(code(true));
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
}
