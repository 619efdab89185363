//! Memory that another program shares, by mapping its file.
//!
//! The other program may cut the file off at any moment, and a huge page may not be had: an access to what is gone is answered with SIGBUS.
//! The handler here puts zeroes in the place of the whole mapping and notes that, so that the access goes on; who uses the mapping looks
//! whether it is whole before it believes what it has read. A seal (F_SEAL_SHRINK) would rule out the first of these only, and not all
//! monitors set it.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::fs::{FileType, MemfdFlags, fstat, fstatfs, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use spillway_core::shared_memory::SharedMemory;
use spillway_core::sync::Mutex;
use spillway_core::{Error, Kind};
// Not those of the thread models: a signal handler reads them.
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicUsize, Ordering};

use crate::runtime::driver::kind_of;

/// Most mappings at a time, of all devices.
const MAPPINGS_MAX: usize = 1024;

/// Type of hugetlbfs in `statfs`.
const HUGETLBFS: i64 = 0x9584_58f6;

/// A mapping as the signal handler sees it.
struct Watched {
    base: AtomicUsize,
    len: AtomicUsize,
    /// Bytes of a page of its file.
    page: AtomicUsize,
    gone: AtomicBool,
}

static WATCHED: [Watched; MAPPINGS_MAX] = [const { Watched::unused() }; MAPPINGS_MAX];

/// Held while a place in [`WATCHED`] is taken.
static TURN: Mutex<()> = Mutex::new(());

/// What handled the signal before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Where a file may be shared from on: at whole numbers of the rings.
const UNIT: u64 = 8;

/// A mapping.
pub(super) struct Mapping {
    base: NonNull<u8>,
    /// Where the shared range begins and how long it is, in a mapping that begins and ends with whole pages.
    offset: usize,
    len: usize,
    mapped_len: usize,
    watched: &'static Watched,
}

// SAFETY: the mapping belongs to this value alone, and its address does not depend on the thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; others change the bytes at any moment anyway, and nobody gets a reference to them: they are only copied.
unsafe impl Sync for Mapping {}

fn failed(what: &str, errno: rustix::io::Errno) -> Error {
    let error = std::io::Error::from(errno);
    Error::new(kind_of(&error), format!("shared memory cannot be {what}: {error}"))
}

/// Bytes of a page of the file.
fn page_of(file: &OwnedFd) -> u64 {
    let huge = fstatfs(file).ok().filter(|found| found.f_type == HUGETLBFS);
    huge.and_then(|found| u64::try_from(found.f_bsize).ok()).unwrap_or(4096)
}

/// A file of `len` zeroes in memory.
pub(super) fn memory_file(len: u64) -> Result<OwnedFd, Error> {
    let file = memfd_create("spillway", MemfdFlags::CLOEXEC).map_err(|errno| failed("made", errno))?;
    ftruncate(&file, len).map_err(|errno| failed("made", errno))?;
    Ok(file)
}

