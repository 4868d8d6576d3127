//! Plain Rust concurrency over durable operations: the same values, the same branch, no body
//! twice, wherever the process dies.

use std::sync::Arc;

use futures::{StreamExt, stream::FuturesUnordered};

use super::{
    hands,
    owner::{Owner, workflow},
    program::Dice,
};
use crate::{
    ctx::{Ctx, step::Step},
    error::{Error, Result},
    run::Definition,
};

/// A step whose body ends when the test says so; logs what it gives.
async fn work(ctx: &Ctx, name: &str) -> Result<u64> {
    let core = ctx.core().clone();
    let step = ctx.step_with(name, async move |step: Step| {
        let seen = core.state.borrow().taken;
        Ok(hands::body(step.location(), seen).await)
    });
    let value = step.await?;
    hands::log(ctx.core().state.borrow().taken, format!("{name}={value}"));
    Ok(value)
}

/// Lets the bodies end in this order, each as soon as it is in flight; what is left ends in the
/// order of its start.
fn play(owner: &mut Owner, order: &[&str]) {
    owner.settle();
    for place in order {
        if hands::held().iter().any(|(_, at)| at == place) {
            owner.finish(place);
        }
    }
    owner.finish_all();
}

/// Runs it hot and from every crash point: what was seen before the crash is seen again, and no
/// body that had ended starts again.
fn check(definition: &Arc<Definition>, order: &[&str]) -> String {
    let mut hot = Owner::start(definition.clone());
    hot.record();
    play(&mut hot, order);
    let (output, log) = (hot.output::<String>(), hot.view().log);
    for point in hot.take_points() {
        let mut cold = Owner::after(&point, definition.clone(), &hot);
        let status = cold.row().status;
        if status.is_terminal() {
            continue;
        }
        cold.drive();
        let seen = cold.view().log;
        assert!(point.view.log == seen, "{:?} became {seen:?}", point.view.log);
        play(&mut cold, order);
        let again = cold.view().log;
        assert!(again.starts_with(&point.view.log), "{again:?} after {:?}", point.view.log);
        let names = |log: &[(u64, String)]| -> Vec<String> {
            let name =
                |(_, line): &(u64, String)| line.split('=').next().unwrap_or_default().to_owned();
            log.iter().map(name).collect()
        };
        assert_eq!(names(&again), names(&log), "another order after the crash");
        assert_eq!(hands::violation(), None);
        _ = cold.output::<String>();
    }
    let mut whole = Owner::load(&hot, definition.clone());
    whole.run().drive();
    assert_eq!(whole.view().log, log, "a replay of the whole run");
    assert_eq!(hands::starts(), Vec::<String>::new());
    output
}

#[test]
fn two_branches_of_a_plain_join_may_use_the_same_name() {
    let twice = workflow(|ctx: Ctx| async move {
        let (a, b) = futures::join!(
            async {
                let first = work(&ctx, "charge").await?;
                Ok::<_, Error>((first, work(&ctx, "charge").await?))
            },
            async {
                let first = work(&ctx, "charge").await?;
                Ok::<_, Error>((first, work(&ctx, "charge").await?))
            },
        );
        let (a, b) = (a?, b?);
        // Which branch has made the third depends on which of the first two ended first.
        Ok(format!("{}", (a.0 < b.0) == (a.1 < b.1)))
    });
    for order in [
        ["charge", "charge#2", "charge#3", "charge#4"],
        ["charge#2", "charge", "charge#4", "charge#3"],
        ["charge#2", "charge#3", "charge", "charge#4"],
        ["charge", "charge#3", "charge#2", "charge#4"],
    ] {
        check(&twice, &order);
    }
}

#[test]
fn a_biased_select_takes_the_same_branch_although_its_loser_has_finished_since() {
    let race = workflow(|ctx: Ctx| async move {
        let mut slow = Box::pin(work(&ctx, "slow"));
        let first = tokio::select! {
            biased;
            _ = &mut slow => "slow",
            _ = work(&ctx, "fast") => "fast",
        };
        hands::log(0, format!("first is {first}"));
        if first == "fast" {
            work(&ctx, "between").await?;
            // The loser ends while nobody polls it; by now it would win a biased `select!`.
            slow.await?;
        }
        work(&ctx, "last").await?;
        Ok(first.to_owned())
    });
    assert_eq!(check(&race, &["fast", "slow", "between", "last"]), "fast");
    assert_eq!(check(&race, &["fast", "between", "slow", "last"]), "fast");
    assert_eq!(check(&race, &["slow", "last"]), "slow");
}

