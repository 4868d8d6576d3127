//! The deploy, stage by stage. Every stage waits for what it is about, never for a time.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use everstep::{Client, RunStatus};
use everstep_drill::{Problem, ledger::Ledger, order::Sent};

use crate::{
    load::{self, Load, Starts, Tally, until},
    process::{Runner, Site},
};

/// How many runs of a version must end in a stage before the next.
const RUNS: u64 = 40;

/// How long the runs sleep that are to sleep across the deploy.
const LONG: Duration = Duration::from_secs(15);

/// What has happened.
pub(crate) struct Rolled {
    pub(crate) tallies: [Tally; 2],
    /// Runs that were started by others, of each version.
    pub(crate) children: [u64; 2],
    pub(crate) drained: u64,
    pub(crate) killed: u64,
    /// Runs of version 1 that were due while nobody had it.
    pub(crate) waited_for_a_version: u64,
    /// Runs that were ended by another version than they were started with.
    pub(crate) wrong_version: u64,
    /// Runs that have not ended.
    pub(crate) stuck: u64,
    /// What was not as it should be, in words.
    pub(crate) wrong: Vec<String>,
}

/// Makes the whole deploy.
pub(crate) async fn roll_out(site: &Site) -> Result<Rolled, Problem> {
    let ledger = Ledger::open(&site.ledger())?;
    let mut runners = Vec::new();
    for _ in 0..3 {
        runners.push(Runner::start(site, 1)?);
    }
    let client = open(site).await?;
    let load = Load::new(client.clone(), ledger.clone());
    let mut deploy = Deploy {
        site,
        client,
        ledger,
        load,
        runners,
        drained: 0,
        killed: 0,
        waited_for_a_version: 0,
        begun: Instant::now(),
    };
    deploy.settled().await?;
    let problem = deploy.stages().await.err();
    let mut rolled = deploy.result().await?;
    rolled.wrong.extend(problem.map(|problem| problem.to_string()));
    Ok(rolled)
}

/// A deploy under way.
struct Deploy<'a> {
    site: &'a Site,
    client: Client,
    ledger: Ledger,
    load: Rc<Load>,
    runners: Vec<Runner>,
    drained: u64,
    killed: u64,
    waited_for_a_version: u64,
    begun: Instant,
}

/// How a runner is made to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Drain,
    Kill,
}

