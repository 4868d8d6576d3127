//! The end of a schema that was made for a while.

use super::{PostgresStore, StoreError, conn::quoted};

impl PostgresStore {
    /// Drops the schema of this store with everything in it, for programs that have made one for
    /// themselves, as a benchmark does. No engine and no client may be on it any more.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, or does not let us.
    #[doc(hidden)]
    pub fn drop_schema(self) -> Result<(), StoreError> {
        let sql = format!("DROP SCHEMA {} CASCADE", quoted(&self.options.schema));
        let conn = self.connect(self.limits())?;
        conn.batch(sql).map_err(|trouble| self.error(trouble))
    }
}
