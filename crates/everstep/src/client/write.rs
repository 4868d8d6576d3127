//! Writes by the committer, and which answer belongs to which write.

use super::{Client, ClientError};
use crate::commit::{
    Controlled, Deleted, Delivered, Imported, LetterDone, Outcome, Published, QueueDone, Refusal,
    ScheduleOutcome, Settled, Started, Write,
};

/// The answer to a kind of write.
pub(super) trait Answer: Sized {
    /// `None` if this is the answer to another kind of write.
    fn from_outcome(outcome: Outcome) -> Option<Self>;
}

macro_rules! answers {
    ($($variant:ident($answer:ty)),+ $(,)?) => {$(
        impl Answer for $answer {
            fn from_outcome(outcome: Outcome) -> Option<Self> {
                match outcome {
                    Outcome::$variant(answer) => Some(answer),
                    _ => None,
                }
            }
        }
    )+};
}

answers! {
    Started(Started),
    Delivered(Delivered),
    Controlled(Controlled),
    Settled(Settled),
    Queue(QueueDone),
    Scheduled(ScheduleOutcome),
    Imported(Imported),
    Deleted(Deleted),
    Published(Published),
    Letter(LetterDone),
}

/// A write that may be refused.
impl<T: Answer> Answer for Result<T, Refusal> {
    fn from_outcome(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Refused(refusal) => Some(Err(refusal)),
            outcome => T::from_outcome(outcome).map(Ok),
        }
    }
}

impl Client {
    /// Says why nothing can be done any more, if the engine or the client has stopped.
    pub(super) fn check_open(&self) -> Result<(), ClientError> {
        if let Some(error) = self.shared.stopped() {
            return Err(error.into());
        }
        match self.shared.closing() {
            true => Err(ClientError::Closed),
            false => Ok(()),
        }
    }

    /// Hands a write to the committer, waits until it is durable and gives its answer.
    pub(super) async fn ask<T: Answer>(&self, write: Write) -> Result<T, ClientError> {
        T::from_outcome(self.write(write).await?).ok_or(ClientError::Closed)
    }

    /// As [`ask`](Client::ask), with whatever the answer is.
    pub(super) async fn write(&self, write: Write) -> Result<Outcome, ClientError> {
        self.check_open()?;
        let answer = self.shared.hand_in(write);
        Ok(answer.await.map_err(|_| ClientError::Closed)??)
    }

    /// Hands writes to the committer together and waits until they are durable. One answer for
    /// each, in order.
    pub(super) async fn write_all(&self, writes: Vec<Write>) -> Result<Vec<Outcome>, ClientError> {
        self.check_open()?;
        let mut outcomes = Vec::with_capacity(writes.len());
        for answer in self.shared.hand_in_all(writes.into_iter()) {
            outcomes.push(answer.await.map_err(|_| ClientError::Closed)??);
        }
        Ok(outcomes)
    }
}
