//! TLS, against a server with a certificate of its own.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, thread};

use everstep_pg::{Instance, fresh_schema};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::*;

/// A root, and a certificate for `host` that comes from it: the root, the certificate and its key.
fn certificates(host: &str) -> [String; 3] {
    let mut root = CertificateParams::new(Vec::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = CertifiedIssuer::self_signed(root, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec![host.to_owned()]).unwrap();
    let server = server.signed_by(&key, &root).unwrap();
    [root.pem(), server.pem(), key.serialize_pem()]
}

/// Gives a server a certificate, without a restart.
fn encrypt(server: &Instance, certificate: &str, key: &str) {
    let data = server.data();
    let owner = fs::metadata(&data).unwrap();
    for (name, text) in [("tls.crt", certificate), ("tls.key", key)] {
        use std::os::unix::fs::{MetadataExt, chown};
        let file = data.join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let mut session = server.session().unwrap();
    for setting in ["ssl_cert_file = 'tls.crt'", "ssl_key_file = 'tls.key'", "ssl = on"] {
        session.query(&format!("ALTER SYSTEM SET {setting}")).unwrap();
    }
    session.query("SELECT pg_reload_conf()").unwrap();
    let begun = Instant::now();
    // A new session has what the server has.
    while server.session().unwrap().value("SHOW ssl").unwrap() != "on" {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", server.log_tail());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a connection with these parameters is encrypted, if it comes about.
fn is_encrypted(server: &Instance, host: &str, parameters: &str) -> Result<bool, String> {
    let (port, schema) = (server.address().port(), fresh_schema());
    let url = format!("postgres://postgres@{host}:{port}/postgres?schema={schema}{parameters}");
    let store = PostgresStore::open(&url).map_err(|error| format!("{error:?}"))?;
    store.migrate().unwrap();
    let said = store.read(|session| {
        let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        session.row(sql, &[], |row| row.get::<bool>(0))
    });
    Ok(said.unwrap().expect("our own session"))
}

fn root(path: &Path) -> String {
    format!("&sslrootcert={}", path.display())
}

#[test]
fn what_the_url_says_about_encryption_is_what_happens() {
    let server = Instance::start_new().unwrap();
    let plain = |parameters: &str| is_encrypted(&server, "127.0.0.1", parameters);
    assert_eq!(plain(""), Ok(false));
    assert_eq!(plain("&sslmode=prefer"), Ok(false));
    // Never in plain text when more was asked for.
    for mode in ["require", "verify-ca&sslrootcert=system", "verify-full"] {
        let refused = plain(&format!("&sslmode={mode}")).unwrap_err();
        assert!(refused.contains("TLS") || refused.contains("root"), "{mode}: {refused}");
    }

    let [known, certificate, key] = certificates("localhost");
    encrypt(&server, &certificate, &key);
    let directory = tempfile::tempdir().unwrap();
    let (roots, others) = (directory.path().join("ours"), directory.path().join("others"));
    fs::write(&roots, known).unwrap();
    fs::write(&others, certificates("localhost")[0].clone()).unwrap();
    let (ours, others) = (root(&roots), root(&others));

    let by_name = |parameters: &str| is_encrypted(&server, "localhost", parameters);
    let by_address = |parameters: &str| is_encrypted(&server, "127.0.0.1", parameters);
    assert_eq!(by_name("&sslmode=disable"), Ok(false));
    for parameters in ["", "&sslmode=prefer", "&sslmode=require"] {
        assert_eq!(by_address(parameters), Ok(true), "{parameters}");
    }
    for mode in ["&sslmode=require", "&sslmode=verify-ca"] {
        assert_eq!(by_address(&format!("{mode}{ours}")), Ok(true), "{mode}");
        assert!(by_address(&format!("{mode}{others}")).is_err(), "{mode}");
    }
    for mode in ["", "&sslmode=verify-full"] {
        assert_eq!(by_name(&format!("{mode}{ours}")), Ok(true), "{mode}");
        let refused = by_address(&format!("{mode}{ours}")).unwrap_err();
        assert!(refused.contains("certificate"), "{mode}: {refused}");
        assert!(by_name(&format!("{mode}{others}")).is_err(), "{mode}");
    }
    // No root of the system is the one that has signed it.
    assert!(by_name("&sslmode=verify-full").is_err());
}
