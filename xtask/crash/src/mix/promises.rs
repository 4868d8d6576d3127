//! Deferreds: settled from outside, before, during or after the wait; the first word counts.

use std::{rc::Rc, time::Duration};

use everstep::{ClientError, Deferred, EngineBuilder, Resolved, RunHandle, Token, prelude::*};
use serde::{Deserialize, Serialize};

use super::{Outside, ask, pause, until_ok};
use crate::bodies::Trace;

const ANSWER: Deferred<u64, String> = Deferred::new("answer");

/// How many promises a run makes.
const PROMISES: usize = 4;

/// What a promise came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    Kept(u64),
    Broken(String),
}

pub(super) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder.register(hopes)
}

#[workflow]
pub(crate) async fn hopes(ctx: Ctx, _n: u64) -> Result<Vec<Word>> {
    let trace = Trace::new(&ctx);
    let mut words = Vec::new();
    let promises: Vec<_> = (0..PROMISES).map(|_| ctx.deferred(ANSWER)).collect();
    let tokens: Vec<Token> = promises.iter().map(|promise| promise.token()).collect();
    ctx.set_state("tokens", &tokens)?;
    trace.run(&ctx, "ask").await?;
    for (turn, promise) in promises.into_iter().enumerate() {
        // A look and a wait that runs out leave the promise as it is.
        let looked = match turn % 2 {
            0 => promise.peek().await?,
            _ => promise.timeout(Duration::from_millis(10)).await?,
        };
        let answer = promise.await?;
        if looked.is_some_and(|looked| looked != answer) {
            return Err(Error::fatal("a promise has come to two things"));
        }
        let word = match answer {
            Ok(value) => Word::Kept(value),
            Err(reason) => Word::Broken(reason),
        };
        trace.mix(match &word {
            Word::Kept(value) => *value,
            Word::Broken(reason) => reason.len() as u64,
        });
        words.push(word);
        trace.run(&ctx, "work").await?;
    }
    trace.end(&ctx)?;
    Ok(words)
}

pub(super) async fn drive(outside: Rc<Outside>, part: u64) {
    let random = outside.random("promises", part);
    while !outside.stop.get() {
        let n = outside.number();
        let run = outside.start(hopes, "hopes", n, n).await;
        let tokens = tokens(&run).await;
        let mut expected = Vec::new();
        for token in tokens {
            pause(&random, 0, 80).await;
            let word = match random.next() % 3 {
                0 => Word::Broken(format!("no {}", random.next())),
                _ => Word::Kept(random.next()),
            };
            settle(&outside, n, &token, &word).await;
            expected.push(word);
        }
        let Some(words) = outside.result(&run).await else {
            continue;
        };
        outside.count("deferreds", words.len() as u64);
        if words != expected {
            let what = format!("run {n} was told {words:?}, not {expected:?}");
            outside.broken("deferreds_lost", what);
        }
    }
}

/// The tokens that a run has handed out.
async fn tokens<O>(run: &RunHandle<O>) -> Vec<Token> {
    loop {
        let state = until_ok(async || run.state::<Vec<Token>>("tokens").await).await;
        match state {
            Some(tokens) => return tokens,
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Settles a promise, and then tries to settle it again with something else.
async fn settle(outside: &Outside, n: u64, token: &Token, word: &Word) {
    let resolver = || outside.client.deferred(ANSWER, token);
    let first = until_ok(async || match word {
        Word::Kept(value) => resolver().resolve(value).await,
        Word::Broken(reason) => resolver().reject(reason).await,
    })
    .await;
    if first != Resolved::First {
        let what = format!("run {n}: the first word was {first:?}");
        outside.broken("deferreds_lost", what);
    }
    match ask(async || resolver().resolve(&0).await).await {
        // The run may have taken the last word, and ended.
        Ok(Resolved::Already { .. }) | Err(ClientError::Finished { .. }) => {}
        second => {
            let what = format!("run {n}: the second word was {second:?}");
            outside.broken("deferreds_twice", what);
        }
    }
}
