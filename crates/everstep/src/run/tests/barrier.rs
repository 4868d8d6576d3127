//! When something is written, by counting commits: the barrier is the body.

use std::{cell::Cell, cell::RefCell, rc::Rc, time::Duration};

use super::{
    hands,
    owner::{Owner, workflow},
    program::Dice,
    sabotage::{self, Sabotage},
};
use crate::{
    commit::{Commit, Patch, RunStatus, Write},
    ctx::{Ctx, composite::branch, step::Step},
    event::Event,
    store::Store,
};

fn work<'a>(ctx: &Ctx, name: &str) -> crate::ctx::step::StepCall<'a, u64> {
    let core = ctx.core().clone();
    ctx.step_with(name, async move |step: Step| {
        let seen = core.state.borrow().taken;
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
    puts.map(|put| crate::location::keys::describe(&put.key)).collect()
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
        let both =
            futures::join!(ctx.listen::<String>("go"), ctx.sleep("nap", Duration::from_secs(60)));
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
    assert!(matches!(owner.commits[0].patch, Patch::Park { .. }), "and it is parked by it");
    owner.finish_all();
    assert_eq!(commits(&owner), 4, "the end of the sleep, then the last step with the end");
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
    assert_eq!(commits(&owner), 1, "an ephemeral body does not wait for ephemeral results");
    owner.finish("b");
    assert_eq!(puts(&owner, 0), ["a", "b"], "any other body waits for all");
    owner.finish("c");
    assert_eq!(puts(&owner, 1), ["c"], "an ephemeral body waits for a firm result");
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
    assert_eq!(hands::starts(), ["a"], "the code has gone on to `b`, but its body has not begun");
    owner.reload();
    owner.settle();
    assert_eq!(hands::starts(), ["a", "a"], "what was not durable is gone");
    owner.finish("a");
    assert_eq!(hands::starts(), ["a", "a", "b"]);
}

#[test]
fn a_timeout_is_released_only_after_it_is_committed() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let got = ctx.listen::<String>("go").timeout(Duration::from_secs(5)).await?;
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

/// The wait began while a commit was in flight, and its time ran out before that was answered. The next
/// commit registered the wait and took that back at once: the store never said what was there.
#[test]
fn a_wait_does_not_run_out_before_it_is_registered() {
    const NEWS: Event<u64> = Event::new("news");
    for is_told in [false, true] {
        let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
            ctx.publish(NEWS, &7).await?;
            let waits = async {
                work(&ctx, "a").await?;
                ctx.event(NEWS).timeout(Duration::from_secs(5)).await
            };
            let (seen, other) = futures::future::join(waits, work(&ctx, "b")).await;
            other?;
            seen
        }));
        owner.settle();
        for place in ["b", "a"] {
            let held = hands::held().into_iter().find(|(_, at)| at == place);
            hands::let_go(held.expect("it is in flight").0);
            owner.drive();
            assert!(owner.in_flight());
        }
        owner.set_now(super::owner::BEGINNING + Duration::from_secs(5));
        owner.drive();
        // What was in flight, then what registers the wait.
        owner.ack();
        owner.drive();
        if is_told {
            owner.ack();
            let rows =
                owner.store.inbox(owner.id.no(), 0).expect("the store in memory never fails");
            owner.run().deliver(rows);
        }
        owner.settle();
        assert_eq!(owner.output::<Option<u64>>(), Some(7));
    }
}

/// The time of a wait ran out while a commit was in flight. A message that came before the next commit
/// was known to that commit, so the store had no reason to refuse it: the wait ended with nothing,
/// although its message was there.
#[test]
fn a_message_that_comes_while_a_timeout_waits_to_be_committed_wins() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let listen = async { ctx.listen::<String>("go").timeout(Duration::from_secs(5)).await };
        let works = async {
            work(&ctx, "a").await?;
            work(&ctx, "b").await
        };
        let (got, _) = futures::try_join!(listen, works)?;
        Ok(got.unwrap_or_else(|| "nothing".to_owned()))
    }));
    owner.settle();
    let_go("a");
    owner.drive();
    assert!(owner.in_flight());
    owner.set_now(super::owner::BEGINNING + Duration::from_secs(5));
    owner.drive();
    owner.deliver("go", "now");
    owner.tell();
    owner.finish_all();
    assert_eq!(owner.output::<String>(), "now");
}

