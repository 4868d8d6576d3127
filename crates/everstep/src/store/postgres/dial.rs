//! How a connection is made, to the first of several servers that can be written to, and driven.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::AbortHandle,
};
use tokio_postgres::{AsyncMessage, Client, Config, Connection};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::Trouble;

/// Called with the payload of every notification.
pub(super) type Heard = Arc<dyn Fn(&str) + Send + Sync>;

/// Where the servers of a database are.
#[derive(Clone)]
pub(super) struct Servers {
    /// One server each, in the order of the URL.
    pub(super) configs: Vec<Config>,
    pub(super) tls: MakeRustlsConnect,
    /// The one that was reached last: after a failover the first may be gone for good, and to find
    /// that out again takes its time.
    last: Arc<AtomicUsize>,
}

/// How long one server may take to let us in, if the URL does not say `connect_timeout`.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

impl Servers {
    pub(super) fn new(configs: Vec<Config>, tls: MakeRustlsConnect) -> Servers {
        let last = Arc::new(AtomicUsize::new(0));
        Servers { configs, tls, last }
    }

    /// Tries one after another, each with its own limit: one that is gone without a word must not
    /// use up the time of the next. No limit is longer than `most`.
    pub(super) async fn connect(
        &self,
        heard: Option<Heard>,
        most: Option<Duration>,
    ) -> Result<Line, Trouble> {
        let first = self.last.load(Ordering::Relaxed);
        let mut said: Option<Trouble> = None;
        let mut lost = Vec::new();
        for place in 0..self.configs.len() {
            let place = (first + place) % self.configs.len();
            match self.connect_to(place, heard.clone(), most).await {
                Ok(line) => {
                    self.last.store(place, Ordering::Relaxed);
                    return Ok(line);
                }
                Err(Trouble::Lost(text)) => lost.push(text),
                // A server that says why it does not want us says more than one that is not there.
                Err(trouble) => said = Some(trouble),
            }
        }
        Err(said.unwrap_or_else(|| Trouble::Lost(lost.join("; "))))
    }

    async fn connect_to(
        &self,
        place: usize,
        heard: Option<Heard>,
        most: Option<Duration>,
    ) -> Result<Line, Trouble> {
        let config = &self.configs[place];
        let limit = config.get_connect_timeout().copied();
        let limit = limit.unwrap_or(CONNECT_LIMIT);
        let limit = most.map_or(limit, |most| most.min(limit));
        let connecting = config.connect(self.tls.clone());
        let Ok(connected) = tokio::time::timeout(limit, connecting).await else {
            let text = format!("no connection within {limit:?}");
            return Err(Trouble::Lost(text));
        };
        let (client, connection) = connected?;
        let driver = tokio::spawn(drive(connection, heard));
        Ok(Line { client, driver: driver.abort_handle() })
    }
}

impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Servers").finish_non_exhaustive()
    }
}

/// A connection and the task that drives it. Dropped, it says goodbye once it has its answers.
pub(super) struct Line {
    pub(super) client: Client,
    driver: AbortHandle,
}

impl Line {
    /// Hangs up at once: whoever does not answer is not waited for a second time.
    pub(super) fn cut(&self) {
        self.driver.abort();
    }

    /// Whether it has ended, as far as is known here.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.driver.is_finished()
    }
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
