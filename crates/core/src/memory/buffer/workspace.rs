//! Buffers that a layer needs for itself, beside those that arrive with requests.
//!
//! A [`Workspace`] is a number of bytes charged to a budget when the layer is opened; its buffers are lent first come,
//! first served. A buffer gives its bytes back when it is dropped, wherever that is: a request that was withdrawn while the
//! kernel still had it keeps its charge until the kernel is done.
//!
//! Rules of use, under which no task waits for ever: a layer takes from its own workspace only; it takes at most once a step,
//! with nothing of the workspace held ([`Workspace::take_each`] takes several buffers together), and holds what it took only
//! while it waits for layers below. Longer work is cut into pieces that fit.

use std::sync::Arc;

use super::io_buf::IoBuf;
use super::lender::Lender;
use super::page::{ALIGNMENT, new_pages, pages_for};
use super::pool::{BufferMemory, BufferOwner};
use crate::error::Error;
use crate::memory::budget::Budget;
use crate::size::human;

/// A fixed number of bytes of buffers.
#[derive(Clone)]
pub struct Workspace(Arc<BufferOwner>);

impl Workspace {
    /// Charges `bytes`, rounded up to whole pages, to `budget`; [`NoSpace`](crate::Kind::NoSpace) where it has no room. `what` names the use
    /// for people, as in "buffers to merge partial writes".
    pub fn new(what: &str, budget: &Arc<Budget>, bytes: usize) -> Result<Self, Error> {
        let whole = (pages_for(bytes) * ALIGNMENT) as u64;
        let charge = budget.hold(whole).map_err(|kind| {
            let (needed, room) = (human(whole), human(budget.room()));
            Error::new(
                kind,
                format!("no room for {what}: {needed} are needed, {room} are left of the memory budget: give --memory more"),
            )
        })?;
        Ok(Self(Arc::new(BufferOwner::Lender(Lender::new(whole, charge)))))
    }

    fn lender(&self) -> &Lender {
        match &*self.0 {
            BufferOwner::Lender(lender) => lender,
            BufferOwner::Pool(_) => unreachable!("a workspace is made of a lender"),
        }
    }

    /// Bytes of the whole workspace: the most that can be taken at once.
    pub fn bytes(&self) -> usize {
        self.lender().whole as usize
    }

    /// A buffer of `len` bytes of arbitrary content, after everybody who asked before. Panics where `len` in whole pages is
    /// more than the whole workspace: cut the work into pieces that fit.
    pub async fn take(&self, len: usize) -> IoBuf {
        let bytes = self.checked(&[len]);
        self.lender().lent.take(bytes).await;
        self.buf(len)
    }

    /// A buffer of `len` bytes, or `None` where that would have to wait.
    pub fn try_take(&self, len: usize) -> Option<IoBuf> {
        let bytes = self.checked(&[len]);
        self.lender().lent.try_take(bytes).then(|| self.buf(len))
    }

    /// Several buffers together, as one [`Workspace::take`] of the sum of their whole pages.
    pub async fn take_each(&self, lens: &[usize]) -> Vec<IoBuf> {
        let bytes = self.checked(lens);
        self.lender().lent.take(bytes).await;
        lens.iter().map(|&len| self.buf(len)).collect()
    }

    /// The same of two.
    pub async fn take_both(&self, lens: [usize; 2]) -> [IoBuf; 2] {
        self.lender().lent.take(self.checked(&lens)).await;
        lens.map(|len| self.buf(len))
    }

    /// Bytes that are lent.
    pub fn lent(&self) -> usize {
        self.lender().lent.used() as usize
    }

    fn checked(&self, lens: &[usize]) -> u64 {
        let bytes: usize = lens.iter().map(|&len| pages_for(len) * ALIGNMENT).sum();
        assert!(
            bytes as u64 <= self.lender().whole,
            "{bytes} bytes asked of a workspace of {}",
            self.lender().whole
        );
        bytes as u64
    }

    /// A buffer whose bytes are counted as lent already.
    fn buf(&self, len: usize) -> IoBuf {
        if len == 0 {
            return IoBuf::empty();
        }
        let pages = pages_for(len);
        let memory = self.lender().reuse(pages).unwrap_or_else(|| new_pages(pages));
        IoBuf::of(BufferMemory::new(memory, self.0.clone()), len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::block_on;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    const PAGE: usize = ALIGNMENT;

    fn workspace(pages: usize) -> (Arc<Budget>, Workspace) {
        let budget = Budget::new((pages * PAGE) as u64);
        let workspace = Workspace::new("tests", &budget, pages * PAGE).unwrap();
        (budget, workspace)
    }

    #[test]
    fn it_is_charged_as_long_as_a_buffer_of_it_lives() {
        let (budget, workspace) = workspace(4);
        let buf = block_on(workspace.take(100));
        drop(workspace);
        assert_eq!(budget.used(), 4 * PAGE as u64);
        std::thread::spawn(move || drop(buf)).join().unwrap();
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_budget_without_room_refuses_with_words() {
        let budget = Budget::new(PAGE as u64);
        let error =
            Workspace::new("tests", &budget, PAGE + 1).err().expect("two pages do not fit").to_string();
        assert!(error.contains("tests") && error.contains("8K") && error.contains("4K"), "{error}");
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_task_that_finds_no_room_waits_in_turn() {
        let (_budget, workspace) = workspace(4);
        let mut context = Context::from_waker(Waker::noop());
        let held = block_on(workspace.take_each(&[PAGE, 2 * PAGE]));
        assert_eq!(held.iter().map(|buf| buf.len()).collect::<Vec<_>>(), [PAGE, 2 * PAGE]);
        let mut large = pin!(workspace.take(4 * PAGE));
        assert!(large.as_mut().poll(&mut context).is_pending());
        assert!(workspace.try_take(PAGE).is_none(), "a page is free, but a task waits");
        drop(held);
        assert!(large.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn what_is_kept_and_what_is_lent_are_never_more_than_the_whole() {
        let (_budget, workspace) = workspace(8);
        for pages in [1, 3, 5, 8, 2, 2, 7, 1, 4, 4, 8] {
            let first = block_on(workspace.take(pages * PAGE));
            let second = workspace.try_take((8 - pages) * PAGE).expect("the rest is free");
            let kept: usize = workspace.lender().kept.lock().iter().map(|memory| memory.len()).sum();
            assert!(kept + 8 <= 8, "{kept} pages kept with 8 lent");
            drop((first, second));
        }
    }

    #[test]
    #[should_panic(expected = "asked of a workspace")]
    fn more_than_the_whole_is_a_bug() {
        let (_budget, workspace) = workspace(1);
        let _ = workspace.try_take(PAGE + 1);
    }
}
