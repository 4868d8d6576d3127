//! One request to a collector, by HTTP/1.1 with or without TLS.
//!
//! The exporter has a thread of its own and sends one request every few seconds, so each has its own
//! connection, and its own small runtime: nothing is left between two of them, and nothing depends on the
//! runtime of the program.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Uri,
    client::conn::http1,
    header::{HOST, HeaderValue},
    http::uri::{PathAndQuery, Scheme},
};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A collector answers with a few bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

#[derive(Default)]
pub(super) struct Post {
    /// Made with the first request that needs it: to read the certificates of the system takes a while.
    tls: Mutex<Option<Arc<ClientConfig>>>,
}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Post").finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for Post {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // Blocks, and may: this is the exporter's own thread, which is in no runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(async {
            let answered = tokio::time::timeout(LIMIT, self.send(request));
            answered.await.map_err(|_| "the collector did not answer")?
        });
        // A name that is still being looked up must not hold it up.
        runtime.shutdown_background();
        answer
    }
}

impl Post {
    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let uri = request.uri().clone();
        let host = uri.host().ok_or("the endpoint names no host")?;
        let named = match uri.port_u16() {
            Some(port) => HeaderValue::from_str(&format!("{host}:{port}"))?,
            None => HeaderValue::from_str(host)?,
        };
        let headers = request.headers_mut();
        headers.entry(HOST).or_insert(named);
        let path = uri.path_and_query().cloned();
        *request.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));

        let stream = TokioIo::new(self.connect(&uri, host).await?);
        let (mut sender, connection) = http1::handshake(stream).await?;
        // It ends with the sender, or with the runtime.
        tokio::spawn(connection);
        let answer = sender.send_request(request.map(Full::new)).await?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    async fn connect(&self, uri: &Uri, host: &str) -> Result<Pin<Box<dyn Stream>>, HttpError> {
        // An IPv6 address has brackets in a URI, and only there.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_secure = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err("the endpoint must begin with `http://` or `https://`".into()),
        };
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        if !is_secure {
            return Ok(Box::pin(stream));
        }
        let name = ServerName::try_from(host.to_owned())?;
        let secured = TlsConnector::from(self.tls()?).connect(name, stream);
        Ok(Box::pin(secured.await?))
    }

    fn tls(&self) -> Result<Arc<ClientConfig>, HttpError> {
        let mut kept = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = &*kept {
            return Ok(config.clone());
        }
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err("no root certificate of the system could be read".into());
        }
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(kept.insert(Arc::new(config)).clone())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
    };

    use rustls::{
        ServerConfig, ServerConnection, StreamOwned,
        pki_types::{CertificateDer, PrivateKeyDer},
    };

    use super::*;

    /// Answers every request over TLS with a certificate of its own for `localhost`.
    fn collector() -> (u16, CertificateDer<'static>) {
        let names = ["localhost".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
        let key = PrivateKeyDer::try_from(key).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .expect("a configuration");
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let connection = ServerConnection::new(config.clone()).expect("a connection");
                let mut stream = StreamOwned::new(connection, stream);
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"spans") && stream.read_exact(&mut byte).is_ok() {
                    request.push(byte[0]);
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone";
                // One that does not trust us has gone.
                _ = stream.write_all(answer);
            }
        });
        (port, certificate)
    }

    fn request(port: u16) -> Request<Bytes> {
        let uri = format!("https://localhost:{port}/v1/traces");
        let request = Request::post(uri).body(Bytes::from_static(b"spans"));
        request.expect("a request")
    }

    #[tokio::test]
    async fn a_collector_is_spoken_to_by_tls_if_its_certificate_is_trusted() {
        let (port, certificate) = collector();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).expect("a root");
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let trusting = Post { tls: Mutex::new(Some(Arc::new(config))) };
        let answer = trusting.send(request(port)).await.expect("an answer");
        assert_eq!((answer.status().as_u16(), &**answer.body()), (200, &b"done"[..]));
        let error = Post::default().send(request(port)).await;
        assert!(error.is_err(), "no root of the system has signed it");
    }
}
