//! Code that does not match the history: the run is paused, both sides are named, nothing is
//! compensated, and it goes on when matching code is back.

use std::{sync::Arc, time::Duration};

use super::{
    hands,
    owner::{Gone, Owner, workflow},
};
use crate::{
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
    let step =
        ctx.step_with(name, async move |step: Step| Ok(hands::body(step.location(), seen).await));
    step.rollback(async |_, value| {
        hands::note_undone("undone", &format!("{value}"));
        Ok(())
    })
}

async fn nap(ctx: &Ctx, name: &str) -> Result<()> {
    ctx.sleep(name, Duration::from_secs(86_400)).await.map(drop)
}

/// `a`, `b`, then a long sleep, then `c`: what most tests here change.
fn original() -> Arc<Definition> {
    workflow(|ctx: Ctx| async move {
        let a = work(&ctx, "a").await?;
        let b = work(&ctx, "b").await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await?;
        Ok(a + b)
    })
}

/// Parks the original in its sleep, deploys `changed`, and gives why the run is paused then.
fn paused_by(changed: Arc<Definition>) -> String {
    let mut owner = Owner::start(original());
    owner.settle();
    owner.finish("a");
    owner.finish("b");
    assert!(owner.run().is_parked());
    let before = owner.entries();
    owner.deploy(changed);
    owner.finish_all();
    let why = owner.paused().to_owned();
    assert_eq!(owner.entries(), before, "the history is as it was");
    assert_eq!(hands::undone(), [], "nothing is compensated");
    let starts = hands::starts();
    owner.deploy(original());
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
    assert_eq!(hands::starts()[starts.len()..], ["c"], "only what was left is run");
    why
}

fn names(why: &str, parts: &[&str]) {
    for part in parts {
        assert!(why.contains(part), "`{part}` is not in: {why}");
    }
}

#[test]
fn a_completed_operation_that_is_gone_pauses_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await
    }));
    // The sleep is now made before the completion that it was made after.
    names(&why, &["`nap`", "after completion 2", "after completion 1"]);
}

#[test]
fn a_renamed_step_pauses_the_run_and_both_are_named() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        work(&ctx, "b2").await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await
    }));
    names(&why, &["completion 2", "`b`", "does not make", "`b2`"]);
}

#[test]
fn an_operation_that_is_made_but_not_polled_pauses_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        let b = work(&ctx, "b");
        work(&ctx, "x").await?;
        b.await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await
    }));
    names(&why, &["completion 2", "`b`", "does not poll", "`x`"]);
}

#[test]
fn another_kind_at_a_location_pauses_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        nap(&ctx, "b").await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await
    }));
    names(&why, &["`b`", "Step", "Sleep"]);
}

#[test]
fn an_inserted_operation_pauses_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        work(&ctx, "new").await?;
        work(&ctx, "b").await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await
    }));
    names(&why, &["completion 2", "`b`", "`new`"]);
}

#[test]
fn reordered_operations_pause_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        work(&ctx, "b").await?;
        work(&ctx, "a").await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await
    }));
    names(&why, &["`b`", "after completion 1", "after completion 0"]);
}

#[test]
fn code_that_ends_with_numbers_left_pauses_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move { work(&ctx, "a").await }));
    names(&why, &["ended before completion 2", "`b`"]);
}

#[test]
fn code_that_panics_with_numbers_left_pauses_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        let a = work(&ctx, "a").await?;
        assert!(a == 0, "a panic of the test");
        Ok(a)
    }));
    names(&why, &["ended before completion 2", "`b`"]);
}

#[test]
fn a_renamed_sleep_pauses_the_run_and_does_not_start_again() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        work(&ctx, "b").await?;
        nap(&ctx, "rest").await?;
        work(&ctx, "c").await
    }));
    names(&why, &["`nap`", "Sleep", "does not make it any more"]);
}

#[test]
fn code_that_ends_with_an_entry_unclaimed_pauses_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        work(&ctx, "b").await
    }));
    names(&why, &["`nap`", "Sleep"]);
}

