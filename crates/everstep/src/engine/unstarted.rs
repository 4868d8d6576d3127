//! What an engine can be asked before it starts: for a program that is told by its arguments what to
//! do with it.

use super::EngineBuilder;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use super::StoreChoice;

impl EngineBuilder {
    /// Puts the engine on another SQLite file or PostgreSQL database, named as for
    /// [`Engine::open`](crate::Engine::open).
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub fn at(mut self, place: impl AsRef<std::path::Path>) -> Self {
        self.store = StoreChoice::Named(place.as_ref().to_owned());
        self
    }

    /// The workflows that are registered, each with its newest version, by name.
    pub fn workflows(&self) -> Vec<(String, u32)> {
        let mut newest = std::collections::BTreeMap::new();
        for definition in self.registry.all() {
            let version = newest.entry(definition.name.to_string()).or_insert(0);
            *version = definition.version.max(*version);
        }
        newest.into_iter().collect()
    }
}
