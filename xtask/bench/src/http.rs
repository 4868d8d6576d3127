//! The smallest HTTP/1.1 client that can keep a connection: it costs the machine little beside what is
//! measured.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::Problem;

/// A connection that is kept.
pub(crate) struct Connection {
    stream: TcpStream,
    /// What was read and belongs to no answer yet.
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Connection, Problem> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let buffer = Vec::with_capacity(64 * 1024);
        Ok(Connection { stream, buffer })
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Vec<u8>, Problem> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.ask(&request).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Result<Vec<u8>, Problem> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.ask(&request).await
    }

    /// Sends a request: the body of its answer, which is an error unless it says that all went well.
    async fn ask(&mut self, request: &str) -> Result<Vec<u8>, Problem> {
        self.stream.write_all(request.as_bytes()).await?;
        let head = loop {
            if let Some(end) = self.buffer.windows(4).position(|it| it == b"\r\n\r\n") {
                let head = self.buffer.drain(..end + 4).collect();
                break Head::read(head)?;
            }
            self.more().await?;
        };
        while self.buffer.len() < head.length {
            self.more().await?;
        }
        let body: Vec<u8> = self.buffer.drain(..head.length).collect();
        match head.status {
            200..300 => Ok(body),
            status => Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into()),
        }
    }

    async fn more(&mut self) -> Result<(), Problem> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err("the server has closed the connection".into()),
            _ => Ok(()),
        }
    }
}

/// What an answer begins with.
#[derive(Debug, PartialEq)]
struct Head {
    status: u16,
    length: usize,
}

impl Head {
    fn read(head: Vec<u8>) -> Result<Head, Problem> {
        let head = String::from_utf8(head)?;
        let mut lines = head.lines();
        let first = lines.next().unwrap_or_default();
        let status = first.split(' ').nth(1).unwrap_or_default().parse()?;
        let mut headers = lines.filter_map(|line| line.split_once(':'));
        let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let Some((_, length)) = length else {
            return Err(format!("an answer without a length: {head}").into());
        };
        let length = length.trim().parse()?;
        Ok(Head { status, length })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn head_of_an_answer_is_its_status_and_length() {
        let head = b"HTTP/1.1 201 Created\r\nX-A: b\r\nContent-Length:  12\r\n\r\n";
        let read = Head::read(head.to_vec()).expect("a head");
        let wanted = Head { status: 201, length: 12 };
        assert_eq!(read, wanted);
        let without = Head::read(b"HTTP/1.1 200 OK\r\n\r\n".to_vec());
        assert!(without.is_err(), "{without:?}");
    }

    #[tokio::test]
    async fn answers_are_told_apart_however_they_come() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = async {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut request = [0; 1024];
            let read = stream.read(&mut request).await.expect("a request");
            assert!(request[..read].starts_with(b"GET /a HTTP/1.1\r\n"));
            for part in ["HTTP/1.1 200 OK\r\nconte", "nt-length: 3\r\n", "\r\none"] {
                stream.write_all(part.as_bytes()).await.expect("a client");
            }
            let read = stream.read(&mut request).await.expect("a request");
            assert!(request[..read].ends_with(b"\r\ncontent-length: 2\r\n\r\n{}"));
            let refused = "HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\nno";
            stream.write_all(refused.as_bytes()).await.expect("answer");
        };
        let client = async {
            let mut connection = Connection::open(address).await.expect("a server");
            assert_eq!(connection.get("/a").await.expect("an answer"), b"one");
            let refused = connection.post("/b", "{}").await;
            let error = refused.expect_err("it was refused").to_string();
            assert_eq!(error, "409: no");
        };
        tokio::join!(server, client);
    }
}
