//! The lock of an image: one host at a time.

use std::ffi::{CStr, CString};
use std::ptr::null_mut;

use spillway_core::{Error, Kind, Writers};

use super::cluster::{RbdOptions, about, check};
use super::image::OpenImage;
use super::library::{self, Watcher};

/// Most owners of a lock and clients of an image that are looked at.
const CLIENTS_MAX: usize = 64;

/// What an image is that a mirror alone writes.
const COPY: &str = "the copy of a mirror until rbd mirror image promote";

/// The number and the address of a client that has an image open.
type Client = (i64, String);

impl OpenImage {
    /// Refuses an image with these features where a mirror alone may write it.
    pub(super) fn refuse_copies(options: &RbdOptions, features: u64) -> Result<(), Error> {
        if features & library::FEATURE_NON_PRIMARY == 0 {
            return Ok(());
        }
        let words = format!("{}: is {COPY}: promote it, or give --read-only", options.name);
        Err(Error::new(Kind::ReadOnly, words))
    }

    /// Takes the lock, from a client that is gone or, where that is asked for, from any.
    pub(super) fn lock(&self, options: &RbdOptions) -> Result<(), Error> {
        let owners = || self.owners().map_err(|errno| about(options, errno, "its lock cannot be read"));
        let watchers =
            || self.watchers().map_err(|errno| about(options, errno, "its clients cannot be listed"));
        for (owner, client) in owners_with_clients(owners, watchers)? {
            match client {
                Some(_) if options.take_over => self.break_lock(options, &owner)?,
                Some((id, address)) => return Err(held(options, &format!("client.{id} at {address}"))),
                // Its client is gone: the library takes it.
                None => {}
            }
        }
        // SAFETY: the image is open.
        match check(unsafe { (self.library.rbd_lock_acquire)(self.image, library::LOCK_EXCLUSIVE) }) {
            Ok(_) => Ok(()),
            Err(libc::EROFS) => Err(held(options, &format!("a client that came first, or is {COPY}"))),
            Err(libc::EBUSY | libc::EAGAIN | libc::EEXIST) => Err(held(options, "a client that came first")),
            // By journal: the image does not say so itself.
            Err(libc::EPERM) => {
                let what = format!("its lock cannot be taken: the client may not, or the image is {COPY}");
                Err(about(options, libc::EPERM, &what))
            }
            Err(errno) => Err(about(options, errno, "its lock cannot be taken")),
        }
    }

    fn break_lock(&self, options: &RbdOptions, owner: &CStr) -> Result<(), Error> {
        // SAFETY: the image is open, the name ends with a zero.
        let broken = check(unsafe {
            (self.library.rbd_lock_break)(self.image, library::LOCK_EXCLUSIVE, owner.as_ptr())
        });
        match broken {
            // It was given back meanwhile.
            Ok(_) | Err(libc::ENOENT) => Ok(()),
            Err(errno) => Err(about(options, errno, "its lock cannot be broken")),
        }
    }

