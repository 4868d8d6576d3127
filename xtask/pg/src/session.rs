//! The smallest client that can ask a server something: simple queries, answers as text, no
//! password and no TLS, as our own servers have it.
//!
//! A question and its answer are two calls as well ([`Session::send`], [`Session::receive`]), for
//! what happens in between.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::Error;

/// How long a server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The version of the protocol, 3.0.
const PROTOCOL: i32 = 196_608;

/// The columns of one row, as text.
pub type Row = Vec<Option<String>>;

/// A connection to a server.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    process: u32,
}

impl Session {
    /// Connects and waits until the server is ready for a question.
    ///
    /// # Errors
    ///
    /// If it cannot be reached or refuses, for example because it is still starting.
    pub fn open(
        address: SocketAddr,
        user: &str,
        database: &str,
        application_name: &str,
    ) -> Result<Self, Error> {
        let connect = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = connect().map_err(Error::io(format!("connecting to {address}")))?;
        let mut session = Session { stream, process: 0 };
        session.write(&startup(user, database, application_name))?;
        session.receive()?;
        Ok(session)
    }

    /// The number of the process that serves this connection.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Asks and waits for the answer: the rows of all statements.
    ///
    /// # Errors
    ///
    /// If the server refuses a statement or the connection is lost.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Row>, Error> {
        self.send(sql)?;
        self.receive()
    }

    /// Asks for one value.
    ///
    /// # Errors
    ///
    /// As for [`query`](Session::query), and if there is no value.
    pub fn value(&mut self, sql: &str) -> Result<String, Error> {
        let row = self.query(sql)?.into_iter().next();
        let value = row.and_then(|row| row.into_iter().next()?);
        value.ok_or_else(|| Error::failed(format!("`{sql}` gave no value"), ""))
    }

    /// Sends a question without waiting for its answer.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn send(&mut self, sql: &str) -> Result<(), Error> {
        let mut body = sql.as_bytes().to_vec();
        body.push(0);
        let mut message = vec![b'Q'];
        message.extend(with_length(&body));
        self.write(&message)
    }

    /// Waits for the answer to a question that was sent.
    ///
    /// # Errors
    ///
    /// As for [`query`](Session::query).
    pub fn receive(&mut self) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        let mut refused = None;
        loop {
            let (kind, body) = self.message().map_err(|source| {
                // A server that ends a connection says why, and is then gone.
                let lost = Error::io("the connection to the server was lost")(source);
                refused.take().unwrap_or(lost)
            })?;
            match kind {
                b'D' => rows.push(row(&body).ok_or_else(garbled)?),
                b'E' => refused = Some(refusal(&body)),
                b'R' if body[..] != [0; 4] => {
                    return Err(Error::failed("the server asks for a password", ""));
                }
                b'K' => self.process = integer(&body, 0).ok_or_else(garbled)?.cast_unsigned(),
                b'Z' => return refused.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.stream.write_all(bytes);
        written.map_err(Error::io("the connection to the server was lost"))
    }

    fn message(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = integer(&head, 1).and_then(|length| usize::try_from(length - 4).ok());
        let mut body = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

fn garbled() -> Error {
    Error::failed("the server's answer is not understood", "")
}

fn startup(user: &str, database: &str, application_name: &str) -> Vec<u8> {
    let mut body = PROTOCOL.to_be_bytes().to_vec();
    let parameters =
        [("user", user), ("database", database), ("application_name", application_name)];
    for (name, value) in parameters {
        body.extend(name.bytes().chain([0]).chain(value.bytes()).chain([0]));
    }
    body.push(0);
    with_length(&body)
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let length = i32::try_from(body.len() + 4).expect("a question has less than 2 GiB");
    [&length.to_be_bytes(), body].concat()
}

fn integer(bytes: &[u8], at: usize) -> Option<i32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(i32::from_be_bytes(bytes.try_into().ok()?))
}

fn row(body: &[u8]) -> Option<Row> {
    let columns = u16::from_be_bytes(body.get(..2)?.try_into().ok()?);
    let mut at = 2;
    let mut row = Row::new();
    for _ in 0..columns {
        let length = integer(body, at)?;
        at += 4;
        let Ok(length) = usize::try_from(length) else {
            row.push(None);
            continue;
        };
        let text = String::from_utf8_lossy(body.get(at..at + length)?);
        row.push(Some(text.into_owned()));
        at += length;
    }
    Some(row)
}

/// Reads the fields of an error: a letter, the text, a zero.
fn refusal(body: &[u8]) -> Error {
    let field = |kind: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let field = fields.find(|field| field.first() == Some(&kind));
        String::from_utf8_lossy(field.and_then(|field| field.get(1..)).unwrap_or_default())
            .into_owned()
    };
    Error::Refused { code: field(b'C'), message: field(b'M') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_with_a_null_is_read() {
        let body = [0, 2, 255, 255, 255, 255, 0, 0, 0, 2, b'o', b'n'];
        assert_eq!(row(&body), Some(vec![None, Some("on".to_owned())]));
        assert_eq!(row(&body[..9]), None);
    }

    #[test]
    fn refusal_has_its_code_and_message() {
        let error = refusal(b"SFATAL\0C57P03\0Mthe database system is starting up\0\0");
        assert_eq!(
            error.to_string(),
            "the server answered 57P03: the database system is starting up"
        );
    }
}
