//! How a connection is made secure.

use tokio_postgres::{Client, Config, NoTls};

use super::error::Trouble;

pub(super) async fn connect(config: &Config) -> Result<Client, Trouble> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to PostgreSQL has ended");
        }
    });
    Ok(client)
}
