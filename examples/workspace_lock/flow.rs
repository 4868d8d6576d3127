//! The workflow: wait for the workspace, read, work in three branches, write, let it go.

use std::{fs, future::Future, io::Write, path::Path, pin::Pin};

use everstep::{ClientError, Deferred, prelude::*};
use serde::{Deserialize, Serialize};

use super::lock::{Claimant, Workspace};

/// Told by the lock manager once the request owns the workspace.
pub(crate) const WORKSPACE_LOCK: Deferred<()> = Deferred::new("WorkspaceLock");

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) workspace: String,
    pub(crate) request: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) summary: String,
}

/// What happens at the end of each body, before its result is recorded: for those who want to see
/// the process die there.
pub(crate) struct Boundary(pub(crate) Box<dyn Fn(&Step) -> Pending + Send + Sync>);

pub(crate) type Pending = Pin<Box<dyn Future<Output = ()> + Send>>;

#[workflow(key = |request| request.request.clone())]
pub(crate) async fn summarize(ctx: Ctx, request: Request) -> Result<Summary> {
    let Request { workspace, request } = &request;
    let lock = ctx.deferred(WORKSPACE_LOCK);
    let token = lock.token();

    let claim = ctx
        .step_with("AcquireWorkspaceLock", async |step| {
            let acquired = Workspace::new(workspace).acquire(request)?;
            let claim = Claim { workspace: workspace.clone(), request: request.clone(), acquired };
            ended(&step, claim).await
        })
        // Whether it holds the lock by then or still waits for it: it must not keep its place.
        .rollback(async |undo, claim: Claim| {
            let_go(undo.get::<Client>(), &claim.workspace, &claim.request).await
        })
        .await?;
    if !claim.acquired {
        ctx.step_with("NotifyLockManager", async |step| {
            let owner = Workspace::new(workspace).enqueue(request, &token)?;
            tell(step.get::<Client>(), workspace, owner).await?;
            ended(&step, ()).await
        })
        .await?;
        // No thread waits here. Once this is over, the lock file names this request: there is
        // nothing to be tried again.
        lock.await?.map_err(Error::fatal)?;
    }

    let files = ctx
        .step_with("ReadInputs", async |step| {
            trace(workspace, "enter", request)?;
            ended(&step, read_inputs(workspace)?).await
        })
        .await?;
    let files = &files;
    let work = |name: &'static str| {
        branch(name, async move |ctx| {
            ctx.step_with("work", async |step| {
                trace(workspace, name, request)?;
                ended(&step, run_branch(name, files)?).await
            })
            .await
        })
    };
    let branches = vec![work("BranchA"), work("BranchB"), work("BranchC")];
    let results = ctx.join("branches", branches).await?;
    let summary =
        ctx.step_with("Aggregate", async |step| ended(&step, results.join(", ")).await).await?;
    ctx.step_with("WriteOutputs", async |step| {
        fs::write(Path::new(workspace).join("summary"), &summary)?;
        ended(&step, ()).await
    })
    .await?;
    ctx.step_with("ReleaseWorkspaceLock", async |step| {
        let_go(step.get::<Client>(), workspace, request).await?;
        ended(&step, ()).await
    })
    .await?;
    Ok(Summary { summary })
}

/// What is known once the lock was asked for: all that it takes to let it go again.
#[derive(Serialize, Deserialize)]
struct Claim {
    workspace: String,
    request: String,
    acquired: bool,
}

async fn ended<T>(step: &Step, value: T) -> Result<T> {
    (step.get::<Boundary>().0)(step).await;
    Ok(value)
}

/// Releases the lock, or leaves the line for it, and tells the next one that it owns it now.
pub(crate) async fn let_go(client: &Client, workspace: &str, request: &str) -> Result<()> {
    let lock = Workspace::new(workspace);
    if lock.look()?.0.as_deref() == Some(request) {
        trace(workspace, "leave", request)?;
    }
    let next = lock.release(request)?;
    tell(client, workspace, next).await
}

/// Tells a request that it owns the lock. One whose run is over does not need it: the next in line
/// gets it.
async fn tell(client: &Client, workspace: &str, owner: Option<Claimant>) -> Result<()> {
    let mut owner = owner;
    while let Some(Claimant { request, token: Some(token) }) = owner {
        let told = client.deferred(WORKSPACE_LOCK, &token).resolve(&()).await;
        owner = match told {
            // Told now, or by somebody who died after it.
            Ok(_) => None,
            Err(
                ClientError::Finished { .. }
                | ClientError::WrongStatus { .. }
                | ClientError::UnknownRun { .. },
            ) => Workspace::new(workspace).release(&request)?,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(())
}

fn read_inputs(workspace: &str) -> Result<Vec<String>> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(workspace)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "txt") {
            inputs.push(path);
        }
    }
    inputs.sort();
    let texts = inputs.into_iter().map(fs::read_to_string);
    Ok(texts.collect::<std::io::Result<_>>()?)
}

fn run_branch(name: &str, files: &[String]) -> Result<String> {
    let text = files.concat();
    if text.contains("unreadable") && name == "BranchB" {
        return Err(Error::fatal("the input is unreadable").with_details(&files.len()));
    }
    let (what, count) = match name {
        "BranchA" => ("letters", text.chars().filter(|c| c.is_alphabetic()).count()),
        "BranchB" => ("words", text.split_whitespace().count()),
        _ => ("lines", text.lines().count()),
    };
    Ok(format!("{name}: {count} {what}"))
}

/// One line for each time that something was done in the workspace.
fn trace(workspace: &str, what: &str, request: &str) -> Result<()> {
    let path = Path::new(workspace).join("trace");
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    Ok(file.write_all(format!("{what} {request}\n").as_bytes())?)
}
