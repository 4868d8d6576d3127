//! When something is written, by counting commits: the barrier is the body.

use std::time::Duration;

use super::{
    hands,
    owner::{Owner, workflow},
};
use crate::{
    commit::Patch,
    ctx::{Ctx, composite::branch, step::Step},
};

fn work<'a>(ctx: &Ctx, name: &str) -> crate::ctx::step::StepCall<'a, u64> {
    let seen = ctx.core().state.borrow().taken;
    ctx.step_with(name, async move |step: Step| {
        Ok(hands::body(step.location(), seen).await)
    })
}

/// The commits of a run, its start included.
fn commits(owner: &Owner) -> usize {
    1 + owner.commits.len()
}

/// The places that a commit of the run writes.
fn puts(owner: &Owner, n: usize) -> Vec<String> {
    let puts = owner.commits[n].puts.iter();
    puts.map(|put| crate::history::keys::describe(&put.key))
        .collect()
}

#[test]
fn a_one_step_run_makes_two_commits() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move { work(&ctx, "a").await }));
    owner.finish_all();
    assert_eq!(commits(&owner), 2, "the start, and the step with the end");
}

/// The entries of a suspect are recorded before their bodies begin, and were not counted then: its
/// history could grow past its bound.
#[test]
fn entries_of_a_suspect_count_towards_the_bound_of_its_history() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        work(&ctx, "b").await?;
        work(&ctx, "c").await
    }));
    owner.run().core.state.borrow_mut().suspect = true;
    owner.settle();
    let entries = |owner: &mut Owner| owner.run().core.state.borrow().entries;
    assert_eq!(entries(&mut owner), 1, "the body of `a` has begun");
    owner.finish("a");
    owner.finish("b");
    assert_eq!(entries(&mut owner), 2, "the end of `a` and of `b`");
}

#[test]
fn a_three_step_run_makes_four_commits() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        work(&ctx, "b").await?;
        work(&ctx, "c").await
    }));
    owner.finish_all();
    assert_eq!(commits(&owner), 4);
}

#[test]
fn a_cold_replay_of_a_parked_run_makes_none() {
    let definition = workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        let both = futures::join!(
            ctx.listen::<String>("go"),
            ctx.sleep("nap", Duration::from_secs(60))
        );
        Ok(both.0? + "!")
    });
    let mut owner = Owner::start(definition);
    owner.settle();
    owner.finish("a");
    assert!(owner.run().is_parked());
    let before = commits(&owner);
    for _ in 0..3 {
        owner.reload();
        owner.settle();
        assert!(owner.run().is_parked());
    }
    assert_eq!(commits(&owner), before);
    owner.send("go", "on");
    owner.finish_all();
    assert_eq!(owner.output::<String>(), "on!");
}

#[test]
fn a_join_rides_with_its_first_child() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let arms = (
            branch("x", async |ctx: Ctx| work(&ctx, "a").await),
            branch("y", async |ctx: Ctx| work(&ctx, "b").await),
        );
        let (a, b) = ctx.join("both", arms).await?;
        Ok(a + b)
    }));
    owner.settle();
    assert_eq!(commits(&owner), 1, "structure alone is no reason to write");
    owner.finish("both/x/a");
    assert_eq!(puts(&owner, 0), ["both", "both/x/a"]);
    owner.finish("both/y/b");
    assert_eq!(commits(&owner), 3);
}

#[test]
fn a_step_and_the_sleep_after_it_are_one_commit() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        ctx.sleep("nap", Duration::from_secs(60)).await?;
        work(&ctx, "b").await
    }));
    owner.settle();
    owner.finish("a");
    assert_eq!(commits(&owner), 2);
    assert_eq!(puts(&owner, 0), ["a", "nap"]);
    assert!(
        matches!(owner.commits[0].patch, Patch::Park { .. }),
        "and it is parked by it"
    );
    owner.finish_all();
    assert_eq!(
        commits(&owner),
        4,
        "the end of the sleep, then the last step with the end"
    );
}

