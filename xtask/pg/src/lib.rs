//! A throw-away PostgreSQL for tests and drills, and what stands in front of one.
//!
//! - [`Instance`] is a server of its own: found or installed, on a free port, in a directory of its
//!   own, stopped and removed when it is dropped or when this process is gone, however it went.
//!   It can be restarted, killed, followed by a synchronous standby, and promoted.
//! - [`Pgbouncer`] pools transactions in front of an instance.
//! - [`Proxy`] holds back bytes and drops connections in front of an instance.
//! - [`TripCounter`] counts the round trips to an instance.
//! - [`Session`] is the smallest client that can ask a server something.
//! - [`find_or_install`] is how all of them come onto the machine, and other programs that tests need.
//! - [`database_url`] is what the tests of a process connect to, and [`fresh_url`] a schema in there for
//!   one of them.
//!
//! Always true: nothing here is skipped. Where there is no PostgreSQL and none may be installed, the
//! error says what to do.

mod account;
mod binaries;
mod debian;
mod directory;
mod error;
mod instance;
mod pgbouncer;
mod proxy;
mod session;
mod settings;
mod shared;
mod standby;
mod trips;

pub use debian::{find_or_install, on_path};
pub use error::{Error, shown};
pub use instance::{Instance, Shutdown};
pub use pgbouncer::Pgbouncer;
pub use proxy::{Connection, Proxy, Which};
pub use session::{Row, Session};
pub use settings::Settings;
pub use shared::{DATABASE_URL, database_url, fresh_schema, fresh_url};
pub use standby::url_of_all;
pub use trips::TripCounter;
