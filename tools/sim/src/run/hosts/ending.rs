//! How a host gives the image back in order.

use spillway_core::{Attributes, Env, Value};
use spillway_sim::model::Violation;

use super::Story;
use super::waiting::PATIENCE;
use crate::stories::turn::Ends;

impl Story {
    /// Ends a host in order, as a server does, after a drain or without.
    pub(super) fn hand_over(&mut self, host: usize, ends: Ends) -> Result<(), Violation> {
        let begun = self.shared.world.now();
        if ends == Ends::HandOver && self.row().cache.is_some() {
            self.drain(host)?;
        }
        if self.is_cut(host) {
            return self.power_off(host);
        }
        let guest = self.guest(host).clone();
        let done = self.machine(host).spawn(async move {
            for part in guest.site.stack.parts.iter().filter_map(|part| part.suspend.as_ref()) {
                let begun = guest.now();
                if let Err(error) = part.suspend().await
                    && !guest.may_fail(error.kind, begun)
                {
                    guest.shared.fail(format!("a stop fails for no reason: {error}"));
                }
            }
            guest.flush(None).await;
            if let Err(error) = guest.site.stack.close().await {
                guest.shared.fail(format!("a close fails for no reason: {error}"));
            }
        });
        self.until(|story| done.get() || story.is_cut(host))?;
        if !self.is_cut(host) {
            let (took, hung) = (self.shared.world.now() - begun, self.machine(host).disk.answers().longest());
            if took > PATIENCE + hung {
                return Err(Violation(format!("a stop takes {took:?}, and a call at most {hung:?}")));
            }
            if self.image.owner().is_some() {
                return Err(Violation("a host has stopped, and the image is locked".into()));
            }
            self.find_image()?;
        }
        self.power_off(host)
    }

    /// Empties the write cache: the image has everything from then on, whatever clients have not waited for.
    fn drain(&mut self, host: usize) -> Result<(), Violation> {
        let (guest, begun) = (self.guest(host).clone(), self.guest(host).now());
        let asked = self.machine(host).spawn(async move {
            if let Err(error) = guest.site.stack.set("drain", Value::U64(1)).await
                && !guest.may_fail(error.kind, begun)
            {
                guest.shared.fail(format!("a drain fails for no reason: {error}"));
            }
        });
        let guest = self.guest(host).clone();
        self.until(|story| (asked.get() && guest.drain_state() != "running") || story.is_cut(host))?;
        if self.is_cut(host) {
            return Ok(());
        }
        if guest.drain_state() != "complete" || guest.has_failed("page_cache") {
            return match guest.may_fail_somehow(begun) {
                true => Ok(()),
                false => Err(Violation(format!("a drain ends as {} for no reason", guest.drain_state()))),
            };
        }
        self.hosts[host].kept.sectors.borrow_mut().clear();
        let mut image = self.shared.image.borrow_mut();
        *image = self.hosts[host].kept.model.borrow().clone();
        image.settle_durable();
        // Before the stop, which writes back as well. What was withdrawn may still change it, and nothing else.
        let found = image.compare(0, &self.image.content());
        found.map_err(|Violation(words)| Violation(format!("on the image, after a drain: {words}")))
    }
}
