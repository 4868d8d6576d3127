//! The `#[workflow]` attribute of everstep.
//!
//! It is sugar: what it writes could be written by hand with a `Workflow` constant and
//! `Engine::register_fn`. Use it through `everstep`, which re-exports it; the code it writes names
//! `::everstep`.
//!
//! The path of an invocation: `arguments` reads what stands in the parentheses, `function`
//! checks that the item is something that can be a workflow, `biased` makes its `select!`s
//! deterministic, and `expand` writes the result.
//!
//! Always true:
//! - The body keeps its tokens and their places, so that errors inside it are shown where they are.
//! - A mistake in an argument is reported at that argument, and the workflow is still defined: one
//!   mistake gives one error.

use proc_macro::TokenStream;

mod arguments;
mod biased;
mod expand;
mod function;

/// Makes a workflow of an `async fn`.
///
/// The function takes a `Ctx` and, if the workflow has an input, one more argument, both by value;
/// it returns `everstep::Result<O>`. What is left of it is a value of the same name, to be
/// registered and started:
///
/// ```standalone_crate
/// # extern crate self as everstep;
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/everstep_shape/mod.rs"));
/// # mod prelude { pub(crate) use crate::{Ctx, Error, Result, Retry, hours}; pub(crate) use everstep_macros::workflow; }
/// # mod doc {
/// use everstep::prelude::*;
///
/// # pub(crate) struct Order { number: u64 }
/// # pub(crate) struct Receipt;
/// /// Takes an order from the basket to the post.
/// #[workflow(version = 2, accepts = 1..=2, key = |order| order.number, deadline = hours(48))]
/// pub(crate) async fn checkout(ctx: Ctx, order: Order) -> Result<Receipt> {
///     // ...
/// #   let (_, _) = (ctx, order);
/// #   Ok(Receipt)
/// }
/// # }
/// # fn main() {
/// # use everstep::{WorkflowFn as _, WorkflowRef as _};
/// # assert_eq!(doc::checkout.name(), "checkout");
/// # assert_eq!(doc::checkout.version(), 2);
/// # let _ = doc::checkout.options();
/// // Engine::open("app.db").register(checkout)
/// // client.start(checkout, order)
/// # }
/// ```
///
/// The value is a unit struct, so neither a module nor, where it is in scope, a variable can have the
/// same name. Its function `run`, as in `checkout::run(ctx, order)`, is the code itself: another workflow may call it to do
/// the same in its own run.
///
/// # Arguments
///
/// All are optional, and each may be given once.
///
/// | argument | what it sets | if it is not given |
/// | --- | --- | --- |
/// | `name = "checkout"` | the name that runs are stored under | the function's name |
/// | `version = 2` | the version that new runs get | 1 |
/// | `accepts = 1..=2` | the versions of runs that this code can go on with; `accepts = 1` and `1..3` are understood too | only `version` |
/// | `key = \|order\| order.number` | the key of a run that is started without one: a function from the input to something with `Display` | no key |
/// | `retry = Retry::exponential(5)` | how often a run is tried as a whole | once |
/// | `deadline = hours(48)` | the time that a run may take | none |
/// | `pool = "gpu"` | the runners that may run it | any |
/// | `on_failure = pause` | what becomes of a run that fails: `fail` it, or `pause` it for a person to look at | `fail` |
/// | `retain = Retention::new().completed(days(30))` | how long its runs are kept after their end | what the engine's settings say |
/// | `describe = "From basket to post"` | a description for tools and people | none |
/// | `owner = "payments"` | whom to ask about it | none |
/// | `limit = STRIPE` | the `Limit` that its runs are under as a whole | none |
/// | `limit_key = \|order\| order.customer` | the key under that limit: a function from the input to something with `Display` | none |
/// | `labels("tier" = "1", "area" = "shop")` | labels for tools | none |
///
/// # `select!`
///
/// A workflow must take the same branch when it is replayed, so every `select!` in the body is made
/// to poll its branches in order: `biased;` is put in front of them, and `futures::select!` becomes
/// `futures::select_biased!`. (A `select!` that was imported from `futures` cannot be told from
/// tokio's; write it with its path, or use `select_biased!`.) A `select!` outside of the body, or
/// hidden inside of another macro, is out of reach: write `biased;` there.
#[proc_macro_attribute]
pub fn workflow(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::workflow(arguments.into(), item.into()).into()
}
