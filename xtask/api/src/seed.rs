//! An engine with something of everything in it.

use everstep::{ClientError, Deferred, Engine, IfFinished, Queue, Role, Token, prelude::*};
use serde_json::{Value as Json, json};

use crate::Problem;

/// How many there are of each.
const EACH: usize = 40;

const REVIEW: Deferred<Json, Json> = Deferred::new("review");
const MAILS: Queue<Json, Json> = Queue::new("mails");

#[workflow]
async fn greet(ctx: Ctx, name: Json) -> everstep::Result<String> {
    ctx.step("greet", async move || Ok(format!("hello {name}"))).await
}

/// Answers whatever it is asked, for ever.
#[workflow]
async fn oracle(ctx: Ctx, _input: Json) -> everstep::Result<()> {
    loop {
        let question = ctx.receive::<Json>("question").await?;
        question.reply(&json!({"asked": question.body}))?;
    }
}

#[workflow]
async fn secretive(ctx: Ctx, order: Json) -> everstep::Result<Json> {
    let review = ctx.deferred(REVIEW);
    ctx.set_state("token", &review.token())?;
    let said = order.clone();
    ctx.step_with("charge", async move |step| {
        step.emit("said", &said).await?;
        Ok(said.clone())
    })
    .await?;
    review.await?.map_err(|reason| Error::fatal(reason.to_string()))
}

#[workflow]
async fn broken(ctx: Ctx) -> everstep::Result<()> {
    ctx.step("break", async || -> everstep::Result<()> { Err(Error::fatal("it is broken")) }).await
}

#[workflow]
async fn parent(ctx: Ctx) -> everstep::Result<String> {
    ctx.child(greet, json!("child")).await
}

/// What there is.
pub(crate) struct Seeded {
    pub(crate) engine: Engine,
    /// Runs that nobody deletes.
    pub(crate) kept: Vec<String>,
    pub(crate) live: Vec<String>,
    pub(crate) pausable: Vec<String>,
    pub(crate) oracles: Vec<String>,
    pub(crate) waiting: Vec<String>,
    pub(crate) paused: Vec<String>,
    pub(crate) ended: Vec<String>,
    pub(crate) failed: Vec<String>,
    pub(crate) tokens: Vec<String>,
    pub(crate) rejectable: Vec<String>,
    pub(crate) token_names: Vec<String>,
    pub(crate) schedules: Vec<String>,
    pub(crate) items: Vec<u64>,
    pub(crate) letters: Vec<u64>,
    /// Letters that may be dropped.
    pub(crate) dropped: Vec<u64>,
}

/// An engine in memory, and what is in it.
pub(crate) async fn seeded() -> Result<Seeded, Problem> {
    let engine = Engine::in_memory()
        .register(greet)
        .register(oracle)
        .register(secretive)
        .register(broken)
        .register(parent)
        .start()
        .await?;
    let client = engine.client();
    let mut seeded = Seeded {
        engine,
        kept: Vec::new(),
        live: Vec::new(),
        pausable: Vec::new(),
        oracles: Vec::new(),
        waiting: Vec::new(),
        paused: Vec::new(),
        ended: Vec::new(),
        failed: Vec::new(),
        tokens: Vec::new(),
        rejectable: Vec::new(),
        token_names: Vec::new(),
        schedules: Vec::new(),
        items: Vec::new(),
        letters: Vec::new(),
        dropped: Vec::new(),
    };
    for no in 0..EACH {
        seed_runs(&client, no, &mut seeded).await?;
        let item = client.enqueue(MAILS, &json!({"no": no})).await?;
        seeded.items.push(item.id().to_string().parse()?);
        let name = format!("token-{no}");
        client.tokens().create(&name, Role::Read).await?;
        seeded.token_names.push(name);
        let name = format!("schedule-{no}");
        client.schedule(&name, greet, json!("tick")).every(hours(1)).await?;
        seeded.schedules.push(name);
    }
    client.publish_json("paid", &json!(1)).await?;
    for letter in client.dead_letters().limit(1_000).await?.letters {
        match letter.no % 2 {
            0 => seeded.letters.push(letter.no),
            _ => seeded.dropped.push(letter.no),
        }
    }
    Ok(seeded)
}

async fn seed_runs(client: &Client, no: usize, seeded: &mut Seeded) -> Result<(), Problem> {
    let customer = if no.is_multiple_of(2) { "ada" } else { "bob" };
    let ended =
        client.start(greet, json!(no)).key(format!("k{no}")).tag("customer", customer).await?;
    ended.result().await?;
    let late = ended.send("late", &json!(no)).if_finished(IfFinished::DeadLetter);
    late.await?;
    let many = client.start(greet, json!(no)).key(format!("many-{no}")).await?;
    many.result().await?;
    let deleted = client.start(greet, json!(no)).await?;
    deleted.result().await?;
    seeded.ended.push(deleted.id().to_string());
    let failed = client.start(broken, ()).await?;
    // That it fails is what it is for.
    let _ = failed.result().await;
    seeded.failed.push(failed.id().to_string());
    let keyed = client.start(oracle, json!(null)).key(format!("k{no}")).await?;
    seeded.oracles.push(keyed.id().to_string());
    let paused = client.start(oracle, json!(null)).await?;
    paused.pause().await?;
    seeded.paused.push(paused.id().to_string());
    for runs in [&mut seeded.live, &mut seeded.pausable] {
        let live = client.start(oracle, json!(null)).await?;
        runs.push(live.id().to_string());
    }
    let waiting = client.start(secretive, json!({"no": no})).key(format!("k{no}")).await?;
    // Each deferred is settled in one way only.
    match no % 3 {
        0 => seeded.tokens.push(token_of(&waiting).await?),
        1 => seeded.rejectable.push(token_of(&waiting).await?),
        _ => seeded.waiting.push(waiting.id().to_string()),
    }
    let whole = client.start(parent, ()).await?;
    whole.result().await?;
    for run in [ended.id(), keyed.id(), waiting.id(), whole.id()] {
        seeded.kept.push(run.to_string());
    }
    Ok(())
}

/// The token that a run has handed out.
async fn token_of(run: &RunHandle<Json>) -> Result<String, ClientError> {
    loop {
        if let Some(token) = run.state::<Token>("token").await? {
            return Ok(token.as_str().to_owned());
        }
        tokio::task::yield_now().await;
    }
}
