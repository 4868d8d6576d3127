//! `ctx` inside of a body: the run is paused at once, not at its first replay.

use std::time::Duration;

use super::{
    hands,
    owner::{Owner, workflow},
};
use crate::{
    commit::{Commit, RunStatus},
    ctx::{Ctx, composite::branch, step::Step},
    error::Error,
    history::EntryKind,
    retry::Retry,
};

/// A body that ends when the test says so.
fn work<'a>(ctx: &Ctx, name: &str) -> crate::ctx::step::StepCall<'a, u64> {
    ctx.step_with(name, async move |step: Step| Ok(hands::body(step.location(), 0).await))
}

/// A step inside of a step worked, and the run diverged at its first replay, where the body of the
/// outer one does not run.
#[test]
fn a_step_inside_of_a_body_pauses_the_run_at_once_and_code_without_it_goes_on() {
    let nested = || {
        workflow(|ctx: Ctx| async move {
            let first = work(&ctx, "first").await?;
            let outer = ctx.step("outer", async || work(&ctx, "inner").await);
            Ok(first + outer.await?)
        })
    };
    for is_replayed in [false, true] {
        let mut owner = Owner::start(nested());
        owner.settle();
        if is_replayed {
            // Its last commit is made, and the next body has not begun.
            let (id, _) = hands::held().remove(0);
            hands::let_go(id);
            owner.drive();
            owner.ack();
            owner.deploy(nested());
            owner.settle();
        } else {
            owner.finish("first");
        }
        let why = owner.paused();
        assert!(why.contains("the body of `outer` makes Step `inner`"), "{why}");
        assert!(why.contains("outside of the body") && why.contains("ctx.child"), "{why}");
        let names: Vec<_> = owner.entries().into_iter().map(|(at, _)| at).collect();
        assert_eq!(names, ["first"], "nothing of the body is recorded");
        assert_eq!(hands::starts(), ["first"], "the inner body has not begun");
        owner.deploy(workflow(|ctx: Ctx| async move {
            let first = work(&ctx, "first").await?;
            Ok(first + work(&ctx, "inner").await? + work(&ctx, "outer").await?)
        }));
        owner.finish_all();
        assert_eq!(owner.row().status, RunStatus::Completed);
    }
}

/// Uses `ctx` in the body of `outer`; gives why the run is paused, if it is.
fn used(in_body: fn(&Ctx)) -> Option<String> {
    let mut owner = Owner::start(workflow(move |ctx: Ctx| async move {
        let outer = ctx.step("outer", async || {
            in_body(&ctx);
            Ok(1u64)
        });
        outer.await
    }));
    owner.finish_all();
    if owner.row().status == RunStatus::Completed {
        return None;
    }
    assert!(owner.entries().is_empty(), "nothing of the body is recorded");
    let quiet = |commit: &Commit| commit.state.is_empty() && commit.effects.is_empty();
    assert!(owner.commits.iter().all(quiet), "nor what it has set");
    Some(owner.paused().to_owned())
}

/// A call inside of a body, and what the reason says of it.
type Call = (fn(&Ctx), &'static str);

#[test]
fn whatever_replay_would_not_do_again_is_refused_inside_of_a_body() {
    let calls: [Call; 14] = [
        (|ctx| drop(ctx.sleep("nap", Duration::ZERO)), "Sleep `nap`"),
        (|ctx| drop(ctx.listen::<u64>("go")), "Listen `go`"),
        (
            |ctx| drop(ctx.join("both", Vec::<crate::ctx::composite::Branch<'_, ()>>::new())),
            "Join `both`",
        ),
        (|ctx| drop(ctx.attempt("try", async |_| Ok(()))), "Attempt `try`"),
        (|ctx| drop(ctx.continue_as::<(), ()>(())), "Continue"),
        (|ctx| drop(ctx.scope("part")), "`ctx.scope` of `part`"),
        (
            // Of a scope that was made outside, and of a clone.
            |ctx| {
                drop(
                    Ctx::at(ctx.core().clone(), crate::history::Key::from(&b"\x02a\0"[..]))
                        .clone()
                        .sleep("nap", Duration::ZERO),
                )
            },
            "Sleep",
        ),
        (|ctx| _ = ctx.random(), "a random number"),
        (|ctx| _ = ctx.uuid(), "a random number"),
        (|ctx| _ = ctx.set_state("done", &1), "the state `done`"),
        (|ctx| _ = ctx.set_tag("phase", "x"), "the tag `phase`"),
        (|ctx| ctx.remove_tag("phase"), "the tag `phase`"),
        (|ctx| _ = ctx.emit("log", &1), "the stream `log`"),
        (|ctx| _ = ctx.version("change", 2), "`ctx.version` of `change`"),
    ];
    for (call, what) in calls {
        let why = used(call).unwrap_or_else(|| panic!("{what} is not refused"));
        assert!(why.contains("the body of `outer` makes "), "{why}");
        assert!(why.contains(what), "{why}");
        assert!(crate::run::is_mended_by_deploy(&why), "{why}");
    }
    let removed = used(|ctx| _ = ctx.removed("old", EntryKind::Step));
    assert!(removed.is_some_and(|why| why.contains("`ctx.removed` of `old`")));
}

#[test]
fn a_body_may_read_with_ctx() {
    let reads: fn(&Ctx) = |ctx| {
        _ = (ctx.run_id(), ctx.now(), ctx.run_attempt(), ctx.generation());
        _ = (ctx.workflow_version(), ctx.scheduled_at());
    };
    assert_eq!(used(reads), None);
}

#[test]
fn an_operation_that_was_made_outside_is_not_polled_inside_of_a_body() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let made = std::cell::RefCell::new(Some(ctx.sleep("nap", Duration::from_secs(1))));
        let waits = ctx.step("waits", async || {
            let nap = made.borrow_mut().take();
            nap.ok_or_else(|| Error::msg("a second attempt"))?.await?;
            Ok(1u64)
        });
        waits.await
    }));
    owner.finish_all();
    let why = owner.paused();
    assert!(why.contains("the body of `waits` makes Sleep `nap`"), "{why}");
}

#[test]
fn a_rollback_makes_nothing_with_ctx() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let inner = ctx.clone();
        let step = work(&ctx, "pay")
            .rollback(async move |_, _| inner.step("refund", async || Ok(())).await);
        step.rollback_retry(Retry::never()).await?;
        Err::<u64, _>(Error::rollback("the end"))
    }));
    owner.finish_all();
    let why = owner.paused();
    assert!(why.contains("the body of `rollback of pay` makes Step `refund`"), "{why}");
}

/// The branches of a join are workflow code, wherever they are polled.
#[test]
fn operations_beside_a_body_that_is_in_flight_are_made() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let arms = (
            branch("slow", async |ctx: Ctx| work(&ctx, "work").await),
            branch("fast", async |ctx: Ctx| {
                work(&ctx, "work").await?;
                ctx.set_state("done", &ctx.random())?;
                work(&ctx.scope("more"), "work").await
            }),
        );
        let (a, b) = ctx.join("both", arms).await?;
        Ok(a.min(b))
    }));
    owner.settle();
    owner.finish("both/fast/work");
    owner.finish("both/fast/more/work");
    owner.finish_all();
    assert_eq!(owner.row().status, RunStatus::Completed);
}
