//! An image that is open, and how it is opened and closed: calls that block.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null;

use spillway_core::sync::{AtomicU64, Ordering};
use spillway_core::{ByteRange, Error, Extent, Kind, Report};

use super::cluster::{ClusterConnection, RbdOptions, about, check};
use super::library::{self, ImageHandle, ImageState, Library};
use super::name::ImageName;
use crate::mutant;

/// The key of the image's metadata that says who has written last.
const WRITER: &CStr = c"spillway.writer";

/// An image that is open; closed when dropped, which blocks.
pub(super) struct OpenImage {
    pub(super) library: &'static Library,
    pub(super) image: ImageHandle,
    /// Whether nobody else can write.
    pub(super) locked: bool,
    /// How often its header has changed: it may have another size. Outlives the watch.
    pub(super) changes: Box<AtomicU64>,
    /// The object that lists the snapshots of the image, and the number of the one that it was opened at, if at one.
    pub(super) snapshot: Option<(CString, u64)>,
    watch: Option<u64>,
    pub(super) connection: ClusterConnection,
    /// Dropped last, for the one that waits for the end of the image.
    pub(super) _end: Option<Report<()>>,
}

// SAFETY: librados and librbd allow calls on one handle from all threads at once.
unsafe impl Send for OpenImage {}
// SAFETY: as above.
unsafe impl Sync for OpenImage {}

impl Drop for OpenImage {
    fn drop(&mut self) {
        if let Some(watch) = self.watch {
            // SAFETY: the watch was made and is ended once.
            unsafe { (self.library.rbd_update_unwatch)(self.image, watch) };
        }
        // SAFETY: the handle is ours, and nobody uses it any more.
        let result = unsafe { (self.library.rbd_close)(self.image) };
        if result < 0 {
            tracing::warn!(
                "an RBD image was not closed well ({})",
                Kind::of_errno(result.abs()).errno_name()
            );
        }
    }
}

impl OpenImage {
    /// Opens an image, and locks it where it has that feature. Errors say what is missing, who has the lock or writes the image, or which
    /// option of the image or its pool gives librbd a cache.
    pub(super) fn open(options: &RbdOptions) -> Result<Self, Error> {
        if options.name.snapshot.is_some() && !options.read_only {
            let words = format!("{}: a snapshot is read-only: give --read-only", options.name);
            return Err(Error::new(Kind::ReadOnly, words));
        }
        let mut connection = ClusterConnection::new(options)?;
        connection.connect(options)?;
        let image = connection.open(options)?;
        let mut open = Self {
            library: connection.library,
            image,
            locked: false,
            changes: Box::default(),
            snapshot: None,
            watch: None,
            connection,
            _end: None,
        };
        // Before the lock is taken from anybody. Where nothing is written, a cache has nothing to lose.
        if !options.read_only {
            open.refuse_caches(options)?;
        }
        open.watch(options)?;
        open.snapshot = open.find_snapshot(options)?;
        let features = if options.read_only { 0 } else { open.features(options)? };
        Self::refuse_copies(options, features)?;
        let locks = features & library::FEATURE_EXCLUSIVE_LOCK != 0;
        if locks && !mutant::on("rbd: begin without the lock") {
            open.lock(options)?;
            open.locked = true;
        }
        Ok(open)
    }

    fn watch(&mut self, options: &RbdOptions) -> Result<(), Error> {
        let (mut handle, argument) = (0, (&raw const *self.changes).cast_mut().cast::<c_void>());
        // SAFETY: the image is open, the place is ours, and the argument lives until the watch has ended.
        check(unsafe { (self.library.rbd_update_watch)(self.image, &raw mut handle, note_change, argument) })
            .map_err(|errno| about(options, errno, "its header cannot be watched"))?;
        self.watch = Some(handle);
        Ok(())
    }

    fn features(&self, options: &RbdOptions) -> Result<u64, Error> {
        let mut features = 0;
        // SAFETY: the image is open, the place is ours.
        check(unsafe { (self.library.rbd_get_features)(self.image, &raw mut features) })
            .map_err(|errno| about(options, errno, "its features cannot be read"))?;
        Ok(features)
    }

    /// Bytes of the image and of an object.
    pub(super) fn sizes(&self) -> Result<(u64, u64), i32> {
        let mut info = ImageState {
            size: 0,
            object_bytes: 0,
            objects: 0,
            order: 0,
            block_name_prefix: [0; 24],
            parent_pool: 0,
            parent_name: [0; 96],
        };
        // SAFETY: the image is open, the place is ours and of that size.
        check(unsafe { (self.library.rbd_stat)(self.image, &raw mut info, size_of::<ImageState>()) })?;
        Ok((info.size, info.object_bytes))
    }

