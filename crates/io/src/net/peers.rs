//! How many connections each peer has to a server, at all sockets that count together, and how many it may have.
//!
//! A peer is a host, or a user who comes by a unix socket. One that has as many as it may is refused at once, so that it delays nobody;
//! others are let in as long as there are places. What each has is known here only while it is connected.
//!
//! Lock: a leaf.

use std::collections::HashMap;
use std::sync::Arc;

use spillway_core::sync::{AtomicU64, Mutex, Ordering};

use crate::net::peer::Account;

/// See the head of this file.
#[derive(Default)]
pub struct Peers {
    most: Option<u64>,
    open: Mutex<HashMap<Account, u64>>,
    refused: AtomicU64,
}

impl Peers {
    /// Each may have as many connections as `most`, or any number.
    pub fn new(most: Option<u64>) -> Arc<Self> {
        Arc::new(Self { most, ..Self::default() })
    }

    /// Connections that each may have, where there is a limit.
    pub fn limit(&self) -> Option<u64> {
        self.most
    }

    /// Connections of the peer that has most now.
    pub fn highest(&self) -> u64 {
        self.open.lock().values().copied().max().unwrap_or(0)
    }

    /// Connections that were closed so far because their peers had as many as they may.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// One more is closed.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection of `peer`, until it is dropped; `None` where the peer has as many as it may.
    pub(super) fn enter(self: &Arc<Self>, peer: Account) -> Option<PeerGuard> {
        let mut open = self.open.lock();
        let count = open.get(&peer).copied().unwrap_or(0);
        if self.most.is_some_and(|most| count >= most) {
            return None;
        }
        open.insert(peer, count + 1);
        Some(PeerGuard { peers: self.clone(), peer })
    }
}

/// A connection of a peer, for as long as it counts.
pub(super) struct PeerGuard {
    peers: Arc<Peers>,
    peer: Account,
}

impl Drop for PeerGuard {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock();
        let count = open.get_mut(&self.peer).expect("who leaves has entered");
        *count -= 1;
        if *count == 0 {
            open.remove(&self.peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Account = Account::User(1000);

    fn host(number: u8) -> Account {
        Account::at([192, 0, 2, number].into())
    }

    #[test]
    fn each_peer_has_its_own_limit_and_a_place_comes_back() {
        let peers = Peers::new(Some(2));
        let mut entered: Vec<_> = [USER, USER, host(1), host(1)].map(|peer| peers.enter(peer)).into();
        assert!(entered.iter().all(Option::is_some) && peers.highest() == 2);
        assert!(peers.enter(USER).is_none() && peers.enter(host(1)).is_none());
        assert!(peers.enter(Account::User(0)).is_some() && peers.enter(host(2)).is_some());
        entered.remove(0);
        assert!(peers.enter(host(1)).is_none(), "it was another's place");
        assert!(peers.enter(USER).is_some());
    }

    #[test]
    fn without_a_limit_they_are_counted_and_nothing_is_kept_of_who_left() {
        let peers = Peers::new(None);
        let entered: Vec<_> = (0..100).map(|_| peers.enter(USER)).collect();
        let other = peers.enter(host(1));
        assert_eq!((peers.highest(), peers.limit()), (100, None));
        drop(entered);
        assert_eq!(peers.highest(), 1);
        drop(other);
        assert!(peers.open.lock().is_empty() && peers.highest() == 0);
    }
}