#[test]
fn ephemeral_steps_ride_on_the_next_commit() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").ephemeral().await?;
        work(&ctx, "b").ephemeral().await?;
        work(&ctx, "c").await?;
        work(&ctx, "d").ephemeral().await
    }));
    owner.settle();
    owner.finish("a");
    assert_eq!(
        commits(&owner),
        1,
        "an ephemeral body does not wait for ephemeral results"
    );
    owner.finish("b");
    assert_eq!(puts(&owner, 0), ["a", "b"], "any other body waits for all");
    owner.finish("c");
    assert_eq!(
        puts(&owner, 1),
        ["c"],
        "an ephemeral body waits for a firm result"
    );
    owner.finish("d");
    assert_eq!(commits(&owner), 4);
}

#[test]
fn no_body_starts_before_what_its_code_has_seen_is_durable() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        work(&ctx, "a").await?;
        work(&ctx, "b").await
    }));
    owner.settle();
    let (id, _) = hands::held().remove(0);
    hands::let_go(id);
    owner.drive();
    assert!(owner.in_flight());
    assert_eq!(
        hands::starts(),
        ["a"],
        "the code has gone on to `b`, but its body has not begun"
    );
    owner.reload();
    owner.settle();
    assert_eq!(hands::starts(), ["a", "a"], "what was not durable is gone");
    owner.finish("a");
    assert_eq!(hands::starts(), ["a", "a", "b"]);
}

#[test]
fn a_timeout_is_released_only_after_it_is_committed() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let got = ctx
            .listen::<String>("go")
            .timeout(Duration::from_secs(5))
            .await?;
        hands::log(0, format!("{got:?}"));
        Ok(got.unwrap_or_default())
    }));
    owner.settle();
    owner.fire_next_timer();
    owner.drive();
    assert!(owner.in_flight());
    assert_eq!(owner.view().log, []);
    // A message that comes before the commit is made wins.
    owner.deliver("go", "now");
    owner.ack();
    owner.settle();
    assert_eq!(owner.output::<String>(), "now");
}

#[test]
fn a_timeout_that_was_refused_is_not_stored_by_the_next_commit() {
    // A refused commit is sent again with what it held. It held that the time of `slow` had run
    // out; by then a message for it was there, and a crash after the second commit gave `None`.
    let definition = workflow(|ctx: Ctx| async move {
        let mut slow = Box::pin(ctx.listen::<String>("slow").timeout(Duration::from_secs(5)));
        let other = Box::pin(work(&ctx, "other"));
        if let futures::future::Either::Right((_, slow)) =
            futures::future::select(&mut slow, other).await
        {
            work(&ctx, "between").await?;
            return Ok(slow.await?.unwrap_or_default());
        }
        Ok("slow first".to_owned())
    });
    let mut owner = Owner::start(definition);
    owner.settle();
    owner.finish("other");
    // Nobody polls `slow` any more.
    owner.set_now(super::owner::BEGINNING + Duration::from_secs(5));
    owner.drive();
    assert!(owner.in_flight());
    owner.deliver("slow", "hello");
    owner.ack();
    owner.settle();
    owner.reload();
    owner.settle();
    owner.finish_all();
    assert_eq!(owner.output::<String>(), "hello");
}

#[test]
fn a_listen_for_any_name_is_woken_by_every_message() {
    // It was offered a message only if there was one when it began: none of its names was that of
    // the message, since it has none.
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        ctx.listen::<String>("any")
            .names(Vec::<String>::new())
            .await
    }));
    owner.settle();
    owner.send("whatever", "hello");
    assert_eq!(owner.output::<String>(), "hello");
}

#[test]
fn the_end_of_a_run_is_not_refused_for_a_wait_that_was_given_up() {
    // The time of `slow` had run out and was to be committed when the run ended without it. The
    // commit of the end then depended on the inbox; when that moved, the end was forgotten and
    // the run was paused for having nothing to wait for.
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let slow = Box::pin(ctx.listen::<String>("slow").timeout(Duration::from_secs(5)));
        let other = Box::pin(work(&ctx, "other"));
        futures::future::select(slow, other).await;
        Ok(1)
    }));
    owner.settle();
    owner.set_now(super::owner::BEGINNING + Duration::from_secs(5));
    let (id, _) = hands::held().remove(0);
    hands::let_go(id);
    owner.drive();
    owner.deliver("slow", "hello");
    owner.ack();
    owner.settle();
    assert_eq!(owner.output::<u64>(), 1);
}
