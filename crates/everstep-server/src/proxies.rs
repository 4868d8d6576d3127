//! Trusted proxies: whose word on a client's address is taken.
//!
//! The address of a client is that of its connection, unless the connection comes from a trusted proxy.
//! Then it is the rightmost hop in `X-Forwarded-For` or `Forwarded` that is not a trusted proxy itself:
//! each proxy appends the address that it was reached from, so everything further left was sent by the
//! client and may be forged.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use axum::{
    extract::ConnectInfo,
    http::{Extensions, HeaderMap, header},
};

/// The networks of the trusted proxies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies(pub(crate) Vec<Network>);

/// A range of addresses: `10.0.0.0/8`, `2001:db8::/32`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    bits: u32,
}

/// An address of a proxy that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not the address of a proxy; write an address such as `10.0.0.7`, or a network such \
     as `10.0.0.0/8`"
)]
pub struct BadProxy {
    text: String,
}

impl FromStr for Network {
    type Err = BadProxy;

    fn from_str(text: &str) -> Result<Network, BadProxy> {
        let bad = || BadProxy { text: text.to_owned() };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let written: IpAddr = address.parse().map_err(|_| bad())?;
        let whole = width(written);
        let bits = match bits {
            Some(bits) => bits.parse::<u32>().map_err(|_| bad())?,
            None => whole,
        };
        if bits > whole {
            return Err(bad());
        }
        // `::ffff:10.0.0.0/104` is `10.0.0.0/8`: connections are compared in the short form.
        let address = written.to_canonical();
        let Some(bits) = bits.checked_sub(whole - width(address)) else {
            return Err(bad());
        };
        Ok(Network { address, bits })
    }
}

fn width(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        let differs = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        differs >= self.bits
    }
}

impl Proxies {
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// The address of the client that sent a request, if the server knows the peer of the connection.
    pub(crate) fn client(&self, extensions: &Extensions, headers: &HeaderMap) -> Option<IpAddr> {
        let ConnectInfo(peer) = extensions.get::<ConnectInfo<SocketAddr>>()?;
        let peer = peer.ip().to_canonical();
        if !self.trusts(peer) {
            return Some(peer);
        }
        let hops = |name: &str, hop: fn(&str) -> Option<IpAddr>| {
            let values = headers.get_all(name).iter();
            let values: Vec<&str> = values.map(|it| it.to_str().unwrap_or("?")).collect();
            (!values.is_empty()).then(|| self.rightmost(peer, &values.join(","), hop))
        };
        let x_forwarded_for = hops("x-forwarded-for", address);
        let forwarded = hops(header::FORWARDED.as_str(), forwarded_for);
        match (x_forwarded_for, forwarded) {
            (Some(client), None) | (None, Some(client)) => Some(client),
            (Some(one), Some(other)) if one == other => Some(one),
            // The proxy writes one of the two headers and passes on the other as the client sent it. The
            // server does not know which, so it believes neither.
            _ => Some(peer),
        }
    }

    /// The rightmost hop that is not a trusted proxy. A hop that cannot be read hides everything to its
    /// left: then the client is the proxy that reported it.
    fn rightmost(&self, peer: IpAddr, list: &str, hop: fn(&str) -> Option<IpAddr>) -> IpAddr {
        let mut client = peer;
        for text in list.rsplit(',') {
            let Some(address) = hop(text.trim()) else {
                return client;
            };
            client = address;
            if !self.trusts(address) {
                return client;
            }
        }
        client
    }
}

/// An address with or without a port: `10.1.2.3`, `10.1.2.3:80`, `2001:db8::1`, `[2001:db8::1]:80`.
fn address(text: &str) -> Option<IpAddr> {
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let found = text.parse::<IpAddr>().ok();
    let found = found.or_else(|| text.parse::<SocketAddr>().ok().map(|it| it.ip()));
    found.or_else(bare).map(|it| it.to_canonical())
}