    /// Makes it so long, unless it is longer by now.
    pub(super) fn lengthen(&self, bytes: u64) -> Result<(), i32> {
        if self.sizes()?.0 < bytes {
            let may_shrink = false;
            // SAFETY: the image is open, and nothing is passed on.
            check(unsafe {
                (self.library.rbd_resize2)(self.image, bytes, may_shrink, go_on, std::ptr::null_mut())
            })?;
        }
        Ok(())
    }

    /// What tells the image from all others, in all clusters, also under another name.
    pub(super) fn identity(&self, options: &RbdOptions) -> Result<String, Error> {
        let mut fsid = [0 as c_char; 64];
        let ClusterConnection { library, cluster, pool } = self.connection;
        // SAFETY: connected, and there is room for so many bytes with the zero.
        check(unsafe { (library.rados_cluster_fsid)(cluster, fsid.as_mut_ptr(), fsid.len() - 1) })
            .map_err(|errno| about(options, errno, "the cluster has no identity"))?;
        // SAFETY: connected.
        let number = unsafe { (library.rados_ioctx_get_id)(pool) };
        // SAFETY: they were zeroes, of which the last was not written.
        let fsid = unsafe { CStr::from_ptr(fsid.as_ptr()) }.to_string_lossy();
        let (id, ImageName { namespace, snapshot, .. }) = (self.id(options)?, &options.name);
        Ok(format!("rbd {fsid} {number} {namespace} {id} {}", snapshot.as_deref().unwrap_or_default()))
    }

