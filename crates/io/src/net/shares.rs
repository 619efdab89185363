//! How many connections of a listener each host has, and may have.
//!
//! A host may have as many as there are places free beside them: half of all where it is the only one, and where it is not, no more than are
//! left for others. So there is a place for the next host, and no connection that is there is ever closed for another. An IPv6 network, in
//! which a host has countless addresses, may have three times as many as are free: three quarters.

use std::collections::HashMap;

use crate::net::peer::Account;

/// Connections that an IPv6 network may have for each free place.
const NETWORK_FACTOR: usize = 3;

/// Connections of each account that has any.
#[derive(Default)]
pub(crate) struct Shares(HashMap<Account, usize>);

impl Shares {
    /// Whether `peer` may have one more while so many places are `free`.
    pub(crate) fn admits(&self, peer: Account, free: usize) -> bool {
        let room_in_network = |network| self.of(network) < NETWORK_FACTOR * free;
        let is_host = !matches!(peer, Account::User(_));
        !is_host || self.of(peer) < free && peer.network().is_none_or(room_in_network)
    }

    /// Connections of `peer`.
    pub(crate) fn of(&self, peer: Account) -> usize {
        self.0.get(&peer).copied().unwrap_or(0)
    }

    /// It has one more.
    pub(crate) fn enter(&mut self, peer: Account) {
        for account in [Some(peer), peer.network()].into_iter().flatten() {
            *self.0.entry(account).or_default() += 1;
        }
    }

    /// It has one less.
    pub(crate) fn leave(&mut self, peer: Account) {
        for account in [Some(peer), peer.network()].into_iter().flatten() {
            let count = self.0.get_mut(&account).expect("who leaves has entered");
            assert!(*count > 0, "{account:?} is counted without a connection");
            *count -= 1;
            if *count == 0 {
                self.0.remove(&account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> Account {
        Account::at([192, 0, 2, number].into())
    }

    /// Connections that `peer` gets of `places` if it takes all that it may.
    fn taken(shares: &mut Shares, peer: Account, free: &mut usize) -> usize {
        let mut taken = 0;
        while *free > 0 && shares.admits(peer, *free) {
            shares.enter(peer);
            (*free, taken) = (*free - 1, taken + 1);
        }
        taken
    }

    #[test]
    fn greedy_hosts_leave_a_place_for_the_next() {
        let (mut shares, mut free) = (Shares::default(), 32);
        let taken: Vec<usize> = (0..6).map(|number| taken(&mut shares, host(number), &mut free)).collect();
        assert_eq!((taken, free), (vec![16, 8, 4, 2, 1, 1], 0));
    }

    #[test]
    fn a_host_alone_gets_half_of_any_number_and_one_at_least() {
        for (places, wanted) in [(1, 1), (2, 1), (3, 2), (2048, 1024)] {
            let mut free = places;
            assert_eq!(taken(&mut Shares::default(), host(1), &mut free), wanted, "{places}");
        }
    }

    #[test]
    fn a_user_of_a_unix_socket_may_have_all() {
        assert_eq!(taken(&mut Shares::default(), Account::User(1000), &mut 32), 32);
    }

    #[test]
    fn places_come_back_to_who_leaves_and_nothing_is_kept_of_it() {
        let (mut shares, mut free) = (Shares::default(), 8);
        taken(&mut shares, host(1), &mut free);
        assert!(!shares.admits(host(1), free) && shares.admits(host(2), free));
        shares.leave(host(1));
        assert!(shares.admits(host(1), free + 1), "it may come again at once");
        (0..3).for_each(|_| shares.leave(host(1)));
        assert!(shares.0.is_empty());
    }

    #[test]
    fn a_host_with_countless_addresses_leaves_a_quarter() {
        let (mut shares, mut free) = (Shares::default(), 32);
        let of = |network: u16, host: u16| Account::at([0x2001, 0xdb8, 0, network, 0, 0, 0, host].into());
        let by_all: usize = (0..100).map(|host| taken(&mut shares, of(1, host), &mut free)).sum();
        assert_eq!((by_all, free), (24, 8));
        assert_eq!(taken(&mut shares, of(2, 1), &mut free), 4, "another network finds room");
        (0..100).for_each(|host| (0..shares.of(of(1, host))).for_each(|_| shares.leave(of(1, host))));
        assert_eq!(shares.of(of(1, 0).network().expect("it has one")), 0);
        assert_eq!(shares.0.len(), 2, "the other host and its network");
    }
}
