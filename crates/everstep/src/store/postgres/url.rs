//! The URL of a database: what PostgreSQL's own tools take, and a little more.

use std::{str::FromStr, time::Duration};

use tokio_postgres::{
    Config,
    config::{Host, TargetSessionAttrs},
};

use super::{PostgresOptions, dial::Servers, tls};
use crate::store::StoreError;

/// A host that vanishes without a word is found out about after this time, and these questions.
const SILENCE: Duration = Duration::from_secs(10);
const QUESTION: Duration = Duration::from_secs(5);
const QUESTIONS: u32 = 2;

/// What a URL and the options say together.
pub(super) struct Parsed {
    pub(super) servers: Servers,
    pub(super) options: PostgresOptions,
    /// For messages: no password.
    pub(super) name: String,
}

/// Takes what is ours out of the query part, and gives the rest to the driver.
pub(super) fn parse(url: &str, mut options: PostgresOptions) -> Result<Parsed, StoreError> {
    let wrong = |what: String| StoreError::CannotOpen {
        // Not the URL itself: it may hold a password.
        store: "the PostgreSQL database of the URL".to_owned(),
        source: what.into(),
    };
    let url = with_scheme(url).map_err(|what| wrong(what.to_owned()))?;
    let (base, query) = url.split_once('?').unwrap_or((&url, ""));
    check_escapes(base, query).map_err(|what| wrong(what.to_owned()))?;
    let mut rest = Vec::new();
    let mut tls = tls::Terms::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(wrong(UNKNOWN.to_owned()));
        };
        let value = decoded(value).ok_or_else(|| {
            let what = "a parameter holds a `%` that is not followed by two hex digits";
            wrong(what.to_owned())
        })?;
        match (name, &*value) {
            ("schema", "") => return Err(wrong("`schema` is empty".to_owned())),
            ("schema", schema) => options.schema = schema.to_owned(),
            ("lanes", number) => match number.parse() {
                Ok(lanes @ 1..=64) => options.lanes_max = lanes,
                _ => {
                    return Err(wrong("`lanes` must be a number from 1 to 64".to_owned()));
                }
            },
            ("pooled", "true") => options.pooled = true,
            ("pooled", "false") => options.pooled = false,
            ("pooled", _) => {
                return Err(wrong("`pooled` must be `true` or `false`".to_owned()));
            }
            ("listen_url", "") => return Err(wrong("`listen_url` is empty".to_owned())),
            ("listen_url", url) => options.listen_url = Some(url.to_owned()),
            (name, value) => {
                if !tls.take(name, value).map_err(wrong)? {
                    if !DRIVERS.contains(&name) {
                        return Err(wrong(UNKNOWN.to_owned()));
                    }
                    rest.push(pair);
                }
            }
        }
    }
    let says = |name: &str| rest.iter().any(|pair| pair.starts_with(&format!("{name}=")));
    let url = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    let mut config = Config::from_str(&url).map_err(|error| wrong(error.to_string()))?;
    if config.get_application_name().is_none() {
        config.application_name("everstep");
    }
    if config.get_dbname().is_none() {
        return Err(wrong("it names no database".to_owned()));
    }
    if !says("keepalives_idle") {
        config.keepalives_idle(SILENCE);
    }
    if !says("keepalives_interval") {
        config.keepalives_interval(QUESTION);
    }
    if !says("keepalives_retries") {
        config.keepalives_retries(QUESTIONS);
    }
    if !says("tcp_user_timeout") {
        config.tcp_user_timeout(options.patience);
    }
    config.ssl_mode(tls.ssl_mode());
    if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
        let what = "`target_session_attrs` is `read-only`, and runs have to be written";
        return Err(wrong(what.to_owned()));
    }
    let name = describe(&config, &options.schema);
    let mut configs = each_server(&config).map_err(|what| wrong(what.to_owned()))?;
    if configs.len() > 1 {
        // Of several servers only one can be meant.
        for config in &mut configs {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
    }
    let servers = Servers::new(configs, tls.connector().map_err(wrong)?);
    Ok(Parsed { servers, options, name })
}

/// The parameters that the driver takes. Its errors repeat names, and a password that is not escaped can
/// look like one.
const DRIVERS: [&str; 19] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
    "replication",
];

/// Nothing of the URL is repeated: it may be a part of the password.
const UNKNOWN: &str = "it has a parameter behind the `?` that is not known; if the `?` belongs to the \
                       password, write it as `%3F`, and `&`, `=`, `@`, `/`, `:`, `#` and `%` there as \
                       `%26`, `%3D`, `%40`, `%2F`, `%3A`, `%23` and `%25`";

