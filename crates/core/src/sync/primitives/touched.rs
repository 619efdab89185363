//! Words that a failed exchange has touched: a change that changes nothing makes memory resident all the same. For models, of which all
//! threads run on one of the system.

use std::cell::RefCell;
use std::collections::BTreeSet;

use shuttle::sync::atomic::AtomicU64;

thread_local! {
    /// Addresses of words whose exchange failed, since their memory was last released.
    static TOUCHED: RefCell<BTreeSet<usize>> = const { RefCell::new(BTreeSet::new()) };
}

fn address(word: &AtomicU64) -> usize {
    std::ptr::from_ref(word).addr()
}

/// The exchange of a word has failed.
pub(super) fn note(word: &AtomicU64) {
    TOUCHED.with_borrow_mut(|touched| touched.insert(address(word)));
}

/// Whether the exchange of one of these words has failed since they were last released: their memory is resident.
pub fn is_touched(words: &[AtomicU64]) -> bool {
    TOUCHED.with_borrow(|touched| words.iter().any(|word| touched.contains(&address(word))))
}

/// The memory of these words is released.
pub fn note_release(words: &[AtomicU64]) {
    TOUCHED.with_borrow_mut(|touched| words.iter().for_each(|word| _ = touched.remove(&address(word))));
}
