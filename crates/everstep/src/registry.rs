//! The workflows that an engine can run: their functions, by name and version. Registration is
//! explicit.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use crate::{
    ctx::Ctx,
    error::Result,
    name::{NameError, check_name, check_pool},
    run::Definition,
    settings::SettingsError,
    workflow::{WorkflowOptions, WorkflowRef},
};

/// A workflow with its function. `#[workflow]` implements it.
pub trait WorkflowFn: WorkflowRef + Send + Sync + 'static {
    /// How it is run.
    fn options(&self) -> WorkflowOptions {
        WorkflowOptions::new()
    }

    /// Its code.
    fn call(ctx: Ctx, input: Self::Input) -> impl Future<Output = Result<Self::Output>> + 'static;
}

/// The workflows that an engine can run, by name and version.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    by_name: BTreeMap<Arc<str>, Vec<Arc<Definition>>>,
}

impl Registry {
    /// Fails if there is one of this name that serves one of the same versions.
    pub(crate) fn insert(&mut self, definition: Definition) -> Result<(), RegisterError> {
        let range = definition.accepted();
        check_name(&definition.name).map_err(RegisterError::Name)?;
        check_pool(&definition.options.pool).map_err(RegisterError::Name)?;
        let checked = definition.options.check();
        checked.map_err(|problem| RegisterError::Options {
            name: definition.name.to_string(),
            problem,
        })?;
        let versions = self.by_name.entry(definition.name.clone()).or_default();
        for other in versions.iter() {
            let taken = other.accepted();
            if range.start() <= taken.end() && taken.start() <= range.end() {
                return Err(RegisterError::Twice {
                    name: definition.name.to_string(),
                    version: *range.start().max(taken.start()),
                });
            }
        }
        versions.push(Arc::new(definition));
        Ok(())
    }

    /// The code for runs of this workflow and version.
    pub(crate) fn find(&self, name: &str, version: u32) -> Option<&Arc<Definition>> {
        self.by_name.get(name)?.iter().find(|definition| definition.accepts(version))
    }

    /// The newest version of the workflow that is here.
    pub(crate) fn newest(&self, name: &str) -> Option<&Arc<Definition>> {
        self.by_name.get(name)?.iter().max_by_key(|definition| definition.version)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Definition>> {
        self.by_name.values().flatten()
    }
}

/// Why a workflow cannot be registered.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// There is one already.
    #[error(
        "workflow `{name}` is registered twice for version {version}; give one of them another \
             name or version, or narrow what it `accepts`"
    )]
    Twice {
        /// The workflow.
        name: String,
        /// A version that both serve.
        version: u32,
    },
    /// Its name cannot be used.
    #[error("a workflow cannot be registered")]
    Name(#[source] NameError),
    /// A number or a time among its options cannot work.
    #[error("workflow `{name}` cannot be registered")]
    Options {
        /// The workflow.
        name: String,
        /// The option.
        #[source]
        problem: SettingsError,
    },
}