/// The `for` of one element of `Forwarded` (RFC 7239): `for="[2001:db8::1]:80";proto=https`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, node) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    address(node.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn proxies(networks: &[&str]) -> Proxies {
        let networks = networks.iter().map(|it| it.parse().expect("a network"));
        Proxies(networks.collect())
    }

    /// The client that a request from `peer` with these headers is taken to come from.
    fn client(proxies: &Proxies, peer: &str, pairs: &[(&'static str, &str)]) -> String {
        let mut extensions = Extensions::new();
        let peer = SocketAddr::new(peer.parse().expect("an address"), 4_711);
        extensions.insert(ConnectInfo(peer));
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let value = HeaderValue::from_str(value).expect("a value");
            headers.append(HeaderName::from_static(name), value);
        }
        let client = proxies.client(&extensions, &headers);
        client.expect("the peer is known").to_string()
    }

    #[test]
    fn a_peer_that_is_no_trusted_proxy_cannot_forge_its_address() {
        let some = proxies(&["10.0.0.0/8"]);
        for headers in [[("x-forwarded-for", "1.2.3.4")], [("forwarded", "for=1.2.3.4")]] {
            assert_eq!(client(&some, "192.0.2.1", &headers), "192.0.2.1");
            assert_eq!(client(&Proxies::default(), "10.0.0.1", &headers), "10.0.0.1");
            assert_eq!(client(&some, "10.0.0.1", &headers), "1.2.3.4");
            assert_eq!(client(&some, "::ffff:10.0.0.1", &headers), "1.2.3.4");
        }
    }

    #[test]
    fn the_client_is_the_rightmost_hop_that_is_not_trusted() {
        let some = proxies(&["10.0.0.0/8", "2001:db8::/32"]);
        for (sent, expected) in [
            ("1.1.1.1, 2.2.2.2", "2.2.2.2"),
            ("1.1.1.1, 2.2.2.2, 10.9.9.9", "2.2.2.2"),
            ("1.1.1.1,2.2.2.2:81 , [2001:db8::7]:80", "2.2.2.2"),
            ("2001:4860::1", "2001:4860::1"),
            // A request that began at a proxy.
            ("10.1.1.1, 10.2.2.2", "10.1.1.1"),
            // Nothing left of a hop that cannot be read is believed.
            ("1.1.1.1, unknown", "10.0.0.1"),
            ("1.1.1.1, unknown, 10.3.3.3", "10.3.3.3"),
            ("", "10.0.0.1"),
        ] {
            let headers = [("x-forwarded-for", sent)];
            assert_eq!(client(&some, "10.0.0.1", &headers), expected, "{sent}");
        }
        let two = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "2.2.2.2")];
        assert_eq!(client(&some, "10.0.0.1", &two), "2.2.2.2");
        let rfc = r#"for=1.1.1.1, For="[2001:4860::2]:80";proto=https, for=10.3.3.3;by=10.0.0.1"#;
        let headers = [("forwarded", rfc)];
        assert_eq!(client(&some, "10.0.0.1", &headers), "2001:4860::2");
    }

    #[test]
    fn a_header_that_the_proxy_passes_on_unread_does_not_make_another_client() {
        let some = proxies(&["10.0.0.1"]);
        let both = |one, other| [("x-forwarded-for", one), ("forwarded", other)];
        let agreed = both("2.2.2.2", "for=2.2.2.2");
        assert_eq!(client(&some, "10.0.0.1", &agreed), "2.2.2.2");
        let forged = both("2.2.2.2", "for=6.6.6.6");
        assert_eq!(client(&some, "10.0.0.1", &forged), "10.0.0.1");
    }

    #[test]
    fn a_network_is_an_address_with_a_number_of_bits() {
        let network = |text: &str| text.parse::<Network>().expect("a network");
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        for (text, inside, outside) in [
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("10.1.2.3/8", "10.255.0.1", "11.0.0.1"),
            ("10.1.2.0/31", "10.1.2.1", "10.1.2.2"),
            ("::ffff:10.0.0.0/104", "10.9.9.9", "11.0.0.1"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
            ("::1", "::1", "127.0.0.1"),
            ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
        ] {
            assert!(network(text).contains(address(inside)), "{text} {inside}");
            assert!(!network(text).contains(address(outside)), "{text} {outside}");
        }
        for bad in ["", "proxy", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "::/129", "10.0.0.1:80"] {
            let error = bad.parse::<Network>().expect_err(bad);
            assert!(error.to_string().contains("10.0.0.0/8"), "{error}");
        }
    }
}