#[test]
fn a_dropped_loser_that_had_finished_does_not_come_back() {
    let race = workflow(|ctx: Ctx| async move {
        let first = tokio::select! {
            biased;
            _ = async { work(&ctx, "a").await?; work(&ctx, "b").await } => "two",
            _ = work(&ctx, "c") => "one",
        };
        work(&ctx, "last").await?;
        Ok(first.to_owned())
    });
    assert_eq!(check(&race, &["a", "c", "last"]), "one");
    assert_eq!(check(&race, &["a", "b", "last"]), "two");
    assert_eq!(check(&race, &["c", "last"]), "one");
}

#[test]
fn a_try_join_whose_other_arm_failed_first_fails_the_same_way() {
    let both = workflow(|ctx: Ctx| async move {
        let failing = async {
            work(&ctx, "check").await?;
            Err::<(), Error>(Error::msg("refused"))
        };
        let paying = async {
            work(&ctx, "hold").await?;
            work(&ctx, "pay").await?;
            Ok(())
        };
        let ended = match futures::try_join!(paying, failing) {
            Ok(_) => "both".to_owned(),
            Err(error) => error.to_string(),
        };
        work(&ctx, "last").await?;
        Ok(ended)
    });
    assert_eq!(check(&both, &["check", "last"]), "refused");
    assert_eq!(check(&both, &["hold", "check", "last"]), "refused");
    assert_eq!(check(&both, &["hold", "pay", "check", "last"]), "refused");
}

/// Steps in a `FuturesUnordered`: which comes out first is what decides.
fn unordered(count: usize) -> Arc<Definition> {
    workflow(move |ctx: Ctx| async move {
        let names: Vec<String> = (0..count).map(|i| format!("s{i}")).collect();
        let mut open: FuturesUnordered<_> = names.iter().map(|name| work(&ctx, name)).collect();
        let mut out = Vec::new();
        while let Some(value) = open.next().await {
            out.push(value?.to_string());
        }
        Ok(out.join(","))
    })
}

#[test]
fn all_finishing_orders_of_five_unordered_steps_are_replayed() {
    let five = unordered(5);
    let mut orders = vec![vec![]];
    for n in 0..5 {
        let longer = orders.iter().flat_map(|order: &Vec<usize>| {
            let insert = move |at| {
                let mut order = order.clone();
                order.insert(at, n);
                order
            };
            (0..=order.len()).map(insert)
        });
        orders = longer.collect();
    }
    assert_eq!(orders.len(), 120);
    for order in orders {
        let places: Vec<String> = order.iter().map(|i| format!("s{i}")).collect();
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        check(&five, &places);
    }
}

#[test]
fn a_thousand_orders_of_a_hundred_unordered_steps_are_replayed() {
    let hundred = unordered(100);
    for seed in 0..1_000 {
        let dice = &mut Dice::new(seed);
        let mut owner = Owner::start(hundred.clone());
        owner.settle();
        let mut order = Vec::new();
        while owner.gone.is_none() {
            // Several may end before the run is polled again.
            for _ in 0..1 + dice.roll(12) {
                let held = hands::held();
                if held.is_empty() {
                    break;
                }
                let (id, place) = &held[dice.roll(held.len())];
                hands::let_go(*id);
                order.push(place.clone());
            }
            owner.drive();
            if dice.roll(3) > 0 || hands::held().is_empty() {
                owner.ack();
            }
            if dice.roll(40) == 0 {
                owner.settle();
                if owner.gone.is_none() {
                    let seen = owner.view().log;
                    owner.reload();
                    owner.drive();
                    assert_eq!(owner.view().log, seen, "seed {seed}");
                }
            }
        }
        assert_eq!(hands::violation(), None, "seed {seed}");
        let (output, log) = (owner.output::<String>(), owner.view().log);
        let mut again = Owner::load(&owner, hundred.clone());
        again.run().drive();
        assert_eq!(again.view().log, log, "seed {seed}");
        assert_eq!(output.split(',').count(), 100, "seed {seed}");
    }
}
