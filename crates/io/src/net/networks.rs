//! Which hosts may connect over TCP.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use spillway_core::Error;
use spillway_core::sync::{AtomicU64, Ordering};

use super::peer::Account;

/// Hosts whose addresses begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

/// An address as a number that is shifted to the left, and how many bits it has.
fn number(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl Network {
    /// Whether the host of this address, which is no IPv4 address written as one of IPv6, is among them.
    fn has(&self, host: IpAddr) -> bool {
        let ((own, len), (other, other_len)) = (number(self.address), number(host));
        len == other_len && (own ^ other).checked_shr(128 - self.bits).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = Error;

    /// `192.0.2.0/24`, `2001:db8::/32`, or the address of one host. [`spillway_core::Kind::Invalid`] for anything else, and where bits behind
    /// the first ones are set.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let wrong = |what: &str| {
            Error::invalid(format!(
                "{text:?} {what}: give ADDRESS or ADDRESS/BITS, such as 192.0.2.0/24 or 2001:db8::/32"
            ))
        };
        let address = address.parse::<IpAddr>().map_err(|_| wrong("is no network"))?;
        let (value, len) = number(address);
        let bits = bits.map_or(Ok(len), |bits| bits.parse().map_err(|_| wrong("has no number of bits")))?;
        if bits > len {
            return Err(wrong(&format!("has more than {len} bits")));
        }
        if value.checked_shl(bits).unwrap_or(0) != 0 {
            return Err(wrong(&format!("has bits behind the first {bits}")));
        }
        Ok(Self { address, bits })
    }
}

/// The networks whose hosts may connect to a server's ports.
pub struct AllowedNetworks {
    /// None for every host.
    networks: Vec<Network>,
    refused: AtomicU64,
}

impl AllowedNetworks {
    /// Hosts of these networks; every host, where there are none.
    pub fn new(networks: Vec<Network>) -> Arc<Self> {
        Arc::new(Self { networks, refused: AtomicU64::new(0) })
    }

    /// Connections that were closed so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether that may connect; counted and logged where not.
    pub(super) fn admits(&self, peer: Account) -> bool {
        let Account::Host(host) = peer else { return true };
        let admits = self.networks.is_empty() || self.networks.iter().any(|network| network.has(host));
        if !admits {
            self.refused.fetch_add(1, Ordering::Relaxed);
            tracing::info!("host {host} is not allowed: its connection is closed");
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(network: &str, host: &str) -> bool {
        let allowed = AllowedNetworks::new(vec![network.parse().unwrap()]);
        allowed.admits(Account::at(host.parse().unwrap()))
    }

    #[test]
    fn a_network_has_the_hosts_that_begin_as_it_does() {
        for (network, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.128/25", "192.0.2.128", "192.0.2.127"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.7/32", "::ffff:192.0.2.7", "192.0.2.8"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::1", "::1", "::2"),
            ("::/0", "ffff::", "127.0.0.1"),
        ] {
            assert!(has(network, inside) && !has(network, outside), "{network}");
        }
    }

    #[test]
    fn what_is_no_network_says_why() {
        for (text, words) in [
            ("", "is no network"),
            ("localhost", "is no network"),
            ("192.0.2.0/33", "more than 32 bits"),
            ("::/129", "more than 128 bits"),
            ("192.0.2.0/x", "no number of bits"),
            ("192.0.2.0/-1", "no number of bits"),
            ("192.0.2.1/24", "bits behind the first 24"),
            ("2001:db8::1/64", "bits behind the first 64"),
        ] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.message().contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn without_networks_every_host_may_connect_and_users_always() {
        let host = Account::at("192.0.2.1".parse().unwrap());
        assert!(AllowedNetworks::new(Vec::new()).admits(host));
        let allowed = AllowedNetworks::new(vec!["192.0.2.2".parse().unwrap()]);
        assert!(allowed.admits(Account::User(1000)) && !allowed.admits(host));
        assert_eq!(allowed.refused(), 1);
    }
}
