//! `ctx.map`: the same branch for each of many items.

use std::{
    collections::HashSet,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{
    Claim, Ctx,
    composite::{Place, poll_structure},
    join::gather,
    refuse_if,
    step::LocalBox,
};
use crate::{
    error::{Error, Result},
    history::EntryKind,
    settings::SettingsError,
};

type KeyOf<'a, I> = Box<dyn Fn(&I) -> String + 'a>;
type Start<'a, I, T> = Box<dyn FnOnce(Place, Options<'a, I>) -> LocalBox<'a, Result<Vec<T>>> + 'a>;

struct Options<'a, I> {
    concurrency: usize,
    key: Option<KeyOf<'a, I>>,
}

/// The same branch for each of many items. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Map<'a, I, T> {
    pub(crate) claim: Claim,
    options: Option<Options<'a, I>>,
    start: Option<Start<'a, I, T>>,
    running: Option<LocalBox<'a, Result<Vec<T>>>>,
}

impl Ctx {
    /// Runs `code` for each item, all at the same time unless
    /// [`concurrency`](Map::concurrency) says otherwise, and gives the results in the order of
    /// the items.
    ///
    /// An item is known by its index, or by what [`key`](Map::key) makes of it.
    ///
    /// # Errors
    ///
    /// As [`join`](Ctx::join): all items are run to their end first.
    pub fn map<'a, I, T, F>(
        &self,
        name: &str,
        items: impl IntoIterator<Item = I, IntoIter: 'a>,
        code: F,
    ) -> Map<'a, I, T>
    where
        I: 'a,
        T: 'a,
        F: AsyncFn(Ctx, I) -> Result<T> + 'a,
    {
        let items = items.into_iter();
        let start = move |place: Place, options: Options<'a, I>| -> LocalBox<'a, Result<Vec<T>>> {
            Box::pin(map_items(place, items, code, options))
        };
        Map {
            claim: self.claim(EntryKind::Map, name),
            options: Some(Options { concurrency: usize::MAX, key: None }),
            start: Some(Box::new(start)),
            running: None,
        }
    }
}

impl<'a, I, T> Map<'a, I, T> {
    /// How many items are worked on at the same time; they are begun in order.
    pub fn concurrency(mut self, n: usize) -> Self {
        let checked = SettingsError::check_count("concurrency", n as u64);
        refuse_if(&mut self.claim, checked);
        if let Some(options) = &mut self.options {
            options.concurrency = n;
        }
        self
    }

    /// Knows an item by a key of its own instead of its index, so that items may be added and
    /// reordered under running work. Keys must differ.
    pub fn key(mut self, key: impl Fn(&I) -> String + 'a) -> Self {
        if let Some(options) = &mut self.options {
            options.key = Some(Box::new(key));
        }
        self
    }
}

async fn map_items<'a, I, T, F>(
    place: Place,
    items: impl Iterator<Item = I>,
    code: F,
    options: Options<'a, I>,
) -> Result<Vec<T>>
where
    F: AsyncFn(Ctx, I) -> Result<T>,
{
    let (mut names, mut results, mut keys) = (Vec::new(), Vec::new(), HashSet::new());
    let mut items = items.enumerate();
    let mut open = FuturesUnordered::new();
    let code = &code;
    loop {
        while open.len() < options.concurrency {
            let Some((index, item)) = items.next() else {
                break;
            };
            let name = match &options.key {
                Some(key) => key(&item),
                None => index.to_string(),
            };
            crate::name::check_name(&name).map_err(Error::fatal)?;
            if options.key.is_some() && !keys.insert(name.clone()) {
                return Err(Error::fatal(format!(
                    "two items of the map have the key `{name}`; give each a key of its own"
                )));
            }
            let ctx = place.branch(&name);
            names.push(name);
            results.push(None);
            open.push(async move { (index, code(ctx, item).await) });
        }
        match open.next().await {
            Some((index, result)) => results[index] = Some(result),
            None => return gather(names, results),
        }
    }
}

impl<I, T> Future for Map<'_, I, T> {
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let start = this.start.take().zip(this.options.take());
        let start = start.map(|(start, options)| move |place| start(place, options));
        poll_structure(&mut this.claim, start, &mut this.running, cx)
    }
}