/// Parks the original in its sleep, deploys `changed`, and lets that run to its end.
fn goes_on_with(changed: Arc<Definition>) -> Owner {
    let mut owner = Owner::start(original());
    owner.settle();
    owner.finish("a");
    owner.finish("b");
    owner.deploy(changed.clone());
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
    assert_eq!(hands::violation(), None);
    owner
}

#[test]
fn a_removed_step_is_passed_over() {
    goes_on_with(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        ctx.removed("b", EntryKind::Step).await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await
    }));
    assert_eq!(hands::starts(), ["a", "b", "c"]);
}

#[test]
fn a_step_that_is_removed_at_another_place_pauses_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        ctx.removed("b", EntryKind::Step).await?;
        work(&ctx, "a").await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await
    }));
    names(&why, &["`b`", "completion 1", "completion 0"]);
}

/// Code that went past a removed step as soon as it came there made the next one before the results that
/// other branches had taken in between. That looked like a step that was moved, and the run was paused.
#[test]
fn a_removed_step_of_one_branch_is_passed_over_beside_results_of_another() {
    let code = |is_removed: bool| {
        workflow(move |ctx: Ctx| async move {
            let one = async |ctx: Ctx| {
                match is_removed {
                    true => ctx.removed("b", EntryKind::Step).await?,
                    false => _ = work(&ctx, "b").await?,
                }
                work(&ctx, "c").await?;
                Ok(())
            };
            let other = async |ctx: Ctx| {
                work(&ctx, "d").await?;
                nap(&ctx, "nap").await
            };
            ctx.join("both", (branch("one", one), branch("other", other))).await?;
            work(&ctx, "e").await
        })
    };
    let mut owner = Owner::start(code(false));
    owner.settle();
    owner.finish("both/other/d");
    owner.finish("both/one/b");
    owner.finish("both/one/c");
    owner.deploy(code(true));
    owner.finish_all();
    assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
    assert_eq!(hands::violation(), None);
    assert_eq!(hands::starts(), ["both/one/b", "both/other/d", "both/one/c", "e"]);
}

#[test]
fn a_removed_sleep_is_passed_over() {
    goes_on_with(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        work(&ctx, "b").await?;
        ctx.removed("nap", EntryKind::Sleep).await?;
        work(&ctx, "c").await
    }));
}

#[test]
fn removed_with_another_kind_pauses_the_run() {
    let why = paused_by(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        ctx.removed("b", EntryKind::Listen).await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await
    }));
    names(&why, &["`b`", "Step", "Listen"]);
}

/// The original with a step that only new runs make.
fn gated() -> Arc<Definition> {
    workflow(|ctx: Ctx| async move {
        let a = work(&ctx, "a").await?;
        if ctx.version("with-extra", 2) >= 2 {
            work(&ctx, "extra").await?;
        }
        let b = work(&ctx, "b").await?;
        nap(&ctx, "nap").await?;
        work(&ctx, "c").await?;
        Ok(a + b)
    })
}

#[test]
fn a_version_gate_keeps_an_old_run_on_the_old_way() {
    let owner = goes_on_with(gated());
    assert_eq!(hands::starts(), ["a", "b", "c"]);
    assert!(owner.entry("with-extra").is_some(), "what it gave is recorded");
}