/// The URL with its scheme as the driver has it.
fn with_scheme(url: &str) -> Result<String, &'static str> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if ["postgres", "postgresql"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        Ok(format!("postgres://{rest}"))
    } else {
        Err("it does not begin with `postgres://`")
    }
}

/// Refuses a URL whose password seems to hold a sign that ends it: parts of the password would be taken for
/// a host, a database or a parameter, and be shown.
fn check_escapes(base: &str, query: &str) -> Result<(), &'static str> {
    let rest = base.strip_prefix("postgres://").unwrap_or(base);
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.matches('@').count() > 1 {
        return Err(
            "it has two `@` before the host; write one in a user's name or password as `%40`",
        );
    }
    if path.contains('@') {
        return Err(
            "it has an `@` behind the host; write a `/` in a password as `%2F`, and an `@` in the \
                    name of a database as `%40`",
        );
    }
    if !authority.contains('@') && query.contains('@') {
        return Err(
            "it has an `@` behind the `?` and none before it; write a `?` in a password as `%3F`",
        );
    }
    Ok(())
}

/// A name of a schema that the server takes as it is.
pub(super) fn check_schema(schema: &str, store: &str) -> Result<(), StoreError> {
    let problem = if schema.is_empty() {
        "`schema` is empty".to_owned()
    } else if schema.len() > NAME_MAX {
        format!("the schema `{schema}` has more than {NAME_MAX} bytes; give it a shorter name")
    } else if schema.starts_with("pg_") {
        format!("the schema `{schema}` begins with `pg_`, which PostgreSQL keeps for itself")
    } else {
        return Ok(());
    };
    Err(StoreError::CannotOpen { store: store.to_owned(), source: problem.into() })
}

/// How many bytes a name may have. The server cuts off the rest without a word.
const NAME_MAX: usize = 63;

/// Resolves `%41` and the like; `None` if it is not written so.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                let digits = std::str::from_utf8(&digits).ok()?;
                u8::from_str_radix(digits, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// One configuration for each server, so that each is given time of its own.
fn each_server(config: &Config) -> Result<Vec<Config>, &'static str> {
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let many = hosts.len().max(addresses.len());
    if many == 0 {
        return Err("it names no host");
    }
    if !hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len() {
        return Err("it has not as many `host`s as `hostaddr`s");
    }
    let ports = config.get_ports();
    if ports.len() > 1 && ports.len() != many {
        return Err("it has not as many ports as hosts");
    }
    let one = |place: usize| {
        let mut one = without_hosts(config);
        match (hosts.get(place), addresses.get(place)) {
            (Some(Host::Tcp(name)), _) => _ = one.host(name),
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => _ = one.host_path(path),
            // It is the name to look for in a certificate, too.
            (None, Some(address)) => _ = one.host(address.to_string()),
            (None, None) => {}
        }
        if let Some(address) = addresses.get(place) {
            one.hostaddr(*address);
        }
        if let Some(port) = ports.get(place).or(ports.first()) {
            one.port(*port);
        }
        one
    };
    Ok((0..many).map(one).collect())
}

fn without_hosts(config: &Config) -> Config {
    let mut copy = Config::new();
    if let Some(user) = config.get_user() {
        copy.user(user);
    }
    if let Some(password) = config.get_password() {
        copy.password(password);
    }
    if let Some(database) = config.get_dbname() {
        copy.dbname(database);
    }
    if let Some(options) = config.get_options() {
        copy.options(options);
    }
    if let Some(name) = config.get_application_name() {
        copy.application_name(name);
    }
    if let Some(limit) = config.get_connect_timeout() {
        copy.connect_timeout(*limit);
    }
    if let Some(limit) = config.get_tcp_user_timeout() {
        copy.tcp_user_timeout(*limit);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        copy.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        copy.keepalives_retries(retries);
    }
    copy.keepalives(config.get_keepalives());
    copy.keepalives_idle(config.get_keepalives_idle());
    copy.ssl_mode(config.get_ssl_mode());
    copy.ssl_negotiation(config.get_ssl_negotiation());
    copy.channel_binding(config.get_channel_binding());
    copy.target_session_attrs(config.get_target_session_attrs());
    copy
}