    /// What tells the image from all others in its pool and namespace.
    pub(super) fn id(&self, options: &RbdOptions) -> Result<String, Error> {
        let mut id = [0 as c_char; 128];
        // SAFETY: the image is open, and there is room for so many bytes.
        check(unsafe { (self.library.rbd_get_id)(self.image, id.as_mut_ptr(), id.len() - 1) })
            .map_err(|errno| about(options, errno, "the image has no identity"))?;
        // SAFETY: they were zeroes, of which the last was not written.
        Ok(unsafe { CStr::from_ptr(id.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Who has written to the image last, by its number; 0 if nobody has said so.
    pub(super) fn writer(&self) -> Result<u32, i32> {
        // What is no number was written by another program.
        Ok(self.metadata(WRITER)?.map_or(0, |text| text.parse().unwrap_or(u32::MAX)))
    }

    /// What the image's metadata has under that key, if anything.
    pub(super) fn metadata(&self, key: &CStr) -> Result<Option<String>, i32> {
        let (mut value, mut len) = ([0 as c_char; 64], 63);
        // SAFETY: the image is open, the key ends with a zero, and there is room for so many bytes.
        let got = check(unsafe {
            (self.library.rbd_metadata_get)(self.image, key.as_ptr(), value.as_mut_ptr(), &raw mut len)
        });
        match got {
            Err(libc::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
            Ok(_) => {}
        }
        // SAFETY: they were zeroes, of which the last was not written.
        Ok(Some(unsafe { CStr::from_ptr(value.as_ptr()) }.to_string_lossy().into_owned()))
    }

    /// From now on that is who has written to the image last.
    pub(super) fn set_writer(&self, number: u32) -> Result<(), i32> {
        let value = CString::new(number.to_string()).expect("a number has no zero byte");
        // SAFETY: the image is open, both end with a zero.
        check(unsafe { (self.library.rbd_metadata_set)(self.image, WRITER.as_ptr(), value.as_ptr()) })
            .map(drop)
    }

    /// Whether the library says rightly what is stored. Those before 1.17 (2022) leave out what only a parent has, and mistake places in
    /// striped images, whatever their order (tracker.ceph.com, issues 53784, 53787 and 53885).
    fn tells_extents(&self) -> Result<bool, i32> {
        let (mut major, mut minor, mut extra) = (0, 0, 0);
        // SAFETY: the places are ours.
        unsafe { (self.library.rbd_version)(&raw mut major, &raw mut minor, &raw mut extra) };
        if (major, minor) >= (1, 17) {
            return Ok(true);
        }
        let (mut features, mut overlap) = (0, 0);
        // SAFETY: the image is open, the place is ours.
        check(unsafe { (self.library.rbd_get_features)(self.image, &raw mut features) })?;
        // SAFETY: as above.
        check(unsafe { (self.library.rbd_get_overlap)(self.image, &raw mut overlap) })?;
        Ok(features & library::FEATURE_STRIPING == 0 && overlap == 0)
    }

    /// Stored and absent extents of `range`, at most so many.
    pub(super) fn extents(&self, range: ByteRange, count_max: usize) -> Result<Vec<Extent>, i32> {
        if !self.tells_extents()? {
            return Ok(vec![Extent::stored(range.len)]);
        }
        let end = range.offset + range.len;
        let mut listing = Listing::new(range, count_max);
        // Libraries before 1.17 give wrong places where the range does not begin with an object (tracker.ceph.com, issue 53784).
        let (_, object_bytes) = self.sizes()?;
        let begin = range.offset - range.offset % object_bytes.max(1);
        // SAFETY: the image is open, and the list outlives the call.
        let result = check(unsafe {
            let list = (&raw mut listing).cast::<c_void>();
            let (image, len) = (self.image, end - begin);
            (self.library.rbd_diff_iterate2)(image, null(), begin, len, 1, 1, put_extent, list)
        });
        match result {
            _ if listing.unsorted => return Ok(vec![Extent::stored(range.len)]),
            Err(errno) if listing.extents.len() < count_max => return Err(errno),
            Err(_) => {}
            Ok(_) => listing.put(end, end),
        }
        listing.extents.truncate(count_max);
        Ok(listing.extents)
    }
}

/// Extents so far, up to a byte of the image, of those before `end`.
struct Listing {
    at: u64,
    end: u64,
    extents: Vec<Extent>,
    count_max: usize,
    /// Where the last one begins, and whether one began before the one before it.
    last: u64,
    unsorted: bool,
}

impl Listing {
    fn new(range: ByteRange, count_max: usize) -> Self {
        let (at, end) = (range.offset, range.offset + range.len);
        Self { at, end, extents: Vec::new(), count_max, last: 0, unsorted: false }
    }

    /// The next one that is told; true if no more is wanted.
    fn tell(&mut self, start: u64, len: u64, stored: bool) -> bool {
        self.unsorted |= start < self.last;
        self.last = start;
        let over = self.unsorted || self.extents.len() >= self.count_max;
        if stored && !over {
            self.put(start, start + len);
        }
        over
    }

    /// A hole up to byte `start`, and what is stored from there to `end`, of what comes after the last.
    fn put(&mut self, start: u64, end: u64) {
        assert!(start <= end, "an extent from {start} to {end}");
        let (start, end) = (start.clamp(self.at, self.end), end.min(self.end));
        Extent::hole(start - self.at).append_to(&mut self.extents);
        Extent::stored(end.saturating_sub(start)).append_to(&mut self.extents);
        self.at = end.max(start);
    }
}

extern "C" fn go_on(_done: u64, _of: u64, _nothing: *mut c_void) -> c_int {
    0
}

extern "C" fn note_change(changes: *mut c_void) {
    // SAFETY: it is the count of an image, which outlives its watch.
    unsafe { &*changes.cast::<AtomicU64>() }.fetch_add(1, Ordering::Release);
}

extern "C" fn put_extent(start: u64, len: usize, stored: c_int, list: *mut c_void) -> c_int {
    // SAFETY: it is the list of the call that calls this, on the same thread.
    let listing = unsafe { &mut *list.cast::<Listing>() };
    if listing.tell(start, len as u64, stored != 0) { -libc::EOVERFLOW } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_joined_and_end_with_the_range() {
        let mut listing = Listing::new(ByteRange::new(10, 90), 10);
        let found = [(0, 20), (20, 30), (50, 60), (60, 60), (99, 140), (150, 160), (100, 100)];
        found.into_iter().for_each(|(start, end)| listing.put(start, end));
        let wanted = [Extent::stored(20), Extent::hole(20), Extent::stored(10), Extent::hole(39)];
        let wanted = [&wanted[..], &[Extent::stored(1)]].concat();
        assert_eq!(listing.extents, wanted);
    }

    #[test]
    fn no_more_than_wanted_is_told_and_nothing_behind_one_out_of_order() {
        let mut listing = Listing::new(ByteRange::new(0, 100), 2);
        let told = [(10, true), (30, false)].map(|(start, stored)| listing.tell(start, 5, stored));
        assert_eq!(told, [false, true], "a hole and what is stored are two");
        let mut listing = Listing::new(ByteRange::new(0, 100), 10);
        assert!(!listing.tell(30, 10, true) && listing.tell(10, 10, true));
        assert!(listing.unsorted, "10 to 20 would be a hole");
    }
}
