//! What the two ends of a mount share: the messages that are under way, and who waits for news of them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use spillway_core::sync::WaitList;

use crate::pace::Chance;

/// Messages of which any may be read first: those of several clients have no order, and the kernel keeps some back.
const UNORDERED: usize = 4;

/// A message that nobody has read.
struct Unread {
    message: Vec<u8>,
    answered: bool,
}

/// What both ends share.
pub(super) struct MessageQueue {
    /// The oldest first.
    unread: RefCell<VecDeque<Unread>>,
    /// Which reader has what is to be answered, by its number.
    read: RefCell<BTreeMap<u64, usize>>,
    replies: RefCell<VecDeque<Vec<u8>>>,
    aborted: Cell<bool>,
    /// Readers that are not gone.
    readers: Cell<usize>,
    /// Wakes the kernel's tasks.
    news: WaitList,
    /// Wake the tasks of readers.
    wakers: RefCell<Vec<Option<Waker>>>,
    pub(super) chance: Chance,
}

/// The number of a message, or of a reply.
pub(super) fn number_of(message: &[u8]) -> u64 {
    let number = message.get(8..16).expect("whatever is sent has a number");
    u64::from_ne_bytes(number.try_into().expect("of eight bytes"))
}

impl MessageQueue {
    pub(super) fn new(readers: usize, seed: u64) -> Self {
        Self {
            unread: RefCell::default(),
            read: RefCell::default(),
            replies: RefCell::default(),
            aborted: Cell::default(),
            readers: Cell::new(readers),
            news: WaitList::default(),
            wakers: RefCell::new(vec![None; readers]),
            chance: Chance::new(seed),
        }
    }

    pub(super) fn put(&self, message: Vec<u8>, answered: bool) {
        if !self.aborted.get() {
            self.unread.borrow_mut().push_back(Unread { message, answered });
            self.wake_readers();
        }
    }

    pub(super) fn take_back(&self, number: u64) -> bool {
        let mut unread = self.unread.borrow_mut();
        let place = unread.iter().position(|each| number_of(&each.message) == number);
        place.and_then(|place| unread.remove(place)).is_some()
    }

    /// A message for that reader, if there is one.
    pub(super) fn take(&self, reader: usize) -> Option<Vec<u8>> {
        let count = self.unread.borrow().len().min(UNORDERED);
        let place = if count > 1 { self.chance.below(count as u64) as usize } else { 0 };
        let Unread { message, answered } = self.unread.borrow_mut().remove(place)?;
        if answered {
            let before = self.read.borrow_mut().insert(number_of(&message), reader);
            assert!(before.is_none(), "no number is given twice");
        }
        Some(message)
    }

    /// That reader replies. A reply that nobody waits for breaks the story; one to a connection that was aborted is lost.
    pub(super) fn answer(&self, reader: usize, reply: Vec<u8>) {
        if self.aborted.get() {
            return;
        }
        let by = self.read.borrow_mut().remove(&number_of(&reply));
        assert_eq!(by, Some(reader), "a reply that nobody waits for, or not from this reader");
        self.replies.borrow_mut().push_back(reply);
        self.news.wake_all();
    }

    pub(super) async fn reply(&self) -> Option<Vec<u8>> {
        let next = || self.replies.borrow_mut().pop_front();
        self.news.until(|| next().map(Some).or(self.aborted.get().then_some(None))).await
    }

    pub(super) fn abort(&self) {
        self.aborted.set(true);
        self.unread.borrow_mut().clear();
        self.news.wake_all();
        self.wake_readers();
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.get()
    }

    /// A reader is gone.
    pub(super) fn leave(&self) {
        self.readers.set(self.readers.get() - 1);
        self.news.wake_all();
    }

    pub(super) async fn left(&self) {
        self.news.until(|| (self.readers.get() == 0).then_some(())).await;
    }

    /// From now on that reader is woken by news for it.
    pub(super) fn listen(&self, reader: usize, waker: &Waker) {
        self.wakers.borrow_mut()[reader] = Some(waker.clone());
    }

    fn wake_readers(&self) {
        let wakers: Vec<Waker> = self.wakers.borrow().iter().flatten().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}
