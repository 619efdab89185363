//! Others in the server of a device, such as a page cache or another device: what they take of the memory that all share, and when
//! a client is alone with the device all the same.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use spillway_core::size::memparse;
use spillway_core::{Budget, Charge, Kind};

/// Set as an attribute is, to the bytes that others leave, or to `all`.
pub(crate) const OTHERS: &str = "others";

/// What others take.
pub(crate) struct Others {
    budget: Arc<Budget>,
    held: RefCell<Option<Charge>>,
    /// They took some at any time.
    came: Cell<bool>,
}

impl Others {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, held: RefCell::default(), came: Cell::default() }
    }

    /// From now on they leave what `text` says, if that is there, until the device takes it.
    pub(crate) fn leave(&self, text: &str) {
        self.held.take();
        if text != "all" {
            let left = memparse(text).expect("the table has valid sizes");
            let taken = self.budget.room().saturating_sub(left);
            *self.held.borrow_mut() = Some(self.budget.hold(taken).expect("there is room for it"));
            self.came.set(true);
        }
    }

    /// Whether they may be the reason for which a write found no memory.
    pub(crate) fn may_refuse(&self, kind: Kind) -> bool {
        kind == Kind::NoSpace && self.came.get()
    }
}

/// Steps of all clients.
#[derive(Default)]
pub(crate) struct Steps {
    begun: Cell<u64>,
    under_way: Cell<u64>,
}

/// A step that is being made.
pub(crate) struct Made(Rc<Steps>);

impl Steps {
    pub(crate) fn begin(self: &Rc<Self>) -> Made {
        self.begun.set(self.begun.get() + 1);
        self.under_way.set(self.under_way.get() + 1);
        Made(self.clone())
    }

    /// The step that is being made alone, by its number.
    pub(crate) fn alone(&self) -> Option<u64> {
        (self.under_way.get() == 1).then(|| self.begun.get())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_take_all_but_what_they_leave_and_give_it_back() {
        let others = Others::new(Budget::new(100 << 10));
        assert!(!others.may_refuse(Kind::NoSpace));
        others.leave("16K");
        assert_eq!(others.budget.room(), 16 << 10);
        others.leave("64K");
        assert_eq!(others.budget.room(), 64 << 10);
        others.leave("all");
        assert_eq!(others.budget.room(), 100 << 10);
        assert!(others.may_refuse(Kind::NoSpace) && !others.may_refuse(Kind::Io));
    }

    #[test]
    fn a_step_is_alone_if_no_other_was_made_beside_it() {
        let steps = Rc::new(Steps::default());
        let first = steps.begin();
        let alone = steps.alone();
        assert!(alone.is_some());
        let second = steps.begin();
        assert_eq!(steps.alone(), None);
        drop(second);
        assert_ne!(steps.alone(), alone);
        drop(first);
        let last = steps.begin();
        assert!(steps.alone().is_some());
        drop(last);
    }
}