fn describe(config: &Config, schema: &str) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let database = config.get_dbname().unwrap_or_default();
    format!("PostgreSQL database `{database}` on {hosts} (schema `{schema}`)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Parsed {
        match parse(url, PostgresOptions::default()) {
            Ok(parsed) => parsed,
            Err(error) => panic!("{url}: {error}"),
        }
    }

    #[test]
    fn what_is_ours_is_kept_from_the_driver() {
        let parsed = parsed(
            "postgres://u@h/d?schema=a%20b&pooled=true&sslmode=verify-full&connect_timeout=3\
             &listen_url=postgres%3A%2F%2Fu%40direct%3A5433%2Fd%3Fsslmode%3Drequire",
        );
        assert_eq!(parsed.options.schema, "a b");
        assert!(parsed.options.pooled);
        let listen = parsed.options.listen_url.as_deref();
        assert_eq!(listen, Some("postgres://u@direct:5433/d?sslmode=require"));
        let limit = parsed.servers.configs[0].get_connect_timeout();
        assert_eq!(limit, Some(&Duration::from_secs(3)));
    }

    #[test]
    fn each_of_several_servers_is_asked_whether_it_can_be_written_to() {
        let parsed = parsed("postgres://u:secret@a:1,b:2/d?application_name=shop");
        let configs = &parsed.servers.configs;
        let ports: Vec<_> = configs.iter().map(Config::get_ports).collect();
        assert_eq!(ports, [[1], [2]]);
        for config in configs {
            assert_eq!(config.get_hosts().len(), 1);
            assert_eq!(config.get_password(), Some(&b"secret"[..]));
            assert_eq!(config.get_application_name(), Some("shop"));
            let attrs = config.get_target_session_attrs();
            assert_eq!(attrs, TargetSessionAttrs::ReadWrite);
        }
        assert!(!parsed.name.contains("secret"), "{}", parsed.name);
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "postgres://u:secret@h",
            "postgres://u:secret@h/d?pooled=maybe",
            "postgres://u:secret@h/d?schema=",
            "postgres://u:secret@h/d?schema=%4",
            "postgres://u:secret@h/d?sslmode=sometimes",
            "postgres://u:secret@h/d?sslmode=prefer&sslrootcert=/a",
            "postgres://u:secret@h/d?target_session_attrs=read-only",
            // Signs in the password that should have been escaped.
            "postgres://u:x?sslmode=secret@h/d",
            "postgres://u:x?secret@h/d",
            "postgres://u:x?secret=y@h/d",
            "postgres://u:x?a%secret=y@h/d",
            "postgres://u:x?lanes=secret@h/d",
            "postgres://u:x?pooled=secret@h/d",
            "postgres://u:x@secret@h/d",
            "postgres://u:33/secret@h/d",
            "postgres://u:x/secret@h/d",
            "postgres://u:x@y?secret@h/d",
            "postgres://u:x@y?secret=z@h/d",
            "postgres://u:secret@h:port/d",
            "postgres://u:secret@h/d?secret",
            "host=h password=secret dbname=d",
            "postgres:/u:secret@h/d",
            "mysql://u:secret@h/d",
            "",
        ] {
            let Err(error) = parse(url, PostgresOptions::default()) else {
                panic!("{url} was taken");
            };
            let source = std::error::Error::source(&error);
            let text = format!("{error}: {source:?} {error:?}");
            assert!(!text.contains("secret"), "{text}");
            assert!(!text.contains("directory"), "{text}");
        }
    }

    /// A missing slash or scheme made it the path of a file, which the error then showed.
    #[test]
    fn a_connection_string_that_is_no_url_is_not_taken_for_a_file() {
        let url_of = |text: &'static str| crate::store::url_of(std::path::Path::new(text));
        for text in [
            "postgres//u:secret@h/d",
            "postgres:/u:secret@h/d",
            "u:secret@h/d",
            "u:secret@h",
            " postgres://u:secret@h/d",
            "host=h password=secret",
            "sslrootcert=/etc/ca.pem host=h password=secret",
            "HOST=h PASSWORD=secret",
            "sslrootcert = a password = secret",
        ] {
            let error = url_of(text).expect_err(text);
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret"), "{text}");
        }
        for file in [
            "./my host=h.db",
            "a=b.db",
            "a@b.db",
            "./u:p@h.db",
            "/var/u:p@h.db",
            "c:d.db",
            "a@b:c.db",
        ] {
            assert_eq!(url_of(file).ok(), Some(None), "{file}");
        }
    }

    #[test]
    fn the_scheme_may_be_written_in_upper_case() {
        for scheme in ["POSTGRES", "PostgreSQL", "postgresql", "postgres"] {
            let parsed = parsed(&format!("{scheme}://u:p%3Fq%40r@h/d"));
            let password = parsed.servers.configs[0].get_password();
            assert_eq!(password, Some(&b"p?q@r"[..]));
        }
    }
}
