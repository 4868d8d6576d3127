//! How a connection is made, and driven.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};

use super::error::Trouble;

/// Called with the payload of every notification.
pub(super) type Heard = Arc<dyn Fn(&str) + Send + Sync>;

pub(super) async fn connect(config: &Config, heard: Option<Heard>) -> Result<Client, Trouble> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(drive(connection, heard));
    Ok(client)
}

/// Moves messages until the connection ends.
async fn drive<S, T>(mut connection: Connection<S, T>, heard: Option<Heard>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match std::future::poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(notification))) => {
                if let Some(heard) = &heard {
                    heard(notification.payload());
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(%error, "a connection to PostgreSQL has ended");
                return;
            }
            None => return,
        }
    }
}
