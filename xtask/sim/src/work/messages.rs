//! Waits for messages of several names, for several messages at once, and for requests.

use std::{fmt, time::Duration};

use everstep::{Message, prelude::*, testing::simulation::Rng};
use serde::{Deserialize, Serialize};

use super::{
    draw::CHANNELS,
    program::{Op, Program},
};

/// A wait for messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HearOp {
    pub(crate) id: u32,
    /// The channels; any message if there are none.
    channels: Vec<u32>,
    /// Up to so many messages at once.
    batch: Option<usize>,
    /// Whether each is replied to.
    replies: bool,
    /// Without one, a message is sent in the end.
    pub(crate) timeout: Option<Duration>,
}

/// A message, as it was heard.
pub(crate) struct Heard {
    pub(crate) channel: u32,
    pub(crate) body: String,
}

impl HearOp {
    fn draw(rng: &mut Rng, id: u32, lease: Duration) -> HearOp {
        let channels = (0..CHANNELS as u32).filter(|_| rng.below(2) == 0).collect();
        HearOp {
            id,
            channels,
            batch: (rng.below(2) == 0).then(|| 1 + rng.below(3) as usize),
            replies: rng.below(3) > 0,
            timeout: (rng.below(3) > 0).then(|| Duration::from_millis(1) + rng.up_to(lease * 3)),
        }
    }

    /// The channels that end the wait.
    pub(crate) fn channels(&self) -> &[u32] {
        match self.channels.is_empty() {
            true => &[0],
            false => &self.channels,
        }
    }

    /// What has come; nothing if the time ran out.
    pub(crate) async fn perform(&self, ctx: &Ctx) -> Result<Vec<Heard>> {
        let name = format!("hear-{}", self.id);
        let names = self.channels.iter().map(|channel| format!("channel-{channel}"));
        let messages = if self.replies || self.batch.is_none() {
            let wait = ctx.receive::<String>(&name).names(names);
            match (self.batch, self.timeout) {
                (Some(most), Some(timeout)) => wait.batch(most).timeout(timeout).await?,
                (Some(most), None) => wait.batch(most).await?,
                (None, Some(timeout)) => wait.timeout(timeout).await?.into_iter().collect(),
                (None, None) => vec![wait.await?],
            }
        } else {
            // Of their bodies alone the names are not known, so it is one channel.
            let channel = self.channels()[0];
            let wait = ctx.listen::<String>(&name).names([format!("channel-{channel}")]);
            let wait = wait.batch(self.batch.unwrap_or(1));
            let bodies = match self.timeout {
                Some(timeout) => wait.timeout(timeout).await?,
                None => wait.await?,
            };
            return Ok(bodies.into_iter().map(|body| Heard { channel, body }).collect());
        };
        let mut heard = Vec::new();
        for message in messages {
            if self.replies {
                message.reply(&reply(ctx.run_id(), &message.body))?;
            }
            heard.push(heard_of(message));
        }
        Ok(heard)
    }
}

fn heard_of(message: Message<String>) -> Heard {
    let channel = message.name.strip_prefix("channel-").and_then(|it| it.parse().ok());
    Heard { channel: channel.unwrap_or_default(), body: message.body }
}

/// What a run replies to a message.
pub(crate) fn reply(run: everstep::RunId, message: &str) -> String {
    format!("{run} has heard {message}")
}

/// In some lives, programs have such waits, and clients send requests. Whether it is one of them.
pub(crate) fn draw(rng: &mut Rng, programs: &mut [Program], lease: Duration) -> bool {
    if rng.below(3) > 0 {
        return false;
    }
    for program in programs {
        for _ in 0..rng.below(3) {
            let op = HearOp::draw(rng, program.next_id(), lease);
            program.insert(rng, Op::Hear(op));
        }
    }
    true
}

impl fmt::Display for HearOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hear-{} channels {:?}", self.id, self.channels)?;
        if let Some(batch) = self.batch {
            write!(f, ", up to {batch}")?;
        }
        if self.replies {
            write!(f, ", replies")?;
        }
        match self.timeout {
            Some(timeout) => write!(f, ", for {timeout:?}"),
            None => Ok(()),
        }
    }
}
