//! How a phase ends in order: a cache is drained, a server stops, everything is discarded.

use std::cell::OnceCell;
use std::rc::Rc;

use spillway_core::{Attributes, Error, Value};
use spillway_sim::model::{End, Violation};
use spillway_sim::workload::{Act, Step};

use super::House;
use crate::run::visitor::Visitor;

impl House {
    /// Begins a drain, with all that is written back from a page cache before; none where the power went.
    fn begin_drain(&self) -> Result<Option<Result<(), Error>>, Violation> {
        let (visitor, begun) = (self.visitor.clone(), Rc::new(OnceCell::new()));
        let told = begun.clone();
        let drain = self.spawn(async move {
            let answer = visitor.stack().set("drain", Value::U64(1)).await;
            told.set(answer).expect("it is answered once");
        });
        self.until_done(vec![drain])?;
        let unsaved = self.visitor.stack().get("unsaved_bytes").ok().filter(|bytes| *bytes != Value::U64(0));
        match (begun.get(), unsaved) {
            (Some(Ok(())), Some(left)) => {
                Err(Violation(format!("a drain has begun below a page cache, which has {left:?} bytes left")))
            }
            (begun, _) => Ok(begun.cloned()),
        }
    }

    /// Empties a write cache, and a page cache over it before, and looks at everything once more.
    pub(super) fn drain(&self) -> Result<(), Violation> {
        let flush = self.visitor.model.borrow_mut().begin_flush();
        let (stack, begun) = (self.visitor.stack(), self.begin_drain()?);
        let state = || stack.get("drain_state").ok().and_then(|state| state.choice());
        self.until(|| state() != Some("running"))?;
        if self.powerless() {
            return Ok(());
        }
        let complete = matches!(begun, Some(Ok(()))) && state() == Some("complete");
        if !complete && !self.visitor.faulty {
            return Err(Violation(format!("a drain ends as {:?} for no reason: {begun:?}", state())));
        }
        // After an error of a page cache nobody may rely on it, as flushes say.
        let failed = stack.get("page_cache.error").is_ok_and(|error| error != Value::None);
        if complete && !failed {
            self.visitor.model.borrow_mut().end_flush(flush, End::Done { durable: false })?;
        }
        self.drained.set(complete && !failed);
        self.until_done(vec![self.spawn(self.visitor.clone().look_at_everything())])
    }

    /// Stops the stack as a server does; commands that nobody waits for may be under way.
    pub(super) fn stop(&self) -> Result<(), Violation> {
        let (visitor, outcome) = (self.visitor.clone(), Rc::new(OnceCell::new()));
        let told = outcome.clone();
        let stopping = self.spawn(async move {
            for part in &visitor.stack().parts {
                let Some(part) = &part.suspend else { continue };
                if let Err(error) = part.suspend().await {
                    let _ = told.set(error);
                }
            }
        });
        self.until_done(vec![stopping])?;
        self.stopped.set(outcome.get().is_none() && !self.powerless());
        self.note_left();
        let spoiled = self.row.kept && self.force;
        match outcome.get() {
            Some(error) if !self.visitor.faulty && !spoiled => {
                Err(Violation(format!("a stop fails for no reason: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Discards everything: nothing may be left.
    pub(super) fn clear_out(&self) -> Result<(), Violation> {
        let step = Step {
            client: 0,
            act: Act::Discard { fua: false },
            first: 0,
            count: self.visitor.model.borrow().sectors(),
            withdraw: None,
        };
        self.until_done(vec![self.spawn(self.visitor.clone().visit(vec![step]))])?;
        let (visitor, empty) = (self.visitor.clone(), self.row.empty);
        self.until_done(vec![self.spawn(async move { visitor.settle(empty).await })])?;
        if self.powerless() {
            return Ok(());
        }
        let stack = self.visitor.stack();
        for name in self.row.empty {
            let left = stack.get(name).expect("the table names attributes of the stack");
            if left != Value::U64(0) {
                return Err(Violation(format!("everything is discarded, but {name} is {left:?}")));
            }
        }
        if self.row.spill.is_none() {
            return Ok(());
        }
        // Nothing is left that could be read from the disk.
        let visitor = Visitor { spill: None, reads_fail: false, ..self.visitor.clone() };
        self.until_done(vec![self.spawn(visitor.look_at_everything())])
    }
}