/// The time of a wait ran out in the drive in which a message came. The message was there, so nothing
/// was recorded; then another wait took the message, and the first one never ended.
#[test]
fn a_wait_whose_message_another_takes_at_its_deadline_runs_out() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let first = async { ctx.listen::<String>("go").await };
        let second = async { ctx.listen::<String>("go").timeout(Duration::from_secs(5)).await };
        let (first, second) = futures::try_join!(first, second)?;
        Ok(format!("{first}, {second:?}"))
    }));
    owner.settle();
    owner.set_now(super::owner::BEGINNING + Duration::from_secs(5));
    owner.deliver("go", "now");
    owner.tell();
    owner.settle();
    owner.finish_all();
    assert_eq!(owner.output::<String>(), "now, None");
}

/// Another process answered a wait of the run, and before its owner had read the answer it gave the wait
/// up, which took the answer back. The row of the run said that something had come, nothing was there to
/// be read, and the commit that parks the run was refused for ever.
#[test]
fn an_answer_that_is_taken_back_unread_does_not_hold_the_run_up() {
    const NEWS: Event<u64> = Event::new("news");
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let arms = (ctx.event(NEWS), work(&ctx, "a"));
        ctx.race("race", arms).await?;
        ctx.listen::<String>("go").await
    }));
    owner.settle();
    let body = crate::codec::payload::to_vec(&7_u64).expect("a number");
    let publication = NEWS.rules.publication(NEWS.name(), body, &owner.env.settings);
    owner.write(Write::Publish(Box::new(publication)));
    hands::let_go(hands::held()[0].0);
    for _ in 0..10 {
        owner.drive();
        owner.ack();
    }
    assert!(!owner.in_flight());
    assert_eq!(owner.row().status, RunStatus::Sleeping);
    owner.send("go", "now");
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
        ctx.listen::<String>("any").names(Vec::<String>::new()).await
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

thread_local! {
    /// The price that each body of `charge` has found when it started.
    static CHARGED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// How many commits were made when the run was last driven.
    static COMMITS: Cell<usize> = const { Cell::new(0) };
    /// For how many commits each body has waited.
    static WAITED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Lets the body at this place end, if it is in flight.
fn let_go(place: &str) {
    let held = hands::held();
    if let Some((id, _)) = held.iter().find(|(_, at)| at == place) {
        hands::let_go(*id);
    }
}

/// One branch finds a price; another warms up and charges what the price is by then. Plays `events`,
/// crashes, and goes on to the end. Whether every charge was of a price that stayed.
fn charges_are_of_the_final_price(events: &[u8]) -> bool {
    let definition = workflow(|ctx: Ctx| async move {
        let price = Rc::new(Cell::new(0));
        let (found, charged) = futures::join!(
            async {
                price.set(work(&ctx, "price").await?);
                work(&ctx, "note").await?;
                Ok::<_, crate::Error>(price.get())
            },
            async {
                work(&ctx, "warm").await?;
                let charge = ctx.step_with("charge", async |step: Step| {
                    CHARGED.with_borrow_mut(|all| all.push(price.get()));
                    Ok(hands::body(step.location(), 0).await)
                });
                charge.await
            },
        );
        charged?;
        found
    });
    CHARGED.take();
    let mut owner = Owner::start(definition);
    owner.drive();
    for event in events {
        match event {
            0 => let_go("price"),
            1 => let_go("warm"),
            _ => owner.ack(),
        }
        owner.drive();
    }
    if owner.gone.is_none() {
        owner.reload();
        owner.finish_all();
    }
    let price = owner.output::<u64>();
    CHARGED.take().iter().all(|at| *at == 0 || *at == price)
}

/// All ways in which two bodies and the answers to commits can come one after another.
fn orders() -> impl Iterator<Item = Vec<u8>> {
    (1..=6).flat_map(|len| {
        let count = 3usize.pow(len);
        (0..count).map(move |n| {
            let digit = |at| (n / 3usize.pow(at) % 3) as u8;
            (0..len).map(digit).collect()
        })
    })
}

/// `charge` used a price that another branch had set; the crash lost that price, and `charge` ran
/// again with another one. What a body finds when it starts must survive any crash.
#[test]
fn no_body_starts_on_what_another_branch_has_taken_and_a_crash_would_lose() {
    for events in orders() {
        assert!(charges_are_of_the_final_price(&events), "{events:?}");
    }
    for broken in [Sabotage::BarrierAtMaking, Sabotage::NoBarrier] {
        let is_caught = sabotage::with(broken, || {
            orders().any(|events| !charges_are_of_the_final_price(&events))
        });
        assert!(is_caught, "{broken:?} is not noticed");
    }
}

/// If a body had to wait for everything that other branches take while its commit is in flight, it
/// would wait for as long as they are busy.
#[test]
fn a_start_waits_for_at_most_two_commits_however_busy_other_branches_are() {
    for seed in 0..4 {
        let dice = &mut Dice::new(seed);
        let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
            let all = ctx.map("all", 0..1_000u64, async |ctx: Ctx, _| {
                let mut sum = 0;
                for name in ["first", "second", "third"] {
                    let (core, made) = (ctx.core().clone(), COMMITS.get());
                    let step = ctx.step_with(name, async move |step: Step| {
                        WAITED.with_borrow_mut(|all| all.push(COMMITS.get() - made));
                        let seen = core.state.borrow().taken;
                        Ok(hands::body(step.location(), seen).await)
                    });
                    sum += step.await?;
                }
                Ok(sum)
            });
            Ok(all.concurrency(50).await?.len())
        }));
        while owner.gone.is_none() {
            COMMITS.set(owner.commits.len());
            owner.drive();
            let held = hands::held();
            for _ in 0..dice.roll(6) {
                if let Some((id, _)) = held.get(dice.roll(held.len().max(1))) {
                    hands::let_go(*id);
                }
            }
            if dice.roll(4) == 0 || held.is_empty() {
                owner.ack();
            }
        }
        assert_eq!(owner.output::<usize>(), 1_000);
        assert_eq!(hands::violation(), None);
        let waited = WAITED.take();
        assert_eq!(waited.len(), 3_000);
        let most = waited.iter().max();
        assert!(most <= Some(&2), "a body has waited for {most:?} commits");
    }
}

