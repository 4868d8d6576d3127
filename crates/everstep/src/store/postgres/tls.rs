//! TLS: what `sslmode` and `sslrootcert` of a URL mean, by rustls.
//!
//! | `sslmode` | encrypted | certificate |
//! |---|---|---|
//! | `disable` | never | |
//! | `prefer` (without any) | if the server can | not looked at |
//! | `require` | always | not looked at; with `sslrootcert` as `verify-ca` |
//! | `verify-ca` | always | must come from a root that we know |
//! | `verify-full` | always | must come from such a root, and be for the host of the URL |
//!
//! Roots are those in the file `sslrootcert`, or else those of the system (`sslrootcert=system` says
//! so). A file without a mode means `verify-full`, and is refused beside a mode that would not use it.
//!
//! Always true: where more than `prefer` was said, nothing is sent in plain text.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// What a URL says about TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    mode: Option<Mode>,
    roots: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// How a certificate is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Nothing,
    Root,
    RootAndName,
}

impl Terms {
    /// Takes one parameter of a URL; whether it is about TLS.
    pub(super) fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "sslmode" => {
                self.mode = Some(match value {
                    "disable" => Mode::Disable,
                    "prefer" => Mode::Prefer,
                    "require" => Mode::Require,
                    "verify-ca" => Mode::VerifyCa,
                    "verify-full" => Mode::VerifyFull,
                    // Not what it is: it may be a part of a password that is not escaped.
                    _ => {
                        let must = "`sslmode` must be `disable`, `prefer`, `require`, `verify-ca` or \
                                    `verify-full`";
                        return Err(must.to_owned());
                    }
                });
            }
            "sslrootcert" => self.roots = Some(value.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What the driver is told.
    pub(super) fn ssl_mode(&self) -> SslMode {
        match (self.mode, &self.roots) {
            (Some(Mode::Disable), _) => SslMode::Disable,
            (Some(Mode::Prefer), _) | (None, None) => SslMode::Prefer,
            (Some(Mode::Require | Mode::VerifyCa | Mode::VerifyFull), _) | (None, Some(_)) => {
                SslMode::Require
            }
        }
    }

    fn check(&self) -> Check {
        match (self.mode, &self.roots) {
            (Some(Mode::Disable | Mode::Prefer), _) | (None, None) => Check::Nothing,
            (Some(Mode::Require), None) => Check::Nothing,
            (Some(Mode::Require), Some(_)) | (Some(Mode::VerifyCa), _) => Check::Root,
            (Some(Mode::VerifyFull), _) | (None, Some(_)) => Check::RootAndName,
        }
    }

    /// What makes connections on these terms.
    pub(super) fn connector(&self) -> Result<MakeRustlsConnect, String> {
        if let (Some(Mode::Disable | Mode::Prefer), Some(_)) = (self.mode, &self.roots) {
            let text = "`sslrootcert` needs `sslmode=require` or more: with the mode that is given, \
                        it would not be used";
            return Err(text.to_owned());
        }
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match self.check() {
            Check::Nothing => Arc::new(Unchecked(Arc::clone(&provider))),
            check => {
                let roots = Arc::new(self.read_roots()?);
                let builder = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
                let by_root = builder.build().map_err(|error| error.to_string())?;
                match check {
                    Check::RootAndName => by_root,
                    _ => Arc::new(ByRoot(by_root)),
                }
            }
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(MakeRustlsConnect::new(config))
    }

    fn read_roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        let Some(path) = self.roots.as_deref().filter(|path| *path != "system") else {
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = roots.add_parsable_certificates(found.certs);
            if added == 0 {
                let why = found.errors.first().map(ToString::to_string);
                return Err(format!(
                    "no root certificate of the system could be read ({}); name a file with \
                     `sslrootcert`",
                    why.unwrap_or_else(|| "there is none".to_owned())
                ));
            }
            return Ok(roots);
        };
        let wrong = |what: String| format!("the root certificates in `{path}`: {what}");
        let certificates = CertificateDer::pem_file_iter(path);
        for certificate in certificates.map_err(|error| wrong(error.to_string()))? {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            let added = roots.add(certificate);
            added.map_err(|error| wrong(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(wrong("there is none".to_owned()));
        }
        Ok(roots)
    }
}

/// Takes every certificate: encrypted against those who listen, not against those who pretend.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Asks where a certificate comes from, and not for which host it is.
#[derive(Debug)]
struct ByRoot(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for ByRoot {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is looked at last: all else is well.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(pairs: &[(&str, &str)]) -> Terms {
        let mut terms = Terms::default();
        for (name, value) in pairs {
            assert_eq!(terms.take(name, value), Ok(true), "{name}");
        }
        terms
    }

    #[test]
    fn plain_text_is_only_for_those_who_did_not_ask_for_more() {
        let root = ("sslrootcert", "/a");
        for (pairs, mode, check) in [
            (&[][..], SslMode::Prefer, Check::Nothing),
            (&[("sslmode", "disable")], SslMode::Disable, Check::Nothing),
            (&[("sslmode", "prefer")], SslMode::Prefer, Check::Nothing),
            (&[("sslmode", "require")], SslMode::Require, Check::Nothing),
            (&[("sslmode", "require"), root], SslMode::Require, Check::Root),
            (&[("sslmode", "verify-ca")], SslMode::Require, Check::Root),
            (&[("sslmode", "verify-full")], SslMode::Require, Check::RootAndName),
            (&[root], SslMode::Require, Check::RootAndName),
        ] {
            let terms = terms(pairs);
            assert_eq!((terms.ssl_mode(), terms.check()), (mode, check), "{pairs:?}");
        }
    }

    #[test]
    fn a_root_that_would_not_be_used_is_refused() {
        for mode in ["disable", "prefer"] {
            let terms = terms(&[("sslmode", mode), ("sslrootcert", "/a")]);
            assert!(terms.connector().is_err(), "{mode}");
        }
        assert!(Terms::default().take("sslmode", "allow").is_err());
        let nowhere = terms(&[("sslrootcert", "/no/such/file")]);
        assert!(nowhere.connector().is_err());
    }
}
