//! What a program sees of `#[workflow]`, against a stand-in for the library.

#![deny(warnings, missing_docs, missing_debug_implementations, clippy::all)]

extern crate self as everstep;
include!("everstep_shape/mod.rs");

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use everstep_macros::workflow;

/// An input.
#[derive(Debug)]
pub struct Order {
    number: u64,
    customer: String,
}

fn order() -> Order {
    Order { number: 1001, customer: "ada".into() }
}

/// Runs a future that never has to wait.
fn finish<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing here waits"),
    }
}

fn call<W: WorkflowFn>(_: W, input: W::Input) -> Result<W::Output> {
    finish(W::call(Ctx, input))
}

#[workflow]
async fn plain(_ctx: Ctx, order: Order) -> Result<u64> {
    Ok(order.number)
}

#[test]
fn name_version_and_options_have_defaults() {
    assert_eq!(plain.name(), "plain");
    assert_eq!(plain.version(), 1);
    assert_eq!(plain.default_key(&order()), None);
    assert_eq!(plain.options(), WorkflowOptions::new());
    assert_eq!(call(plain, order()).unwrap(), 1001);
}

/// Takes an order from the basket to the post.
#[workflow(
    name = "checkout",
    version = 2,
    accepts = 1..=2,
    key = |order| format!("order-{}", order.number),
    retry = Retry::exponential(5),
    deadline = hours(48),
    pool = "shop",
    on_failure = pause,
    retain = everstep::Retention(everstep::hours(1)),
    describe = "From basket to post",
    owner = "payments",
    labels("tier" = "1", "area" = "shop"),
)]
pub async fn checkout_v2(_ctx: Ctx, _order: Order) -> Result<()> {
    Ok(())
}

#[test]
fn every_argument_reaches_the_engine() {
    assert_eq!(checkout_v2.name(), "checkout");
    assert_eq!(checkout_v2.version(), 2);
    assert_eq!(checkout_v2.default_key(&order()).as_deref(), Some("order-1001"));
    assert_eq!(
        checkout_v2.options().set,
        [
            "accepts 1..=2",
            "retry 5",
            "deadline 172800s",
            "pool shop",
            "on_failure Pause",
            "retain 3600s",
            "describe From basket to post",
            "owner payments",
            "label tier 1",
            "label area shop",
        ]
    );
}

#[workflow(limit = "stripe")]
async fn limited(_ctx: Ctx, _n: u64) -> Result<()> {
    Ok(())
}

#[workflow(limit = "stripe", limit_key = |n| n + 7)]
async fn limited_by_key(_ctx: Ctx, _n: u64) -> Result<()> {
    Ok(())
}

#[test]
fn a_limit_may_have_a_key_made_from_the_input() {
    assert_eq!(limited.options().set, ["limit stripe"]);
    assert_eq!(limited_by_key.options().set, ["limit stripe 7"]);
}

#[workflow]
async fn no_input(_ctx: Ctx) -> Result<String> {
    Ok("done".into())
}

#[test]
fn workflow_without_input_takes_a_unit() {
    assert_eq!(call(no_input, ()).unwrap(), "done");
    assert_eq!(finish(no_input::run(Ctx)).unwrap(), "done");
}

#[workflow(key = |order| &order.customer)]
async fn patterns(_: Ctx, Order { mut number, .. }: Order) -> Result<u64> {
    number += 1;
    Ok(number)
}

#[test]
fn arguments_may_be_patterns_and_keys_may_borrow() {
    assert_eq!(call(patterns, order()).unwrap(), 1002);
    assert_eq!(patterns.default_key(&order()).as_deref(), Some("ada"));
}

fn order_key(order: &Order) -> u64 {
    order.number
}

#[workflow(key = order_key)]
async fn keyed_by_path(_ctx: Ctx, _order: Order) -> Result<()> {
    Ok(())
}

#[workflow(key = |order: &Order| order.number)]
async fn keyed_by_typed_closure(_ctx: Ctx, _order: Order) -> Result<()> {
    Ok(())
}

#[test]
fn key_may_be_any_function_of_the_input() {
    assert_eq!(keyed_by_path.default_key(&order()).as_deref(), Some("1001"));
    assert_eq!(keyed_by_typed_closure.default_key(&order()).as_deref(), Some("1001"));
}

/// A result under another name.
pub type Answer = std::result::Result<Vec<u8>, Error>;

#[workflow]
async fn aliased(mut _ctx: Ctx, text: String) -> Answer {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let number: u8 = text.parse()?;
    _ctx = Ctx;
    Ok(vec![number])
}

#[test]
fn body_may_return_early_and_use_the_question_mark() {
    assert_eq!(call(aliased, "7".into()).unwrap(), [7]);
    assert!(call(aliased, "".into()).unwrap().is_empty());
    assert!(call(aliased, "seven".into()).is_err());
}

#[workflow]
async fn r#match(_ctx: Ctx, _: ()) -> Result<()> {
    Ok(())
}

#[test]
fn raw_name_is_stored_without_its_mark() {
    assert_eq!(r#match.name(), "match");
    assert!(call(r#match, ()).is_ok());
}

#[workflow]
async fn outer(ctx: Ctx, order: Order) -> Result<u64> {
    Ok(plain::run(ctx, order).await? * 2)
}

#[test]
fn workflow_can_run_the_code_of_another() {
    assert_eq!(call(outer, order()).unwrap(), 2002);
}

#[workflow]
async fn chooser(_ctx: Ctx) -> Result<u32> {
    let pick = async || {
        tokio::select! {
            () = std::future::ready(()) => 1,
            () = std::future::ready(()) => 2,
        }
    };
    Ok(pick().await)
}

#[test]
fn select_takes_the_first_ready_branch_every_time() {
    for _ in 0..200 {
        assert_eq!(call(chooser, ()).unwrap(), 1);
    }
}

/// Not to be used any more.
#[workflow]
#[deprecated(note = "use `plain`")]
pub async fn retired(_ctx: Ctx) -> Result<()> {
    Ok(())
}

#[workflow]
#[cfg(any())]
async fn never_there(_ctx: Nonsense) -> Result<()> {
    nonsense
}

#[workflow]
#[allow(unused_variables)]
async fn lenient(ctx: Ctx) -> Result<()> {
    Ok(())
}

#[test]
fn attributes_of_the_function_are_respected() {
    #[expect(deprecated)]
    let name = retired.name();
    assert_eq!(name, "retired");
    assert_eq!(lenient.name(), "lenient");
}

#[test]
fn workflow_may_be_defined_inside_a_function() {
    #[workflow(version = 3)]
    async fn local(_ctx: Ctx, n: u32) -> Result<u32> {
        Ok(n)
    }
    assert_eq!(local.version(), 3);
    assert_eq!(call(local, 5).unwrap(), 5);
}