#[test]
fn branches_that_are_in_step_share_their_commits() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let all = ctx.map("all", 0..8u64, async |ctx: Ctx, _| {
            for _ in 0..5 {
                work(&ctx, "work").await?;
            }
            Ok(())
        });
        Ok(all.await?.len())
    }));
    owner.settle();
    while owner.gone.is_none() {
        for (id, _) in hands::held() {
            hands::let_go(id);
        }
        owner.settle();
    }
    assert_eq!(commits(&owner), 6, "the start, and one for each step of all");
}

/// The commits of a run of 8 branches of 5 steps, whose bodies and commits end as the dice say.
fn commits_of_branches(seed: u64) -> usize {
    let dice = &mut Dice::new(seed);
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        let all = ctx.map("all", 0..8u64, async |ctx: Ctx, _| {
            for _ in 0..5 {
                // What it has seen may be lost when the barrier is broken.
                let body = async |step: Step| Ok(hands::body(step.location(), 0).await);
                ctx.step_with("work", body).await?;
            }
            Ok(())
        });
        Ok(all.await?.len())
    }));
    while owner.gone.is_none() {
        owner.drive();
        let held = hands::held();
        for (id, _) in &held {
            if dice.roll(6) == 0 {
                hands::let_go(*id);
            }
        }
        if dice.roll(4) == 0 {
            owner.ack();
        }
    }
    commits(&owner)
}

#[test]
fn the_barrier_at_the_start_of_bodies_costs_no_commits() {
    let all = || (0..400).map(commits_of_branches).sum::<usize>();
    let (now, before) = (all(), sabotage::with(Sabotage::BarrierAtMaking, all));
    let cost = now as f64 / before as f64;
    assert!(cost < 1.03, "{now} commits instead of {before}");
}

/// A place under a limit was given to a step that lost its race before its run had heard of the place.
/// The commit that gave the step up took the place back, and its row out of the inbox. From then on
/// every commit that parks the run was refused, since the inbox had moved, with no row that would have
/// told the run how far: it went in circles for ever.
#[test]
fn a_run_parks_though_an_answer_came_that_was_taken_back() {
    let mut owner = Owner::start(workflow(|ctx: Ctx| async move {
        ctx.listen::<String>("end").await?;
        Ok(())
    }));
    owner.drive();
    assert!(owner.in_flight());
    owner.deliver("other", "taken back");
    let back = Commit { consumed: vec![1], ..Commit::of_row(&owner.row(), Patch::Keep) };
    owner.write(Write::Commit(Box::new(back)));
    // Refused, and made again.
    for _ in 0..2 {
        owner.ack();
        owner.drive();
    }
    assert!(!owner.in_flight());
    assert_eq!(owner.row().status, RunStatus::Sleeping);
}
