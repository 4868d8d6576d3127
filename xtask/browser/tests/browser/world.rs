//! An engine with lively runs on a file, and the servers before it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use everstep::{IfFinished, RunStatus, Token as GateToken, prelude::*};
use everstep_server::{Role, Server, Token};
use serde_json::{Value as Json, json};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    Problem,
    page::until,
    samples::{
        MAILS, THUMBNAILS, approval, checkout, crowd, deposit, echo, heartbeat, import, invoice,
        order, report, schedules, subscription, transfer,
    },
};

/// What a reader, an operator and an admin of the guarded server have.
pub(crate) const READER: &str = "token of a reader, made of dice";
pub(crate) const ADMIN: &str = "token of an admin, made of dice";

/// What a browser would run if anything of it were taken for markup.
pub(crate) const PAYLOAD: &str = "<img src=x onerror=\"window.__xss=1\"><script>window.__xss=2</script>\
     \"'><svg onload=window.__xss=3>{{7*7}}${7*7}";

pub(crate) struct World {
    pub(crate) client: Client,
    engine: Engine,
    /// The server that asks for no token.
    pub(crate) open: String,
    /// The one that does.
    pub(crate) guarded: String,
    /// Runs that tests only look at.
    pub(crate) shown: Shown,
    pub(crate) directory: PathBuf,
    serving: Vec<Serving>,
}

/// Runs that tests only look at.
pub(crate) struct Shown {
    /// Ended well, with branches and a retry.
    pub(crate) done: String,
    /// Failed in its last step.
    pub(crate) failed: String,
    /// Has children, and waits for one of them.
    pub(crate) parent: String,
    /// Waits for a reviewer, and has unread messages.
    pub(crate) waiting: String,
    /// Emits for ever.
    pub(crate) emitting: String,
    /// Is full of what must stay text.
    pub(crate) payload: String,
    /// Has a message that must stay text.
    pub(crate) unread: String,
}