impl Mapping {
    /// Maps `len` bytes of a file from `offset` on.
    ///
    /// [`Kind::Invalid`] where the file has less, or is none; otherwise what the system says.
    pub(super) fn new(file: &OwnedFd, offset: u64, len: u64) -> Result<Self, Error> {
        let found = fstat(file).map_err(|errno| failed("looked at", errno))?;
        let end = offset.checked_add(len).filter(|end| *end <= found.st_size as u64);
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
            || end.is_none()
            || len == 0
            || !offset.is_multiple_of(UNIT)
        {
            return Err(Error::invalid(format!(
                "shared memory of {len} bytes from {offset} on does not lie in its file of {} bytes, or begins at an odd place",
                found.st_size
            )));
        }
        let page = page_of(file);
        let from = offset / page * page;
        let mapped_len = (offset + len).next_multiple_of(page) - from;
        let mapped_len =
            usize::try_from(mapped_len).map_err(|_| Error::invalid("more than can be mapped"))?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), mapped_len, protection, flags, file, from) };
        let base = base.map_err(|errno| failed("mapped", errno))?;
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at address 0");
        // SAFETY: the range was just mapped; the advice changes none of its bytes.
        let advised = unsafe { madvise(base.as_ptr().cast::<c_void>(), mapped_len, Advice::LinuxDontDump) };
        if let Err(errno) = advised {
            tracing::debug!("a guest's memory may be part of a core dump: {errno}");
        }
        let Some(watched) = watch(base, mapped_len, page as usize) else {
            // SAFETY: it was mapped with this length, and nobody has seen it.
            let _ = unsafe { munmap(base.as_ptr().cast::<c_void>(), mapped_len) };
            return Err(Error::new(
                Kind::OutOfMemory,
                format!("{MAPPINGS_MAX} ranges of memory are shared already"),
            ));
        };
        Ok(Self { base, offset: (offset - from) as usize, len: len as usize, mapped_len, watched })
    }

    /// The address of `len` bytes from `at` on.
    fn place(&self, at: u64, len: usize) -> *mut u8 {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at}+{len} of {}", self.len);
        // SAFETY: the range lies in the mapping, as was just checked.
        unsafe { self.base.as_ptr().add(self.offset + at) }
    }

    /// The number at `at`.
    fn number(&self, at: u64) -> &AtomicU16 {
        let place = self.place(at, 2).cast::<u16>();
        assert!(place.is_aligned(), "a number at {at}");
        // SAFETY: it is aligned and lies in the mapping, which lives as long as this value; others change it by whole numbers, as this does.
        unsafe { AtomicU16::from_ptr(place) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watched.base.store(0, Ordering::Release);
        // SAFETY: it was mapped with this length and nobody has a reference into it: bytes are only ever copied.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.mapped_len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

impl SharedMemory for Mapping {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        let from = self.place(at, to.len());
        // SAFETY: both have so many bytes; `to` is memory of its own. What others write meanwhile may come whole, in part or not at all.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    fn write(&self, at: u64, from: &[u8]) {
        let to = self.place(at, from.len());
        // SAFETY: as for reading.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    fn load(&self, at: u64) -> u16 {
        u16::from_le(self.number(at).load(Ordering::Acquire))
    }

    fn store(&self, at: u64, value: u16) {
        self.number(at).store(value.to_le(), Ordering::Release);
    }

    fn is_whole(&self) -> bool {
        !self.watched.gone.load(Ordering::Acquire)
    }
}

/// Has the signal handler know of a mapping. `None` where it knows as many as it can.
fn watch(base: NonNull<u8>, len: usize, page: usize) -> Option<&'static Watched> {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(handle_faults);
    let _turn = TURN.lock();
    let free = WATCHED.iter().find(|watched| watched.base.load(Ordering::Acquire) == 0)?;
    free.gone.store(false, Ordering::Relaxed);
    free.len.store(len, Ordering::Release);
    free.page.store(page, Ordering::Release);
    free.base.store(base.as_ptr().expose_provenance(), Ordering::Release);
    Some(free)
}

fn handle_faults() {
    // SAFETY: it has numbers and an optional function only, which may be zero.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the call reads what handles the signal so far and writes it to memory that is there.
    unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) };
    // Never freed: the handler may read it at any moment.
    BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
    // SAFETY: the handler only calls what may be called in one, and reads memory that is never freed.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0, "a signal that exists is given a handler");
}

/// Puts zeroes in the place of a mapping of which a part is gone, or of the page alone where the system counts what may be written, and has
/// no room for all of it. Any other fault is left to who handled it before.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands over a description of the fault.
    let address = unsafe { (*info).si_addr() }.addr();
    match WATCHED.iter().find_map(|watched| watched.holds(address)) {
        Some((watched, base, len)) => watched.replace(base, len, address),
        None => pass_on(signal, info, context),
    }
}

impl Watched {
    const fn unused() -> Self {
        let [base, len, page] = [const { AtomicUsize::new(0) }; 3];
        Self { base, len, page, gone: AtomicBool::new(false) }
    }

    /// Itself and the mapping, if that has `address`. Read twice: the place may be given to another mapping meanwhile. One that has the address
    /// of a fault is in use by the thread that faults, and stays.
    fn holds(&self, address: usize) -> Option<(&Self, usize, usize)> {
        let base = self.base.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Acquire);
        let same = self.base.load(Ordering::Acquire) == base;
        (base != 0 && same && address.wrapping_sub(base) < len).then_some((self, base, len))
    }

    fn replace(&self, base: usize, len: usize, address: usize) {
        self.gone.store(true, Ordering::Release);
        let page = self.page.load(Ordering::Acquire);
        let place = (base + (address - base) / page * page, page);
        // SAFETY: errno belongs to the thread that was interrupted, and is put back; the ranges are of one that this module has mapped, and
        // whose bytes are only ever copied.
        unsafe {
            let errno = *libc::__errno_location();
            if !put_zeroes((base, len)) && !put_zeroes(place) {
                libc::abort();
            }
            *libc::__errno_location() = errno;
        }
    }
}

