//! Tags: what runs are found by, changed from outside.

use super::{ClientError, RunHandle, named};
use crate::commit::{Controlled, Refusal, Tagging, Target, Write};

impl<O> RunHandle<O> {
    /// Sets a tag, in the place of all tags of this name; also of a run that has ended. `false` if
    /// it was so already.
    ///
    /// Runs are found by their tags with [`List::tag`](crate::List::tag) and in bulk; workflow code
    /// sets its own with [`Ctx::set_tag`](crate::Ctx::set_tag).
    ///
    /// # Errors
    ///
    /// If there is no such run, the name or value cannot be used, or the run has 100 other tags.
    pub async fn tag(&self, name: &str, value: &str) -> Result<bool, ClientError> {
        named("a tag's name", name)?;
        named("a tag's value", value)?;
        self.change_tag(name, Some(value)).await
    }

    /// Removes all tags of this name. `false` if there was none.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn untag(&self, name: &str) -> Result<bool, ClientError> {
        self.change_tag(name, None).await
    }

    async fn change_tag(&self, name: &str, value: Option<&str>) -> Result<bool, ClientError> {
        let tagging = Tagging {
            target: Target::Id(self.id),
            name: name.to_owned(),
            value: value.map(str::to_owned),
        };
        match self.client.ask(Write::Tag(Box::new(tagging))).await? {
            Ok(Controlled::Unknown) => Err(ClientError::unknown_run(self.id)),
            Ok(controlled) => Ok(matches!(controlled, Controlled::Done { .. })),
            Err(Refusal::TagsFull { limit }) => Err(ClientError::TagsFull { run: self.id, limit }),
            Err(_) => Err(ClientError::Closed),
        }
    }
}
