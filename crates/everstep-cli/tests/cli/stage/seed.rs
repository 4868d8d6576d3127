//! The workflows of golden files, and the acts with which a file has them run.

use std::time::Duration;

use everstep::{Deferred, Engine, RunStatus, Token, prelude::*};
use tokio::runtime::Handle;

use super::{Place, words::Words};

const VERDICT: Deferred<bool> = Deferred::new("verdict");
const PAID: Event<u64> = Event::new("paid");
const MAIL: Queue<String, String> = Queue::new("mail").attempts(1);

const ORPHAN: &str = "INSERT INTO everstep_dedupes (run, key) VALUES (77, 'k')";

#[workflow]
async fn greet(ctx: Ctx, name: String) -> Result<String> {
    ctx.step("greet", async || Ok(format!("hello {name}"))).await
}

#[workflow]
async fn charge(ctx: Ctx, cents: u64) -> Result<u64> {
    ctx.step("reserve", async || Ok(cents)).rollback(async |_, _: u64| Ok(())).await?;
    ctx.step("charge", async || Err(Error::fatal("the card was declined"))).await
}

#[workflow]
async fn nap(ctx: Ctx, days: u64) -> Result<()> {
    ctx.step("lie down", async || Ok(())).await?;
    ctx.sleep("sleep", everstep::days(days)).await.map(drop)
}

#[workflow]
async fn listen(ctx: Ctx, (): ()) -> Result<String> {
    ctx.listen::<String>("word").await
}

#[workflow]
async fn ask(ctx: Ctx, (): ()) -> Result<bool> {
    let verdict = ctx.deferred(VERDICT);
    ctx.set_state("token", &verdict.token())?;
    verdict.await?.map_err(Error::fatal)
}

#[workflow]
async fn invoice(ctx: Ctx, (): ()) -> Result<u64> {
    ctx.event(PAID).matching("order-1").await
}

#[workflow]
async fn tour(ctx: Ctx, stops: u64) -> Result<String> {
    ctx.step("pack", async || Ok(())).await?;
    ctx.repeat("drive", 1, async |ctx, stop: u64| {
        ctx.step("look around", async move || Ok(stop)).await?;
        if stop < stops {
            return Ok(ControlFlow::Continue(stop + 1));
        }
        ctx.listen::<String>("home").await.map(ControlFlow::Break)
    })
    .await
}

#[workflow]
async fn parent(ctx: Ctx, (): ()) -> Result<String> {
    ctx.child(listen, ()).await
}

async fn deliver(_: Job, to: String) -> Result<String> {
    match to.contains('@') {
        true => Ok(to),
        false => Err(Error::fatal("there is no such address")),
    }
}

/// A store on which a golden file acts.
pub(crate) struct Seed<'a> {
    pub(crate) place: &'a Place,
    pub(crate) words: Words,
    runtime: Handle,
    engine: Option<Engine>,
}