/// Puts zeroes in the place of a range; whether the system has room for them. Where it has not, the range is as it was: a mapping that is
/// made in its place and refused would leave nothing there on many kernels.
///
/// # Safety
///
/// Nobody relies on what the range holds. The system calls may be made in a handler.
unsafe fn put_zeroes((base, len): (usize, usize)) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let place = std::ptr::with_exposed_provenance_mut::<c_void>(base);
    // SAFETY: a new mapping replaces nothing; what it replaces when it is moved is the caller's to give.
    unsafe {
        let zeroes = libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0);
        zeroes != libc::MAP_FAILED
            && libc::mremap(zeroes, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, place)
                != libc::MAP_FAILED
    }
}

fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: it was set before this handler, and is never freed.
    let before = unsafe { &*before };
    match before.sa_sigaction {
        // The fault comes again, and ends the process.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the call reads what lives on.
            unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with this flag it is a function of these arguments.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag it is a function of this argument.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;

    fn mapped_file(len: u64) -> (OwnedFd, Mapping) {
        let file = memory_file(len).unwrap();
        let mapping = Mapping::new(&file, 0, len).unwrap();
        (file, mapping)
    }

    #[test]
    fn a_range_of_a_file_is_shared_wherever_it_begins() {
        let (file, whole) = mapped_file(3 * 4096);
        let part = Mapping::new(&file, 4096 + 512, 4096).unwrap();
        part.write(0, b"abcd");
        let mut bytes = [0; 4];
        whole.read(4096 + 512, &mut bytes);
        assert_eq!(&bytes, b"abcd");
        whole.store(4096 + 512, 0x1234);
        assert_eq!((part.load(0), part.len()), (0x1234, 4096));
    }

    #[test]
    fn what_the_file_does_not_have_is_refused() {
        let file = memory_file(4096).unwrap();
        for (offset, len) in [(0, 4097), (4096, 1), (u64::MAX, 2), (0, 0), (1, 2), (2, 2)] {
            assert_eq!(Mapping::new(&file, offset, len).err().unwrap().kind, Kind::Invalid, "{offset}+{len}");
        }
        let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        assert_eq!(Mapping::new(&null.into(), 0, 1).err().unwrap().kind, Kind::Invalid);
    }

    #[test]
    fn a_file_that_is_cut_off_costs_its_bytes_and_not_the_process() {
        let (file, mapping) = mapped_file(1 << 20);
        let (_, other) = mapped_file(4096);
        mapping.write(0, b"here");
        assert!(mapping.is_whole());
        ftruncate(&file, 4096).unwrap();
        let mut bytes = [1; 4];
        mapping.read(0, &mut bytes);
        assert_eq!((&bytes, mapping.is_whole()), (b"here", true), "this page is there");
        mapping.read(512 << 10, &mut bytes);
        assert_eq!((bytes, mapping.is_whole()), ([0; 4], false));
        mapping.write(512 << 10, b"away");
        assert!(other.is_whole());
        drop(mapping);
        let again = Mapping::new(&file, 0, 4096).unwrap();
        again.read(0, &mut bytes);
        assert_eq!((&bytes, again.is_whole()), (b"here", true), "the file has what was written before");
    }

    /// The limit belongs to the process, so that this test runs in one of its own.
    #[test]
    fn where_there_is_no_room_for_a_whole_mapping_a_page_is_replaced() {
        let name = "vhost::mapping::tests::replaced_below_a_limit";
        let program = std::env::current_exe().unwrap();
        let mut test = std::process::Command::new(program);
        let done = test.args(["--exact", name, "--ignored", "--nocapture"]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    #[ignore = "where_there_is_no_room_for_a_whole_mapping_a_page_is_replaced runs it"]
    fn replaced_below_a_limit() {
        let (file, mapping) = mapped_file(1 << 30);
        ftruncate(&file, 4096).unwrap();
        let limit = Some(256 << 20);
        setrlimit(Resource::Data, Rlimit { current: limit, maximum: limit }).unwrap();
        for at in [512 << 20, 600 << 20] {
            let mut bytes = [1; 4];
            mapping.write(at, b"away");
            mapping.read(at, &mut bytes);
            assert_eq!((&bytes, mapping.is_whole()), (b"away", false), "a page of its own at {at}");
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains("memfd:spillway"), "the rest is where it was");
    }
}