/// The gate looked for later entries of its own scope alone. At the end of a branch there are none, so a
/// run that was past the whole join went the new way in it, and was paused as diverged.
#[test]
fn a_version_gate_at_the_end_of_a_branch_keeps_an_old_run_on_the_old_way() {
    let code = |is_gated: bool| {
        workflow(move |ctx: Ctx| async move {
            let one = async |ctx: Ctx| {
                work(&ctx, "a").await?;
                if is_gated && ctx.version("with-extra", 2) >= 2 {
                    work(&ctx, "extra").await?;
                }
                Ok(())
            };
            let other = async |ctx: Ctx| {
                work(&ctx, "b").await?;
                work(&ctx, "c").await?;
                Ok(())
            };
            ctx.join("both", (branch("one", one), branch("other", other))).await?;
            nap(&ctx, "nap").await?;
            work(&ctx, "d").await
        })
    };
    let all = ["both/one/a", "both/other/b", "both/other/c"];
    for order in [[1, 2, 0], [0, 1, 2], [1, 0, 2]] {
        let mut owner = Owner::start(code(false));
        owner.settle();
        for number in order {
            owner.finish(all[number]);
        }
        owner.deploy(code(true));
        owner.finish_all();
        assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)), "{order:?}");
        assert_eq!(hands::violation(), None);
        assert!(!hands::starts().contains(&"both/one/extra".to_owned()), "{order:?}");
    }
}

#[test]
fn a_version_gate_leads_a_new_run_the_new_way_after_a_crash_too() {
    let mut owner = Owner::start(gated());
    owner.record();
    owner.finish_all();
    assert_eq!(hands::starts(), ["a", "extra", "b", "c"]);
    for point in owner.take_points() {
        let mut again = Owner::after(&point, gated(), &owner);
        if again.row().status.is_terminal() {
            continue;
        }
        again.finish_all();
        assert_eq!(again.gone, Some(Gone::Finished(RunStatus::Completed)));
        assert!(again.entry("extra").is_some());
        assert_eq!(hands::violation(), None);
    }
}

#[test]
fn an_old_run_that_has_not_come_to_the_gate_goes_the_new_way() {
    let mut owner = Owner::start(original());
    owner.settle();
    owner.deploy(gated());
    owner.finish_all();
    assert_eq!(hands::starts(), ["a", "a", "extra", "b", "c"]);
}

/// A gate looked for entries behind it alone, and an item of `ctx.emit` has none. A run that had emitted an item
/// behind the gate, and was read again in the next body, went the new way and emitted the item once more.
#[test]
fn a_version_gate_before_a_stored_item_keeps_an_old_run_on_the_old_way() {
    let code = |is_gated: bool, has_first: bool| {
        workflow(move |ctx: Ctx| async move {
            if has_first {
                work(&ctx, "first").await?;
            }
            if is_gated && ctx.version("with-extra", 2) >= 2 {
                work(&ctx, "extra").await?;
            }
            ctx.emit("items", "one")?;
            work(&ctx, "last").await
        })
    };
    for has_first in [true, false] {
        let mut owner = Owner::start(code(false, has_first));
        owner.settle();
        if has_first {
            owner.finish("first");
        }
        // The row is written, and with it what was emitted, also where nothing is recorded so far.
        owner.run().was_resumed();
        owner.settle();
        assert!(owner.entry("last").is_none());
        owner.deploy(code(true, has_first));
        owner.finish_all();
        assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
        let page = owner.store.stream(owner.id.no(), "items", 0, 9).unwrap().unwrap();
        assert_eq!(page.items.len(), 1, "{has_first}, {:?}", hands::starts());
        assert!(!hands::starts().contains(&"extra".to_owned()));
    }
}

/// What the code sets is stored with the commit of what it does before it waits. A replay passes over
/// all of that, up to its end: code that goes past a removed operation in which the run had stood must not
/// do so before that, or what it sets is taken for stored and lost.
mod sets_what_the_run_had_not_come_to {
    use super::*;
    use crate::codec::payload;

    fn states(owner: &Owner) -> Vec<(String, String)> {
        let all = owner.store.state(owner.id.no()).unwrap().into_iter();
        let mut all: Vec<_> =
            all.map(|(key, value)| (key, payload::from_slice(&value).unwrap())).collect();
        all.sort();
        all
    }

    fn set(ctx: &Ctx, key: &str, value: &str) {
        ctx.set_state(key, value).unwrap();
        ctx.set_tag(key, value).unwrap();
    }

