//! The workflow: one agent drafts, one refines, a person looks at it, one finishes.

use std::{fs, io::Write, path::PathBuf, time::Duration};

use everstep::{Deferred, First2, prelude::*};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// What the person says: yes, with notes for the last agent, or no.
pub(crate) const REVIEW_GATE: Deferred<Approval, Rejection> = Deferred::new("ReviewGate");

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Approval {
    pub(crate) notes: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rejection {
    pub(crate) notes: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) task: String,
    /// How long the person may take, in seconds; for ever if it is not said.
    pub(crate) patience: Option<u64>,
}

/// What an agent says while it works. The last message of a good answer is its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    Thinking(String),
    Result(String),
}

/// Why an agent gave nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum AgentError {
    /// Its messages ended without a result.
    MissingResult { agent: String, attempt: u32 },
}

/// Asks an agent, by name and prompt, for the n-th time; gives its messages as they come.
pub(crate) type Ask = dyn Fn(&str, &str, u32) -> mpsc::Receiver<Message> + Send + Sync;

/// Where agents and reviewers are reached.
pub(crate) struct Outside {
    /// The agents.
    pub(crate) ask: Box<Ask>,
    /// Where drafts are put for the reviewer: a line with a token and the draft.
    pub(crate) outbox: PathBuf,
}

#[workflow(key = |task| task.task.clone())]
pub(crate) async fn agent_review(ctx: Ctx, task: Task) -> Result<String> {
    let Task { task, patience } = task;
    let draft = run_agent(&ctx, "DraftAgent", format!("Draft a response:\n{task}")).await?;
    let refined = run_agent(&ctx, "RefineAgent", format!("Improve this:\n{draft}")).await?;

    let gate = ctx.deferred(REVIEW_GATE);
    let token = gate.token();
    ctx.step_with("NotifyReviewer", async |step| {
        let line = format!("{} {}\n", token.as_str(), refined.replace('\n', " "));
        let path = &step.get::<Outside>().outbox;
        let mut outbox = fs::OpenOptions::new().create(true).append(true).open(path)?;
        Ok(outbox.write_all(line.as_bytes())?)
    })
    .await?;

    let review = match patience {
        None => gate.await?,
        Some(limit) => {
            let limit = ctx.sleep("patience", seconds(limit));
            match ctx.race("review", (gate, limit)).await? {
                First2::A(review) => review,
                First2::B(_) => return Ok("Expired: nobody has reviewed it".to_owned()),
            }
        }
    };
    match review {
        Ok(Approval { notes }) => {
            let prompt = format!("Finalize with review notes:\n{notes}\n\nDraft:\n{refined}");
            run_agent(&ctx, "FinalizeAgent", prompt).await
        }
        Err(Rejection { notes }) => Ok(format!("Rejected: {notes}")),
    }
}

/// Asks an agent, passes on what it says, and gives its result.
async fn run_agent(ctx: &Ctx, agent: &str, prompt: String) -> Result<String> {
    ctx.step_with(agent, async |step| {
        let attempt = step.attempt();
        let mut messages = (step.get::<Outside>().ask)(agent, &prompt, attempt);
        let mut result = None;
        while let Some(message) = messages.recv().await {
            step.emit("messages", &message).await?;
            if let Message::Result(text) = message {
                result = Some(text);
            }
        }
        result.ok_or_else(|| {
            let missing = AgentError::MissingResult { agent: agent.to_owned(), attempt };
            Error::msg(format!("{agent} gave no result")).with_details(&missing)
        })
    })
    .retry(Retry::fixed(3, Duration::from_millis(200)))
    .await
}

/// The messages of an agent that is a script.
pub(crate) fn scripted(messages: Vec<Message>) -> mpsc::Receiver<Message> {
    let (sender, receiver) = mpsc::channel(messages.len().max(1));
    for message in messages {
        // There is room for all of them.
        _ = sender.try_send(message);
    }
    receiver
}
