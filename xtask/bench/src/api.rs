//! `api`: requests through HTTP, beside the same calls of the client in this process.
//!
//! Server and clients share the machine, so a request pays for both of its ends.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use everstep::{Client, RunId, prelude::*};
use everstep_server::Server;
use serde_json::json;
use tokio::sync::oneshot;

use crate::{
    Directory, Problem,
    http::Connection,
    line::{Line, median},
};

/// How many clients ask at the same time, each with a connection of its own.
const CLIENTS: usize = 32;

/// How many runs there are before.
const RUNS: u64 = 1_000;

/// How many runs a page has.
const PAGE: usize = 50;

/// How long each measurement takes, and how many are made.
const TIME: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;

#[workflow]
async fn brief(_ctx: Ctx, n: u64) -> Result<u64> {
    Ok(n)
}

/// What is asked for.
#[derive(Clone, Copy)]
enum Call {
    Get,
    List,
    Start,
}

/// How it is asked for.
enum Caller {
    Http(Connection),
    InProcess(Client),
}

impl Caller {
    async fn call(&mut self, call: Call, n: u64, runs: &[RunId]) -> Result<(), Problem> {
        let run = runs[n as usize % runs.len()];
        match (self, call) {
            (Caller::Http(server), Call::Get) => {
                server.get(&format!("/api/v1/runs/{run}")).await?;
            }
            (Caller::InProcess(client), Call::Get) => {
                let run = client.get(run).await?.ok_or("the run is gone")?;
                run.info().await?;
            }
            (Caller::Http(server), Call::List) => {
                server.get(&format!("/api/v1/runs?limit={PAGE}")).await?;
            }
            (Caller::InProcess(client), Call::List) => {
                client.list().limit(PAGE).await?;
            }
            (Caller::Http(server), Call::Start) => {
                let body = json!({"workflow": "brief", "input": n}).to_string();
                server.post("/api/v1/runs", &body).await?;
            }
            (Caller::InProcess(client), Call::Start) => {
                client.start_json("brief", &json!(n)).await?;
            }
        }
        Ok(())
    }
}

/// What was reached.
struct Measured {
    time: Duration,
    times: Vec<Duration>,
}

impl Measured {
    fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.time.as_secs_f64()
    }
}

/// A closed loop: whoever has its answer asks again.
async fn closed_loop(
    callers: Vec<Caller>,
    call: Call,
    runs: &Arc<Vec<RunId>>,
) -> Result<Measured, Problem> {
    let (over, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let callers: Vec<_> = callers
        .into_iter()
        .map(|mut caller| {
            let (over, next, runs) = (over.clone(), next.clone(), runs.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let began = Instant::now();
                    caller.call(call, n, &runs).await?;
                    times.push(began.elapsed());
                }
                Ok::<_, Problem>(times)
            })
        })
        .collect();
    tokio::time::sleep(TIME).await;
    over.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await??);
    }
    let time = began.elapsed();
    Ok(Measured { time, times })
}

/// Both take turns, so that they meet the same weather.
pub(crate) fn api(runtime: &tokio::runtime::Runtime, directory: &Directory) -> Result<(), Problem> {
    let path = directory.fresh("engine.db");
    runtime.block_on(async {
        let engine = Engine::open(&path).register(brief).start().await?;
        let client = engine.client();
        let mut runs = Vec::new();
        for n in 0..RUNS {
            let run = client.start(brief, n).await?;
            runs.push(run.id());
            run.result().await?;
        }
        let listening = Server::new(client.clone()).listen("127.0.0.1:0").await?;
        let address = listening.address();
        let (close, closed) = oneshot::channel::<()>();
        let server = tokio::spawn(listening.run(async move { drop(closed.await) }));
        let measured = measure(address, &client, &Arc::new(runs)).await;
        drop(close);
        server.await??;
        engine.shutdown().await;
        measured
    })
}

async fn measure(
    address: SocketAddr,
    client: &Client,
    runs: &Arc<Vec<RunId>>,
) -> Result<(), Problem> {
    let (mut requests, mut time, mut fields) = (0, Duration::ZERO, Vec::new());
    let calls = [("get", Call::Get), ("list", Call::List), ("start", Call::Start)];
    for (name, call) in calls {
        let (mut http, mut here) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut callers = Vec::new();
            for _ in 0..CLIENTS {
                callers.push(Caller::Http(Connection::open(address).await?));
            }
            http.push(closed_loop(callers, call, runs).await?);
            let callers = (0..CLIENTS).map(|_| Caller::InProcess(client.clone()));
            let measured = closed_loop(callers.collect(), call, runs).await?;
            here.push(measured.per_second());
        }
        http.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
        let mut middle = http.swap_remove(ROUNDS / 2);
        middle.times.sort_unstable();
        let at = |part: usize| {
            let place = middle.times.len() * part / 100;
            middle.times[place].as_secs_f64() * 1e3
        };
        let (per_second, here) = (middle.per_second(), median(&here));
        fields.extend([
            (format!("{name}_per_second"), per_second),
            (format!("{name}_in_process_per_second"), here),
            (format!("{name}_ratio"), per_second / here),
            (format!("{name}_p50_ms"), at(50)),
            (format!("{name}_p99_ms"), at(99)),
        ]);
        requests += middle.times.len() as u64;
        time += middle.time;
    }
    let line = Line::new("api", requests, time).count("clients", CLIENTS as u64);
    let line = fields.iter().fold(line, |line, (name, value)| line.number(name, *value));
    line.print();
    Ok(())
}