/// A server that answers.
pub(crate) struct Serving {
    end: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Serving {
    /// Has a server answer at a free port: its address.
    pub(crate) async fn start(server: Server) -> Result<(String, Serving), Problem> {
        let listening = server.listen("127.0.0.1:0").await?;
        let address = format!("http://{}", listening.address());
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(listening.run(async {
            // It also ends when nobody can say so any more.
            let _ = ended.await;
        }));
        Ok((address, Serving { end, task }))
    }

    pub(crate) async fn end(self) {
        let _ = self.end.send(());
        self.task.abort();
        let _ = self.task.await;
    }
}

impl World {
    pub(crate) async fn new(below: &Path) -> Result<World, Problem> {
        let directory = below.join(format!("browser-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let engine = Engine::open(directory.join("orders.db"))
            .register(checkout)
            .register(approval)
            .register(import)
            .register(invoice)
            .register(report)
            .register(subscription)
            .register(transfer)
            .register(deposit)
            .register(heartbeat)
            .register(echo)
            .register(crowd)
            .start()
            .await?;
        engine.work(THUMBNAILS, 1, async |_, image: Json| -> Result<Json> {
            match image["broken"] == json!(true) {
                true => Err(Error::fatal("the image ends in the middle of a line")),
                false => Ok(json!({"width": 100})),
            }
        })?;
        let client = engine.client();
        let shown = fill(&client).await?;
        let (open, first) = Serving::start(Server::new(client.clone())).await?;
        let server = Server::new(client.clone())
            .token(Token::new("rita", Role::Read, READER))
            .token(Token::new("ada", Role::Admin, ADMIN));
        let (guarded, second) = Serving::start(server).await?;
        Ok(World { client, engine, open, guarded, shown, directory, serving: vec![first, second] })
    }

    /// Waits until a run has this status.
    pub(crate) async fn until_status(
        &self,
        run: &str,
        status: RunStatus,
    ) -> Result<everstep::RunInfo, Problem> {
        let handle = self.run(run)?;
        let ask = || async { Ok(handle.info().await?) };
        let what = format!("run {run} to be {status:?}");
        until(&what, ask, |info: &everstep::RunInfo| info.status == status).await
    }

    /// A run by its id.
    pub(crate) fn run(&self, id: &str) -> Result<RunHandle<Json>, Problem> {
        Ok(self.client.run(id.parse()?))
    }

    pub(crate) async fn end(self) {
        for serving in self.serving {
            serving.end().await;
        }
        // Some bodies never end; they are dropped with the program.
        let end = self.engine.shutdown();
        let _ = tokio::time::timeout(Duration::from_secs(2), end).await;
        let _ = fs::remove_dir_all(&self.directory);
    }
}

async fn fill(client: &Client) -> Result<Shown, Problem> {
    schedules(client).await?;
    let mut orders = Vec::new();
    for id in 1..=24 {
        let order = order(id);
        let region = if id % 3 == 0 { "eu" } else { "us" };
        let start = client
            .start(checkout, order.clone())
            .key(format!("order-{id}"))
            .tag("customer", &order.customer)
            .tag("region", region);
        orders.push(start.await?);
    }
    let expense = json!({"who": "Grace", "what": "a conference in Lisbon", "cents": 84_000,
        "days": [3, 4, 5], "hotel": {"name": "Miradouro", "nights": 2, "paid": false}});
    let waiting = client.start(approval, expense).key("expense-7").await?;
    waiting.send("reminder", &json!({"from": "ada"})).await?;
    waiting.send("reminder", &json!({"from": "bob", "urgent": true})).await?;
    let emitting = client.start(import, 1_000_000).key("catalogue").await?;
    let parent = client.start(report, 3).key("report-of-may").await?;
    let payload = client.start(echo, PAYLOAD.to_owned()).key(PAYLOAD).tag("text", PAYLOAD).await?;
    let unread = client.start(approval, json!(PAYLOAD)).await?;
    unread.send(PAYLOAD, &json!({ PAYLOAD: PAYLOAD })).await?;
    for no in 0..3 {
        let failed = client.start(invoice, no).await?;
        // That it fails is what it is for.
        let _ = failed.result().await;
        client.start(transfer, 100 + no).await?;
        let customer = format!("customer-{no}");
        client.start(subscription, customer).await?;
        client.enqueue(MAILS, &json!({"to": "ada@example.org", "no": no})).await?;
        client.enqueue(THUMBNAILS, &json!({"image": no, "broken": true})).await?;
        client.enqueue(THUMBNAILS, &json!({"image": no})).await?;
    }
    let later = client.enqueue(MAILS, &json!({"to": "grace@example.org"}));
    later.delay(hours(6)).await?;
    in_every_status(client).await?;
    let done = &orders[1];
    done.result().await?;
    let late = done.send("parcel arrived", &json!({"door": 4}));
    late.if_finished(IfFinished::DeadLetter).await?;
    let late = done.send("refund", &json!({"cents": 370}));
    late.if_finished(IfFinished::DeadLetter).await?;
    client.publish_json("paid", &json!({"cents": 900})).key("nobody").await?;
    // It fails.
    let _ = orders[12].result().await;
    until_waits(&waiting).await?;
    let _ = payload.result().await;
    Ok(Shown {
        done: done.id().to_string(),
        failed: orders[12].id().to_string(),
        parent: parent.id().to_string(),
        waiting: waiting.id().to_string(),
        emitting: emitting.id().to_string(),
        payload: payload.id().to_string(),
        unread: unread.id().to_string(),
    })
}

/// Pending, paused, cancelled and rolling back; the others have all the rest.
async fn in_every_status(client: &Client) -> Result<(), Problem> {
    let soon = client.start(heartbeat, ()).key("tomorrow").after(days(1));
    soon.await?;
    let nobody = client.start_json("billing", &json!({"month": "May"}));
    nobody.key("without a runner").await?;
    let paused = client.start(approval, json!({"what": "a desk"})).await?;
    paused.pause().await?;
    let cancelled = client.start(approval, json!({"what": "a car"})).await?;
    cancelled.cancel().await?;
    let undone = client.start(deposit, ()).key("deposit-1").await?;
    let waits = |status: &RunStatus| *status == RunStatus::Sleeping;
    let status = || async { Ok(undone.status().await?) };
    until("a deposit that waits", status, waits).await?;
    undone.cancel().with_rollback().await?;
    Ok(())
}

/// Waits until a run has handed out its token.
pub(crate) async fn until_waits(run: &RunHandle<Json>) -> Result<String, Problem> {
    let ask = || async { Ok(run.state::<GateToken>("token").await?) };
    let token = until("a token", ask, Option::is_some).await?;
    let token = token.map(|token| token.as_str().to_owned());
    token.ok_or_else(|| "there is no token".into())
}
