//! `cluster` and `limits`: who runs what, and what holds them back.

use everstep::{Client, RunnerInfo};
use everstep_server::json;
use serde_json::json;

use crate::{
    Exit,
    output::{Shown, Table, Watch, is_json, span, when},
    trouble::{Outcome, Trouble},
};

pub(crate) async fn run(client: &Client, watch: Watch) -> Outcome {
    watch.run(async || show(client).await).await
}

async fn show(client: &Client) -> Result<Shown, Trouble> {
    let cluster = client.cluster().await?;
    if is_json() {
        return Ok(Shown::Json(json::cluster(cluster)));
    }
    let head = ["RUNNER", "LEASE", "SHARDS", "POOLS", "WEIGHT", "WORKFLOWS"];
    let mut runners = Table::new(head);
    for runner in cluster.runners {
        let lease = match runner.alive {
            true => format!("ends {}", when(runner.lease_until)),
            false => format!("lost {}", when(runner.lease_until)),
        };
        let served = served(&runner);
        runners.row([
            runner.name.into(),
            lease.into(),
            runner.shards.to_string().into(),
            runner.pools.join(", ").into(),
            runner.weight.to_string().into(),
            served.into(),
        ]);
    }
    let mut pools = Table::new(["POOL", "SHARDS WITH A RUNNER"]);
    for pool in cluster.pools {
        pools.row([pool.name.into(), format!("{} of {}", pool.owned, everstep::SHARDS).into()]);
    }
    let (runners, pools) = (runners.text("no runners"), pools.text("no pools"));
    Ok(Shown::Text(format!("{runners}\n{pools}")))
}

fn served(runner: &RunnerInfo) -> String {
    let served = runner.workflows.iter();
    let served = served.map(|it| match (it.accepts.start(), it.accepts.end()) {
        (from, to) if from == to => format!("{} v{}", it.workflow, it.version),
        (from, to) => format!("{} v{} (v{from} to v{to})", it.workflow, it.version),
    });
    let mut served: Vec<String> = served.collect();
    served.sort();
    served.join(", ")
}

pub(crate) async fn limits(client: &Client) -> Outcome {
    let limits = client.limits().await?;
    if is_json() {
        let limits: Vec<_> = limits.into_iter().map(json::limit).collect();
        Shown::Json(json!({"limits": limits})).print();
        return Ok(Exit::Done);
    }
    let head = ["LIMIT", "KEY", "PLACES", "RATE", "IN USE", "WAITING", "NEXT FREE"];
    let mut table = Table::new(head);
    for limit in limits {
        let places = limit.concurrency.map(|it| it.to_string());
        let rate = limit.rate.map(|(count, per)| format!("{count} per {}", span(per)));
        table.row([
            limit.name.into(),
            limit.key.unwrap_or_default().into(),
            places.unwrap_or_default().into(),
            rate.unwrap_or_default().into(),
            limit.in_use.to_string().into(),
            limit.waiting.to_string().into(),
            limit.next_free.map(when).unwrap_or_default().into(),
        ]);
    }
    Shown::Text(table.text("no limits are in use")).print();
    Ok(Exit::Done)
}