    /// Drives `old` by hand, deploys `new`, and checks that it sets `expected` and no more.
    fn check(
        old: Arc<Definition>,
        drive: impl FnOnce(&mut Owner),
        new: Arc<Definition>,
        expected: &[(&str, &str)],
    ) {
        let mut owner = Owner::start(old);
        owner.settle();
        drive(&mut owner);
        owner.deploy(new);
        owner.finish_all();
        assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
        assert_eq!(hands::violation(), None);
        let expected: Vec<(String, String)> =
            expected.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        assert_eq!(states(&owner), expected);
        let mut tags = owner.row().tags;
        tags.sort();
        assert_eq!(tags, expected);
    }

    fn straight(is_removed: bool) -> Arc<Definition> {
        workflow(move |ctx: Ctx| async move {
            work(&ctx, "a").await?;
            match is_removed {
                true => ctx.removed("nap", EntryKind::Sleep).await?,
                false => nap(&ctx, "nap").await?,
            }
            set(&ctx, "phase", "late");
            work(&ctx, "b").await
        })
    }

    #[test]
    fn behind_a_removed_operation() {
        check(straight(false), |owner| owner.finish("a"), straight(true), &[("phase", "late")]);
    }

    #[test]
    fn behind_a_removed_step_that_left_no_entry() {
        let code = |is_removed: bool| {
            workflow(move |ctx: Ctx| async move {
                work(&ctx, "a").await?;
                match is_removed {
                    true => ctx.removed("gone", EntryKind::Step).await?,
                    false => _ = work(&ctx, "gone").await?,
                }
                set(&ctx, "phase", "late");
                work(&ctx, "b").await
            })
        };
        check(code(false), |owner| owner.finish("a"), code(true), &[("phase", "late")]);
    }

    #[test]
    fn behind_a_removed_operation_of_a_branch() {
        let code = |is_removed: bool| {
            workflow(move |ctx: Ctx| async move {
                let one = async |ctx: Ctx| {
                    match is_removed {
                        true => ctx.removed("nap", EntryKind::Sleep).await?,
                        false => nap(&ctx, "nap").await?,
                    }
                    set(&ctx, "one", "late");
                    Ok(())
                };
                let other = async |ctx: Ctx| {
                    work(&ctx, "b").await?;
                    work(&ctx, "c").await?;
                    Ok(())
                };
                ctx.join("both", (branch("one", one), branch("other", other))).await?;
                set(&ctx, "phase", "joined");
                work(&ctx, "d").await
            })
        };
        let drive = |owner: &mut Owner| {
            owner.finish("both/other/b");
            owner.finish("both/other/c");
        };
        check(code(false), drive, code(true), &[("one", "late"), ("phase", "joined")]);
    }

    #[test]
    fn behind_a_gate_that_leads_the_new_way() {
        let code = |is_gated: bool| {
            workflow(move |ctx: Ctx| async move {
                work(&ctx, "a").await?;
                if is_gated && ctx.version("with-extra", 2) >= 2 {
                    set(&ctx, "way", "new");
                }
                work(&ctx, "b").await
            })
        };
        // The run stands in `a`, or in `b`: then it is past the gate.
        check(code(false), |_| {}, code(true), &[("way", "new")]);
        check(code(false), |owner| owner.finish("a"), code(true), &[]);
    }

    /// A client may have changed since then what the run had set: it is not set again.
    #[test]
    fn and_nothing_that_it_had_come_to() {
        let drive = |owner: &mut Owner| {
            owner.finish("a");
            while owner.entry("nap").is_none_or(|nap| nap.number.is_none()) {
                assert!(owner.fire_next_timer());
                owner.settle();
            }
        };
        let mut owner = Owner::start(straight(false));
        owner.settle();
        drive(&mut owner);
        assert_eq!(states(&owner), [("phase".to_owned(), "late".to_owned())]);
        let before = owner.commits.len();
        owner.deploy(straight(true));
        owner.finish_all();
        assert_eq!(owner.gone, Some(Gone::Finished(RunStatus::Completed)));
        let later = &owner.commits[before..];
        assert!(later.iter().all(|commit| commit.state.is_empty() && commit.effects.is_empty()));
    }
}
