//! Long work that a control client does and reports: a save or a load. It lasts until the client reports other work, or leaves.

use spillway_core::progress::Counted;
use spillway_core::{Error, WorkKind};

use super::catalog::Catalog;
use super::work::WorkRow;

/// See the head of this file.
pub(super) struct Reported {
    device: String,
    kind: String,
    total: Option<u64>,
    counted: Counted,
}

impl Reported {
    /// Begins work on a device. [`spillway_core::Kind::NotFound`] where there is no such device, [`spillway_core::Kind::Invalid`] where a
    /// client does no such work.
    pub(super) fn begin(
        catalog: &dyn Catalog,
        device: String,
        kind: String,
        total: Option<u64>,
    ) -> Result<Self, Error> {
        let known = WorkKind::of_name(&kind).filter(|kind| matches!(kind, WorkKind::Save | WorkKind::Load));
        let known = known
            .ok_or_else(|| Error::invalid(format!("{kind:?} is no work of a client: report save or load")))?;
        catalog.attributes(&device)?;
        let works = catalog.registry().map(|registry| registry.of(&device)).unwrap_or_default();
        Ok(Self { device, kind, total, counted: works.begin(known, total) })
    }

    /// Whether a report is about this work.
    pub(super) fn is(&self, device: &str, kind: &str, total: Option<u64>) -> bool {
        (&*self.device, &*self.kind, self.total) == (device, kind, total)
    }

    /// So many bytes are done; the work as lists show it.
    pub(super) fn reach(&self, done: u64) -> Option<WorkRow> {
        self.counted.reach(done);
        self.counted.progress().map(WorkRow::from)
    }
}
