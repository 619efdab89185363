//! What a front end shares: regions of its guest's memory, by the addresses of the guest and by its own.

use std::sync::Arc;

use spillway_core::shared_memory::SharedMemory;

/// Most regions of a front end.
pub const REGIONS_MAX: usize = 64;

/// Where a region lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionPlace {
    /// For the guest.
    pub(crate) guest: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// For the front end.
    pub(crate) user: u64,
}

impl RegionPlace {
    /// Whether it has a byte, and an end for guest and front end.
    pub(crate) fn is_sound(&self) -> bool {
        let ends = [self.guest, self.user].map(|start| start.checked_add(self.len));
        self.len > 0 && ends.iter().all(Option::is_some)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.guest < other.guest + other.len && other.guest < self.guest + self.len
    }
}

/// A region that is mapped.
#[derive(Clone)]
pub(crate) struct SharedRegion {
    pub(crate) place: RegionPlace,
    pub(crate) memory: Arc<dyn SharedMemory>,
}

/// The memory of a guest. Each access may fail: the guest has named a place where nothing is shared.
#[derive(Clone, Default)]
pub(crate) struct GuestMemory(Vec<SharedRegion>);

/// Nothing is shared there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotShared;

impl GuestMemory {
    /// Adds a sound region. False where it overlaps another, or there are too many.
    pub(crate) fn add(&mut self, region: SharedRegion) -> bool {
        assert!(region.place.is_sound(), "{:?} is looked at before", region.place);
        assert!(region.memory.len() >= region.place.len, "less is mapped than {:?}", region.place);
        let fits =
            self.0.len() < REGIONS_MAX && self.0.iter().all(|other| !other.place.overlaps(&region.place));
        if fits {
            self.0.push(region);
        }
        fits
    }

    /// Takes the region of that place away. False where there is none.
    pub(crate) fn remove(&mut self, place: RegionPlace) -> bool {
        let before = self.0.len();
        self.0.retain(|region| region.place != place);
        self.0.len() < before
    }

    /// Whether all that was shared is still there.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.iter().all(|region| region.memory.is_whole())
    }

    /// The region that holds `at`, and where in it that is.
    fn find(&self, at: u64) -> Result<(&SharedRegion, u64), NotShared> {
        let inside = |region: &&SharedRegion| at.wrapping_sub(region.place.guest) < region.place.len;
        let region = self.0.iter().find(inside).ok_or(NotShared)?;
        Ok((region, at - region.place.guest))
    }

    /// Calls `one` for each piece of a range: with its memory, where in that it begins, and which part of the range it is.
    fn pieces(
        &self,
        at: u64,
        len: usize,
        mut one: impl FnMut(&dyn SharedMemory, u64, std::ops::Range<usize>),
    ) -> Result<(), NotShared> {
        let mut done = 0;
        while done < len {
            let (region, within) = self.find(at.checked_add(done as u64).ok_or(NotShared)?)?;
            let end = len.min(done + usize::try_from(region.place.len - within).unwrap_or(usize::MAX - done));
            one(&*region.memory, within, done..end);
            done = end;
        }
        Ok(())
    }

    /// Copies what the guest has at `at`.
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), NotShared> {
        self.pieces(at, to.len(), |memory, from, part| memory.read(from, &mut to[part]))
    }

    /// Copies to the guest at `at`.
    pub(crate) fn write(&self, at: u64, from: &[u8]) -> Result<(), NotShared> {
        self.pieces(at, from.len(), |memory, to, part| memory.write(to, &from[part]))
    }

    /// See [`SharedMemory::load`].
    pub(crate) fn load(&self, at: u64) -> Result<u16, NotShared> {
        let (region, within) = self.pair(at)?;
        Ok(region.memory.load(within))
    }

    /// See [`SharedMemory::store`].
    pub(crate) fn store(&self, at: u64, value: u16) -> Result<(), NotShared> {
        let (region, within) = self.pair(at)?;
        region.memory.store(within, value);
        Ok(())
    }

    /// The two bytes at `at`, which lie in one region at an even place.
    fn pair(&self, at: u64) -> Result<(&SharedRegion, u64), NotShared> {
        let (region, within) = self.find(at)?;
        let sound = within.is_multiple_of(2) && within + 2 <= region.place.len;
        if sound { Ok((region, within)) } else { Err(NotShared) }
    }

    /// Where the guest has what the front end has at `user`, if `len` bytes of it are shared in one region.
    pub(crate) fn guest_address(&self, user: u64, len: u64) -> Option<u64> {
        let inside = |region: &&SharedRegion| {
            let within = user.wrapping_sub(region.place.user);
            within < region.place.len && len <= region.place.len - within
        };
        let region = self.0.iter().find(inside)?;
        Some(region.place.guest + (user - region.place.user))
    }
}