    /// Addresses of the clients that have the lock.
    fn owners(&self) -> Result<Vec<CString>, i32> {
        let (mut mode, mut names, mut count) = (0, [null_mut(); CLIENTS_MAX], CLIENTS_MAX);
        // SAFETY: the image is open, there is room for so many names.
        let listed = check(unsafe {
            (self.library.rbd_lock_get_owners)(self.image, &raw mut mode, names.as_mut_ptr(), &raw mut count)
        });
        match listed {
            Err(libc::ENOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
            Ok(_) => {}
        }
        assert!(count <= CLIENTS_MAX, "{count} owners where there is room for {CLIENTS_MAX}");
        // SAFETY: so many names were written, each with a zero at its end.
        let owners = names[..count].iter().map(|name| unsafe { CStr::from_ptr(*name) }.to_owned()).collect();
        // SAFETY: they are freed once, after they were copied.
        unsafe { (self.library.rbd_lock_get_owners_cleanup)(names.as_mut_ptr(), count) };
        Ok(owners)
    }

    /// Numbers and addresses of the clients that have the image open.
    fn watchers(&self) -> Result<Vec<Client>, i32> {
        let none = Watcher { address: null_mut(), id: 0, cookie: 0 };
        let (mut found, mut count) = ([none; CLIENTS_MAX], CLIENTS_MAX);
        // SAFETY: the image is open, there is room for so many.
        check(unsafe { (self.library.rbd_watchers_list)(self.image, found.as_mut_ptr(), &raw mut count) })?;
        assert!(count <= CLIENTS_MAX, "{count} clients where there is room for {CLIENTS_MAX}");
        let address = |watcher: &Watcher| {
            // SAFETY: the address was written, with a zero at its end.
            unsafe { CStr::from_ptr(watcher.address) }.to_string_lossy().into_owned()
        };
        let watchers = found[..count].iter().map(|watcher| (watcher.id, address(watcher))).collect();
        // SAFETY: they are freed once, after they were copied.
        unsafe { (self.library.rbd_watchers_list_cleanup)(found.as_mut_ptr(), count) };
        Ok(watchers)
    }

    /// Whether this client still has the lock, if it took one, as the cluster says. A client that is locked out is told so. One `false` may
    /// be wrong: after librbd has lost its watch it renames the lock, and asks for the former name until it hears that this is done. Where
    /// another has written to the image, another has had the lock, even if librbd has taken it again: EROFS. Where it or its snapshot is
    /// gone: ENOENT.
    pub(super) fn has_lock(&self, writers: Option<Writers>) -> Result<bool, i32> {
        let last = self.writer()?;
        // One without a header has no such key either. Who only reads hears of that by nothing else: the library watches what it may write.
        if last == 0 && self.watchers().err() == Some(libc::ENOENT) {
            return Err(libc::ENOENT);
        }
        self.check_snapshot()?;
        let known = |writers: Writers| [0, writers.last, writers.own].contains(&last);
        if self.locked && !writers.is_none_or(known) {
            return Err(libc::EROFS);
        }
        let mut owner = 1;
        if self.locked {
            // SAFETY: the image is open, the place is ours.
            check(unsafe { (self.library.rbd_is_exclusive_lock_owner)(self.image, &raw mut owner) })?;
        }
        Ok(owner != 0)
    }
}

/// The owners of a lock, each with its client unless that is gone.
///
/// The order matters. A client watches an image before it locks it, and until it has released the lock. So an owner that is listed first
/// and does not watch afterwards has died or has released the lock: the library may take it. In the other order, a client that opens and
/// locks the image between the two lists would be an owner without a client, and its lock would not be broken.
fn owners_with_clients<E>(
    owners: impl FnOnce() -> Result<Vec<CString>, E>,
    watchers: impl FnOnce() -> Result<Vec<Client>, E>,
) -> Result<Vec<(CString, Option<Client>)>, E> {
    let owners = owners()?;
    let watchers = watchers()?;
    let client =
        |owner: &CString| watchers.iter().find(|(_, address)| *address == owner.to_string_lossy()).cloned();
    Ok(owners.into_iter().map(|owner| (owner.clone(), client(&owner))).collect())
}

fn held(options: &RbdOptions, who: &str) -> Error {
    let words = format!(
        "{}: is locked by {who}: stop it first, or give --take-over, after which it can write no more; one that \
         has died loses the lock within 30 s",
        options.name
    );
    Error::new(Kind::Busy, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::convert::Infallible;

    const ADDRESS: &str = "192.0.2.1:0/7";

    /// What is listed where a client opens and locks the image as soon as one list, of either kind, was made.
    fn listed_around_an_arrival() -> Vec<(CString, Option<Client>)> {
        let arrived = Cell::new(false);
        let owners = || {
            Ok::<_, Infallible>(
                arrived.replace(true).then(|| CString::new(ADDRESS).unwrap()).into_iter().collect(),
            )
        };
        let watchers = || Ok(arrived.replace(true).then(|| (7, ADDRESS.to_owned())).into_iter().collect());
        owners_with_clients(owners, watchers).unwrap()
    }

    #[test]
    fn a_client_that_arrives_between_the_lists_is_not_taken_for_gone() {
        assert_eq!(listed_around_an_arrival(), []);
    }

    #[test]
    fn an_owner_has_its_client_unless_that_is_gone() {
        let gone = CString::new("192.0.2.1:0/8").unwrap();
        let alive = CString::new(ADDRESS).unwrap();
        let owners = || Ok::<_, Infallible>(vec![gone.clone(), alive.clone()]);
        let watchers = || Ok(vec![(9, "192.0.2.1:0/9".to_owned()), (7, ADDRESS.to_owned())]);
        let found = owners_with_clients(owners, watchers).unwrap();
        assert_eq!(found, [(gone.clone(), None), (alive.clone(), Some((7, ADDRESS.to_owned())))]);
    }
}
