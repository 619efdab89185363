//! How large the device is: it grows while it is in use, never shrinks before the machine stops, and then only by what nobody may miss.

use super::event::Violation;

/// Sectors of the device.
#[derive(Clone)]
pub(super) struct Size {
    /// As clients know it.
    pub(super) now: u64,
    /// It had so many when a client saw it grow: no crash takes them back.
    kept: u64,
    /// Most that it was asked to have.
    pub(super) asked: u64,
}

impl Size {
    pub(super) fn new(sectors: u64) -> Self {
        Self { now: sectors, kept: sectors, asked: sectors }
    }

    /// A client sees so many sectors.
    pub(super) fn see(&mut self, sectors: u64) -> Result<(), Violation> {
        let Self { now, asked, .. } = *self;
        if !(now..=asked).contains(&sectors) {
            let words =
                format!("the device has {sectors} sectors; it had {now}, and was asked to have {asked}");
            return Err(Violation(words));
        }
        if sectors > now {
            (self.now, self.kept) = (sectors, sectors);
        }
        Ok(())
    }

    /// So many sectors are there after a restart.
    pub(super) fn find(&mut self, sectors: u64) -> Result<(), Violation> {
        let Self { kept, asked, .. } = *self;
        if !(kept..=asked).contains(&sectors) {
            return Err(Violation(format!(
                "after a restart the device has {sectors} sectors; {kept} were seen, and it was asked to have {asked}"
            )));
        }
        self.now = sectors;
        Ok(())
    }
}
