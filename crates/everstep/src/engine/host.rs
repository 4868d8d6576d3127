//! An engine thread as the owner of its runs: what they ask of it in the middle of a poll.

use std::{future::Future, pin::Pin, sync::Arc};

use super::{
    committer::{Pending, Reply},
    mailbox::Mailbox,
    shared::Shared,
};
use crate::{
    cancellation::Cancellation,
    commit::{Emission, Write},
    ctx::emit::RunStreams,
    run::owner::Owner,
    run_id::RunId,
    time::Timestamp,
    workflow::WorkflowOptions,
};

pub(crate) struct Host {
    pub(crate) shared: Arc<Shared>,
    pub(crate) mailbox: Arc<Mailbox>,
}

impl Owner for Host {
    fn lets_bodies_start(&self, epoch: u64) -> bool {
        self.shared.lets_bodies_start(epoch)
    }

    fn lets_bodies_run(&self, epoch: u64) -> bool {
        self.shared.lets_bodies_run(epoch)
    }

    fn new_run_id(&self, now: Timestamp, workflow: &str, version: u32, pool: &str) -> RunId {
        self.shared.new_id(now, workflow, version, pool)
    }

    fn any_run_id(&self, now: Timestamp) -> RunId {
        self.shared.ids.next(now)
    }

    fn home_of(&self, workflow: &str, version: u32) -> Arc<str> {
        self.shared.home_of(workflow, version)
    }

    fn newest_version(&self, workflow: &str) -> Option<u32> {
        let newest = self.shared.registry.newest(workflow)?;
        Some(newest.version)
    }

    fn options_of(&self, workflow: &str, version: u32) -> Option<&WorkflowOptions> {
        let definition = self.shared.registry.find(workflow, version)?;
        Some(&definition.options)
    }

    fn name_body(&self, key: &[u8]) {
        let mut polling = self.mailbox.polling.lock();
        if let Some(polling) = polling.as_mut() {
            let step = polling.step.get_or_insert_default();
            step.clear();
            step.extend_from_slice(key);
        }
    }

    fn body_began(&self, epoch: u64, token: &Cancellation) -> usize {
        self.mailbox.bodies.enter(epoch, token)
    }

    fn body_ended(&self, place: usize) {
        self.mailbox.bodies.leave(place);
    }

    fn emit<'a>(
        &'a self,
        epoch: u64,
        emission: Emission,
        bytes: usize,
        streams: &'a Arc<RunStreams>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let Some(room) = self.shared.emitting.take(bytes).await else {
                return;
            };
            let (owner, run) = (self.mailbox.clone(), emission.run);
            let reply = Reply::Emitter { owner, run, room };
            let write = Write::Emit(Box::new(emission));
            let pending = Pending::under(epoch, write, reply).with(Some(streams.clone()));
            self.shared.queue.push(&self.shared, pending);
        })
    }
}