impl Deploy<'_> {
    async fn stages(&mut self) -> Result<(), Problem> {
        let load = self.load.clone();
        self.say("three runners of version 1");
        let mut lasting = load.start_lasting(1, LONG).await;
        let drivers = load.begin();
        load.progress(1, RUNS).await?;

        self.say("the first runner is replaced by version 2, which is asked for already");
        load.starts(Starts::Both);
        lasting.extend(load.start_lasting(2, LONG).await);
        self.replace(0, 2, End::Drain).await?;
        load.progress(2, RUNS).await?;
        load.progress(1, RUNS).await?;
        lasting.extend(load.let_go(1, 5).await);
        lasting.extend(load.let_go(2, 5).await);

        self.say("the second is killed and replaced by version 2");
        self.replace(1, 2, End::Kill).await?;
        load.progress(1, RUNS).await?;
        load.progress(2, RUNS).await?;
        lasting.extend(load.let_go(1, 5).await);

        self.say("the third is replaced by version 2: nobody has version 1");
        load.starts(Starts::Two);
        self.replace(2, 2, End::Drain).await?;
        lasting.extend(load.let_go(1, 10).await);
        self.some_wait_for_version_1().await?;
        load.progress(2, RUNS).await?;

        self.say("the deploy is taken back for the first runner");
        self.replace(0, 1, End::Drain).await?;
        load.progress(1, 1).await?;
        load.starts(Starts::Both);
        load.progress(1, RUNS).await?;

        self.say("version 1 ends its runs");
        load.starts(Starts::Two);
        // A start that was under way may be one more that waits.
        let (client, last) = (&self.client, RefCell::new(Vec::new()));
        until("the runs of version 1 to end", async || {
            let gone = load.let_go(1, usize::MAX).await;
            last.borrow_mut().extend(gone);
            Ok(unfinished(client, Some(1)).await? == 0)
        })
        .await?;
        lasting.extend(last.into_inner());
        self.check_runners()?;

        self.say("the last runner of version 1 is replaced");
        self.replace(0, 2, End::Drain).await?;
        load.progress(2, RUNS).await?;
        load.stop();
        for driver in drivers {
            if tokio::time::timeout(load::LIMIT, driver).await.is_err() {
                let what = "a run that the client waits for has not ended".to_owned();
                load.wrong.borrow_mut().push(what);
            }
        }
        lasting.extend(load.let_go(2, usize::MAX).await);
        load.see_to_the_end(lasting).await;
        self.check_runners()
    }

    fn say(&self, what: &str) {
        eprintln!("{:>6.1} s: {what}", self.begun.elapsed().as_secs_f64());
    }

    /// Ends a runner, starts another in its place, and waits until it has its share.
    async fn replace(&mut self, place: usize, version: u32, end: End) -> Result<(), Problem> {
        self.check_runners()?;
        let old = self.runners.remove(place);
        match end {
            End::Drain => {
                old.drain().await?;
                self.drained += 1;
            }
            End::Kill => {
                self.ledger.killed(old.process())?;
                old.kill()?;
                self.killed += 1;
            }
        }
        let new = Runner::start(self.site, version)?;
        self.runners.insert(place, new);
        self.settled().await
    }

    fn check_runners(&mut self) -> Result<(), Problem> {
        self.runners.iter_mut().try_for_each(Runner::check)
    }

    /// Waits until the runners are those that were started, and share all shards.
    async fn settled(&self) -> Result<(), Problem> {
        until("the runners to share the shards", async || {
            let cluster = self.client.cluster().await?;
            let ours = |name: &str| {
                let is = |it: &Runner| name.ends_with(&format!("/{}", it.process()));
                self.runners.iter().any(is)
            };
            let alive = cluster.runners.iter().filter(|runner| runner.alive);
            let alive: Vec<_> = alive.collect();
            let share = alive.iter().all(|it| it.shards > 0 && ours(&it.name));
            let owned = cluster.pools.iter().find(|pool| pool.name == "default");
            let all = owned.is_some_and(|pool| pool.owned == 256);
            Ok(alive.len() == self.runners.len() && share && all)
        })
        .await
    }

    /// Waits until runs of version 1 say that nobody has it, and notes how many do.
    async fn some_wait_for_version_1(&mut self) -> Result<(), Problem> {
        let client = &self.client;
        until("runs to wait for version 1", async || Ok(waiting_for_version_1(client).await? > 0))
            .await?;
        self.waited_for_a_version = waiting_for_version_1(client).await?;
        Ok(())
    }

    async fn result(self) -> Result<Rolled, Problem> {
        let (client, load) = (&self.client, &self.load);
        let mut wrong = load.wrong.borrow().clone();
        let stuck = unfinished(client, None).await?;
        for status in RunStatus::ALL.into_iter().filter(|it| !it.is_terminal()) {
            for info in client.list().status(status).limit(10).await?.runs {
                let (run, version) = (info.id, info.version);
                let waiting = info.waiting.unwrap_or_default();
                let why = client.run::<Sent>(run).why().await?;
                let what = format!(
                    "run {run} of version {version} is {status}: {waiting} (due {:?}, {why:?})",
                    info.available_at
                );
                wrong.push(what);
            }
        }
        for status in [RunStatus::Failed, RunStatus::Cancelled] {
            for info in client.list().status(status).limit(10).await?.runs {
                wrong.push(format!("run {} is {status}: {:?}", info.id, info.failure));
            }
        }
        let of = |workflow, version| client.count().workflow(workflow).version(version);
        let tallies = [load.tally(1), load.tally(2)];
        Ok(Rolled {
            tallies,
            children: [of("parcel", 1).await?, of("parcel", 2).await?],
            drained: self.drained,
            killed: self.killed,
            waited_for_a_version: self.waited_for_a_version,
            wrong_version: load.wrong_version.get(),
            stuck,
            wrong,
        })
    }
}

/// How many runs have not ended, of a version or of all.
async fn unfinished(client: &Client, version: Option<u32>) -> Result<u64, Problem> {
    let mut runs = 0;
    for status in RunStatus::ALL.into_iter().filter(|it| !it.is_terminal()) {
        let count = client.count().status(status);
        runs += match version {
            Some(version) => count.version(version).await?,
            None => count.await?,
        };
    }
    Ok(runs)
}

/// How many runs say that they wait for a runner with version 1, new ones and those under way.
async fn waiting_for_version_1(client: &Client) -> Result<u64, Problem> {
    let says = |waiting: &Option<String>| {
        let waiting = waiting.as_deref().unwrap_or_default();
        waiting.contains("a runner with workflow")
    };
    let mut many = 0;
    for status in RunStatus::ALL.into_iter().filter(|it| !it.is_terminal()) {
        let runs = client.list().status(status).version(1).limit(200).await?.runs;
        many += runs.iter().filter(|run| says(&run.waiting)).count() as u64;
    }
    Ok(many)
}

/// The runners make the tables; until they have, there are none to open.
async fn open(site: &Site) -> Result<Client, Problem> {
    let begun = Instant::now();
    loop {
        let opened = async {
            let client = Client::open(&site.url).await?;
            client.count().await.map(|_| client)
        };
        match opened.await {
            Ok(client) => return Ok(client),
            Err(error) if begun.elapsed() > load::LIMIT => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
