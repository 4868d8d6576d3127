//! A deferred: a promise by name, with the types of its value and of its rejection.

use std::marker::PhantomData;

/// A promise that somebody outside of a run keeps or breaks: a person who reviews, a payment that
/// is confirmed, a job in another system.
///
/// Both sides name it by a constant, so that both have the same types:
///
/// ```
/// use everstep::{Deferred, Resolved, Token, prelude::*};
///
/// const REVIEW: Deferred<u32, String> = Deferred::new("review");
///
/// #[workflow]
/// async fn publish(ctx: Ctx, text: String) -> Result<String> {
///     let review = ctx.deferred(REVIEW);
///     let token = review.token();
///     ctx.step("ask", async || Ok(println!("{text}? answer with {}", token.as_str()))).await?;
///     # ctx.set_state("token", &token)?;
///     match review.await? {
///         Ok(stars) => Ok(format!("{text}: {stars} stars")),
///         Err(reason) => Ok(format!("not published: {reason}")),
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = Engine::in_memory().register(publish).start().await?;
/// # let client = engine.client();
/// # let run = client.start(publish, "Hello".to_owned()).await?;
/// # let token = loop {
/// #     if let Some(token) = run.state::<Token>("token").await? { break token; }
/// #     tokio::task::yield_now().await;
/// # };
/// // Whoever has the token, in any process, as long as the run lives. The first answer counts; a
/// // second one is told so with `Resolved::Already`.
/// assert_eq!(client.deferred(REVIEW, &token).resolve(&5).await?, Resolved::First);
/// assert_eq!(run.result().await?, "Hello: 5 stars");
/// # engine.shutdown().await;
/// # Ok(()) }
/// ```
pub struct Deferred<T, E = String> {
    name: &'static str,
    types: PhantomData<fn() -> (T, E)>,
}

impl<T, E> Deferred<T, E> {
    /// The deferred of this name.
    pub const fn new(name: &'static str) -> Deferred<T, E> {
        Deferred { name, types: PhantomData }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T, E> Clone for Deferred<T, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, E> Copy for Deferred<T, E> {}

impl<T, E> std::fmt::Debug for Deferred<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Deferred({})", self.name)
    }
}
