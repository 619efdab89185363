//! Others in the server of a device, such as a page cache or another device: what they take of the memory that all share, when
//! a client is alone with the device all the same, and what all of them may hold then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use spillway_core::size::memparse;
use spillway_core::{Budget, Charge, Kind};
use spillway_sim::model::Model;

use super::room;

/// Set as an attribute is, to the bytes that others leave, or to `all`.
pub(crate) const OTHERS: &str = "others";

/// What others take.
pub(crate) struct Others {
    budget: Arc<Budget>,
    held: RefCell<Option<Charge>>,
    /// They took some at any time.
    came: Cell<bool>,
    /// What they leave to several devices from the beginning, where they take the rest.
    leave_first: Option<&'static str>,
    /// The device that they are others to takes memory for nothing but what it holds.
    exact: bool,
    /// What devices had taken when all of them had been opened.
    base: Cell<u64>,
    /// Of devices that take memory for nothing but what they hold.
    models: RefCell<Vec<Rc<RefCell<Model>>>>,
    /// Of devices that spill: bytes in memory that can leave.
    spilling: RefCell<Vec<Box<dyn Fn() -> u64>>>,
}

impl Others {
    pub(crate) fn new(budget: Arc<Budget>, exact: bool, leave_first: Option<&'static str>) -> Self {
        let (held, came, base, models, spilling) = Default::default();
        Self { budget, held, came, leave_first, exact, base, models, spilling }
    }

    /// A device is one of them that spills; it says how many bytes in memory can leave.
    pub(crate) fn join_spilling(&self, can_leave: impl Fn() -> u64 + 'static) {
        self.spilling.borrow_mut().push(Box::new(can_leave));
    }

    /// Bytes in memory that can leave, of all devices.
    pub(crate) fn can_leave(&self) -> u64 {
        self.spilling.borrow().iter().map(|can_leave| can_leave()).sum()
    }

    /// A device is one of them that takes memory for nothing but what it holds, as `model` knows it.
    pub(crate) fn join(&self, model: &Rc<RefCell<Model>>) {
        self.models.borrow_mut().push(model.clone());
    }

    /// All devices are open, and there is more than one, or not.
    pub(crate) fn settle(&self, several: bool) {
        self.came.set(several);
        self.base.set(self.budget.used());
        self.leave_first.into_iter().for_each(|left| self.leave(left));
    }

    /// Bytes that must be left though a write found none that was made alone: all devices together, at worst, hold less.
    pub(crate) fn unexplained(&self) -> Option<u64> {
        let held = self.held.borrow().as_ref().map_or(0, Charge::bytes);
        let models = self.models.borrow();
        let worst: u64 = models.iter().map(|model| room::worst(&model.borrow())).sum();
        let kept = worst + room::kept(models.len() as u64);
        let left = self.budget.limit().saturating_sub(self.base.get() + held + kept);
        Some(left).filter(|&left| self.exact && left > 0)
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
        let others = Others::new(Budget::new(100 << 10), true, None);
        assert!(!others.may_refuse(Kind::NoSpace));
        others.leave("16K");
        assert_eq!(others.budget.room(), 16 << 10);
        others.leave("64K");
        assert_eq!(others.budget.room(), 64 << 10);
        others.leave("all");
        assert_eq!(others.budget.room(), 100 << 10);
        assert!(others.may_refuse(Kind::NoSpace) && !others.may_refuse(Kind::Io));
        let others = Others::new(Budget::new(100 << 10), true, Some("16K"));
        others.settle(true);
        assert_eq!(others.budget.room(), 16 << 10);
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
