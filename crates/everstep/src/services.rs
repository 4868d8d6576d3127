//! The dependencies that bodies and rollbacks use, by type.

use std::{
    any::{Any, TypeId, type_name},
    collections::HashMap,
    sync::Arc,
};

/// What was given with `provide`: one value of each type.
#[derive(Clone, Default)]
pub(crate) struct Services {
    by_type: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl Services {
    /// Puts a value in. A second one of the same type takes the place of the first.
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.by_type.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// # Panics
    ///
    /// If there is none of this type.
    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> &T {
        let found = self.by_type.get(&TypeId::of::<T>()).and_then(|any| any.downcast_ref::<T>());
        found.unwrap_or_else(|| {
            panic!(
                "the engine has no `{}`; give it one with `.provide(..)` before it starts",
                type_name::<T>()
            )
        })
    }
}