impl<'a> Seed<'a> {
    pub(crate) fn new(place: &'a Place, runtime: Handle) -> Seed<'a> {
        let mut words = Words::default();
        words.add("db", &place.db);
        words.add("dir", place.directory.path().to_str().unwrap());
        Seed { place, words, runtime, engine: None }
    }

    /// What a line after `%` says:
    ///
    /// - `engine`: starts an engine. `no engine`: ends it.
    /// - `start <word> <workflow> <input> <key> <status>`: starts a run that is called `[word]`, and waits
    ///   until it has this status.
    /// - `wait <word> <status>`: waits until a run has this status.
    /// - `pause <word>`, `cancel <word>`.
    /// - `token <word>`: lets `[token]` stand for the token of a run.
    /// - `file <name>`: makes a SQLite file with a run that has ended and one that sleeps.
    /// - `foreign <name>`: makes a SQLite file of somebody else's. `text <name>`: makes one of text.
    /// - `postgres`: lets `[postgres]` stand for the URL of an empty schema, and `[schema]` for its name.
    /// - `break`: leaves a row that belongs to no run.
    /// - `put <input> <state>`: puts an item into the queue, and waits until it has this state.
    pub(crate) fn act(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            match words[..] {
                ["engine"] => self.start_engine().await,
                ["no", "engine"] => self.stop_engine().await,
                ["start", word, workflow, input, key, status] => {
                    self.start(word, workflow, input, key, status).await;
                }
                ["wait", word, status] => self.wait(word, status).await,
                ["pause", word] => _ = self.run(word).pause().await.unwrap(),
                ["cancel", word] => _ = self.run(word).cancel().await.unwrap(),
                ["token", word] => {
                    let token = self.run(word).state::<Token>("token").await.unwrap();
                    self.words.add("token", token.unwrap().as_str());
                }
                ["file", name] => self.make_file(name).await,
                ["foreign", name] => {
                    let file = everstep::rusqlite::Connection::open(self.place.file(name));
                    file.unwrap().execute_batch("CREATE TABLE users (name)").unwrap();
                }
                ["text", name] => std::fs::write(self.place.file(name), "some words\n").unwrap(),
                ["postgres"] => {
                    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
                    let (_, schema) = url.split_once("?schema=").expect("a schema of its own");
                    self.words.add("schema", schema);
                    self.words.add("postgres", url);
                }
                ["break"] => self.place.execute(ORPHAN).await,
                ["put", input, state] => self.put(input, state).await,
                _ => panic!("there is no act `{line}`"),
            }
        });
    }

    pub(crate) fn end(mut self) {
        let runtime = self.runtime.clone();
        runtime.block_on(self.stop_engine());
    }

    async fn start_engine(&mut self) {
        let engine = Engine::open(&self.place.db)
            .register(greet)
            .register(charge)
            .register(nap)
            .register(listen)
            .register(ask)
            .register(invoice)
            .register(parent)
            .register(tour)
            .work(MAIL, 1, deliver)
            .start()
            .await
            .unwrap();
        let client = engine.client();
        self.words.add("store", client.store_name());
        for runner in client.cluster().await.unwrap().runners {
            self.words.add("runner", runner.name);
        }
        self.engine = Some(engine);
    }

    async fn make_file(&mut self, name: &str) {
        let engine = Engine::open(self.place.file(name))
            .register(greet)
            .register(nap)
            .start()
            .await
            .unwrap();
        let client = engine.client();
        let done = client.start(greet, "ada".to_owned()).key("old-1");
        let done = done.await.unwrap();
        done.result().await.unwrap();
        self.words.add("old", done.id().to_string());
        let asleep = client.start(nap, 3).key("old-2").await.unwrap();
        while asleep.status().await.unwrap() != RunStatus::Sleeping {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.words.add("old-asleep", asleep.id().to_string());
        engine.shutdown().await;
    }

    async fn stop_engine(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.shutdown().await;
        }
    }

    fn client(&self) -> Client {
        self.engine.as_ref().expect("an engine").client()
    }

    fn run(&self, word: &str) -> RunHandle<serde_json::Value> {
        let id = self.words.spelled_out(&format!("[{word}]"));
        self.client().run(id.parse().unwrap())
    }

    async fn start(&mut self, word: &str, workflow: &str, input: &str, key: &str, status: &str) {
        let input = serde_json::from_str(input).unwrap();
        let mut start = self.client().start_json(workflow, &input).tag("seed", word);
        if key != "-" {
            start = start.key(key);
        }
        let run = start.await.unwrap();
        let id = run.id().to_string();
        self.words.mean(&format!("end-of-{word}"), &id[24..]);
        self.words.add(word, id);
        self.wait(word, status).await;
    }

    async fn wait(&self, word: &str, status: &str) {
        let run = self.run(word);
        let wanted: RunStatus = status.parse().unwrap();
        for _ in 0..3_000 {
            if run.status().await.unwrap() == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let info = run.info().await.unwrap();
        panic!("run {word} is not {status} in time: {info:?}");
    }

    async fn put(&mut self, input: &str, state: &str) {
        let client = self.client();
        let item = client.enqueue(MAIL, &input.to_owned()).await.unwrap();
        self.words.mean("item", item.id().to_string());
        for _ in 0..3_000 {
            let info = item.info().await;
            let found = info.map(|info| format!("{:?}", info.state).to_lowercase());
            // One that has ended is not kept.
            if found.as_deref().unwrap_or("done") == state {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the item is not {state} in time");
    }
}
