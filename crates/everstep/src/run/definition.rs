//! The code of a workflow, without its types: what a run is begun with.

use std::{future::Future, ops::RangeInclusive, pin::Pin, sync::Arc};

use serde::Serialize;

use super::Halt;
use crate::{
    codec::{Value, payload},
    ctx::Ctx,
    error::{Error, Failure, FailureKind, Result},
    pool::Serves,
    workflow::WorkflowOptions,
};

/// The future of a run: its output as a payload, or why it has none.
pub(crate) type RunFuture = Pin<Box<dyn Future<Output = Result<Vec<u8>, RunEnd>>>>;

/// How the code of a run can end without an output.
pub(crate) enum RunEnd {
    /// With an error.
    Error(Error),
    /// It cannot go on with this code.
    Halt(Halt),
}

type Begin = dyn Fn(Ctx, Vec<u8>) -> RunFuture + Send + Sync;

/// One registered workflow.
pub(crate) struct Definition {
    pub(crate) name: Arc<str>,
    pub(crate) version: u32,
    pub(crate) options: WorkflowOptions,
    begin: Box<Begin>,
}

impl Definition {
    pub(crate) fn new<I, O, F, R>(
        name: &str,
        version: u32,
        options: WorkflowOptions,
        function: F,
    ) -> Definition
    where
        I: Value,
        O: Value,
        F: Fn(Ctx, I) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O>> + 'static,
    {
        let function = Arc::new(function);
        // Nothing of the user's code, not even decoding, runs before the first poll: there a panic
        // is caught.
        let begin = move |ctx: Ctx, input: Vec<u8>| -> RunFuture {
            let (function, core) = (function.clone(), ctx.core().clone());
            Box::pin(async move {
                let codecs = &core.env.settings.codecs;
                let input = codecs.read(&input, Some(core.facts.id));
                let input = input.map_err(|error| {
                    RunEnd::Halt(Halt::unreadable("its input".to_owned(), error))
                })?;
                let output = function(ctx, input).await.map_err(RunEnd::Error)?;
                let limit = core.env.settings.payload_bytes_max;
                let output = encode_output(&output, limit).map_err(RunEnd::Error)?;
                codecs.seal(output, None).map_err(|error| {
                    RunEnd::Halt(Halt::Unsealable {
                        what: "its output".to_owned(),
                        error: error.to_string(),
                    })
                })
            })
        };
        Definition { name: Arc::from(name), version, options, begin: Box::new(begin) }
    }

    /// Calls the code. The future has not been polled yet.
    pub(crate) fn begin(&self, ctx: Ctx, input: Vec<u8>) -> RunFuture {
        (self.begin)(ctx, input)
    }

    /// How a runner that has it says so.
    pub(crate) fn serves(&self) -> Serves {
        Serves {
            workflow: self.name.to_string(),
            version: self.version,
            accepts: self.accepted(),
            pool: self.options.pool.to_string(),
        }
    }

    /// The versions of runs that it may run.
    pub(crate) fn accepted(&self) -> RangeInclusive<u32> {
        let own = self.version..=self.version;
        self.options.accepts.clone().unwrap_or(own)
    }

    pub(crate) fn accepts(&self, version: u32) -> bool {
        match &self.options.accepts {
            Some(versions) => versions.contains(&version),
            None => version == self.version,
        }
    }
}

fn encode_output<O: Serialize>(output: &O, limit: usize) -> Result<Vec<u8>> {
    let bytes = payload::to_vec(output).map_err(Error::fatal)?;
    if bytes.len() > limit {
        let mut failure = Failure::new(
            FailureKind::Limit,
            format!(
                "the output has {} bytes, and the limit for a payload is {limit}; return less, or \
                 raise `payload_bytes_max`",
                bytes.len()
            ),
        );
        failure.attempts = 1;
        return Err(Error::recorded(failure, Vec::new()));
    }
    Ok(bytes)
}
