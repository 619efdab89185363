//! How a host gives the image back in order.

use spillway_core::{Attributes, Value};
use spillway_sim::model::Violation;

use super::Story;
use super::guest::Kept;
use crate::turn::Ends;

impl Story {
    /// Ends a host in order, as a server does, after a drain or without.
    pub(super) fn hand_over(&mut self, host: usize, ends: Ends) -> Result<(), Violation> {
        if ends == Ends::HandOver && self.row().cache.is_some() {
            self.drain(host)?;
        }
        if self.is_cut(host) {
            return self.power_off(host);
        }
        let guest = self.guest(host).clone();
        let done = self.machine(host).spawn(async move {
            for part in guest.site.stack.parts.iter().filter_map(|part| part.suspend.as_ref()) {
                if let Err(error) = part.suspend().await
                    && !guest.may_fail()
                {
                    guest.shared.fail(format!("a stop fails for no reason: {error}"));
                }
            }
            guest.flush(None).await;
            guest.site.stack.close().await;
        });
        self.until(|story| done.get() || story.is_cut(host))?;
        if !self.is_cut(host) {
            if self.image.owner().is_some() {
                return Err(Violation("a host has stopped, and the image is locked".into()));
            }
            self.find_image()?;
        }
        self.power_off(host)
    }

    /// Empties the write cache: the image has everything from then on.
    fn drain(&mut self, host: usize) -> Result<(), Violation> {
        let guest = self.guest(host).clone();
        let state = move || {
            let state = guest.site.stack.get("drain_state").ok();
            state.and_then(|state| state.choice()).unwrap_or("unknown")
        };
        let guest = self.guest(host).clone();
        let begun = self.machine(host).spawn(async move {
            if let Err(error) = guest.site.stack.set("drain", Value::U64(1)).await
                && !guest.may_fail()
            {
                guest.shared.fail(format!("a drain fails for no reason: {error}"));
            }
        });
        self.until(|story| (begun.get() && state() != "running") || story.is_cut(host))?;
        if self.is_cut(host) {
            return Ok(());
        }
        // After an error of a page cache nobody may rely on it.
        let failed =
            self.guest(host).site.stack.get("page_cache.error").is_ok_and(|error| error != Value::None);
        if (failed || state() != "complete") && self.guest(host).may_fail() {
            return Ok(());
        }
        if state() != "complete" {
            return Err(Violation(format!("a drain ends as {} for no reason", state())));
        }
        let Kept { model, sectors, withdrawn } = &self.hosts[host].kept;
        let mut image = self.shared.image.borrow_mut();
        *image = model.borrow().clone();
        image.settle_durable();
        drop(image);
        if withdrawn.get() {
            return Ok(());
        }
        sectors.borrow_mut().clear();
        // Before the stop, which writes back as well. What was withdrawn may still change it.
        self.find_image()
    }
}
