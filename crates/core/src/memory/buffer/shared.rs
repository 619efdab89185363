//! One buffer that several requests write from at the same time.

use std::sync::Arc;

use super::io_buf::{IoBuf, Whole};

/// A buffer whose parts can be written to several places at once, each part a view with a request of its own.
pub struct Shared(Arc<Whole>);

impl Shared {
    /// `charge` is memory set aside for what the requests take beside the buffer. Like the buffer it lives as long as any
    /// view: a request that was withdrawn while the kernel still had it keeps both.
    pub fn new(buf: IoBuf, charge: IoBuf) -> Self {
        Self(Arc::new(Whole::new(buf, charge)))
    }

    /// `len` bytes from `start` of the buffer, to be written somewhere. Changing them panics.
    pub fn view(&self, start: usize, len: usize) -> IoBuf {
        let bytes = self.0.buf.len();
        let fits = start.checked_add(len).is_some_and(|end| end <= bytes);
        assert!(fits, "{start}+{len} is outside a shared buffer of {bytes} bytes");
        IoBuf::part_of(self.0.clone(), start, len)
    }

    /// The buffer, once every view has come back with its reply and is dropped; panics before.
    pub fn into_whole(self) -> IoBuf {
        match Arc::into_inner(self.0) {
            Some(whole) => whole.buf,
            None => panic!(
                "a view of a shared buffer is still somewhere: a request was answered and not given back"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::budget::Budget;
    use crate::memory::buffer::{ALIGNMENT, Workspace, ZEROES_LEN};

    #[test]
    fn views_show_their_part_of_the_window_and_take_no_memory() {
        let mut buf = IoBuf::copy_of(&(0..=99).collect::<Vec<u8>>());
        buf.narrow(10, 80);
        let address = buf.as_ptr() as usize;
        let shared = Shared::new(buf, IoBuf::empty());
        let (mut first, second, none) = (shared.view(0, 20), shared.view(20, 60), shared.view(80, 0));
        assert_eq!((&first[..2], &second[58..], none.len()), (&[10, 11][..], &[88, 89][..], 0));
        assert_eq!((second.as_ptr() as usize - address, second.capacity()), (20, 0));
        first.narrow(5, 1);
        first.unnarrow(5, 20);
        assert_eq!((first[0], first[19]), (10, 29));
        drop((first, second, none));
        let mut buf = shared.into_whole();
        buf.unnarrow(10, 100);
        buf.iter_mut().for_each(|byte| *byte += 1);
        assert_eq!((buf[0], buf[99]), (1, 100));
    }

    #[test]
    fn zeroes_can_be_shared() {
        let shared = Shared::new(IoBuf::zeroes(ZEROES_LEN), IoBuf::empty());
        assert!(shared.view(512, 1024).iter().all(|&byte| byte == 0));
        assert_eq!(shared.into_whole().len(), ZEROES_LEN);
    }

    #[test]
    fn buffer_and_charge_live_as_long_as_a_view() {
        let budget = Budget::new(2 * ALIGNMENT as u64);
        let workspace = Workspace::new("tests", &budget, 2 * ALIGNMENT).expect("it fits");
        let take = || workspace.try_take(ALIGNMENT).expect("a page is free");
        let shared = Shared::new(take(), take());
        let view = shared.view(0, 512);
        drop(shared);
        assert!(workspace.try_take(1).is_none());
        std::thread::spawn(move || drop(view)).join().expect("no panic");
        assert!(workspace.try_take(2 * ALIGNMENT).is_some());
    }

    #[test]
    #[should_panic(expected = "of a view are to be written to")]
    fn views_are_not_to_be_changed() {
        Shared::new(IoBuf::zeroed(512), IoBuf::empty()).view(0, 512)[0] = 1;
    }

    #[test]
    #[should_panic(expected = "still somewhere")]
    fn the_whole_is_not_to_be_had_before_its_views() {
        let shared = Shared::new(IoBuf::zeroed(512), IoBuf::empty());
        let _view = shared.view(0, 1);
        shared.into_whole();
    }

    #[test]
    #[should_panic(expected = "outside a shared buffer")]
    fn a_view_stays_within_the_window() {
        let mut buf = IoBuf::zeroed(512);
        buf.narrow(0, 100);
        Shared::new(buf, IoBuf::empty()).view(50, 51);
    }
}
