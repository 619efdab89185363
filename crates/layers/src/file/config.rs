//! What a configuration says about a file or block device, and how one is opened, as an origin or below a layer.

use std::path::PathBuf;
use std::sync::Arc;

use spillway_core::{Attribute, BlockDevice, Error, Preset, Spec, Table, Type, Unit, Value};

use super::device::File;
use crate::options::options;
use crate::surroundings::{BackingDevice, Open, OpenDevice, Surroundings};

options! {
    /// What a configuration says about a file or block device.
    pub struct Config;
    Start path: PathBuf = Type::Path, "The file or block device, which must exist"
        .preset(Preset::Required).option("origin");
    Start read_only: bool = Type::Switch, "Open it for reading only, share its lock with other readers, and refuse writes"
        .preset(Preset::Switch(false)).option("read-only");
}

impl Config {
    fn backing(&self) -> BackingDevice {
        let (path, read_only) = (self.path.clone(), self.read_only);
        BackingDevice { role: "origin", path, create: None, read_only, mapped: false }
    }
}

impl Open<()> for Config {
    async fn open(&self, (): (), around: &Surroundings) -> Result<OpenDevice, Error> {
        let (file, notes) = File::open(&self.backing(), around).await?;
        let shown = |file| Table::new(Arc::new(Shown { path: self.path.clone(), file }), ROWS);
        Ok(OpenDevice { notes, grow: Some(file.clone()), ..OpenDevice::new(file, shown) })
    }

    fn backing_devices(&self) -> Vec<BackingDevice> {
        vec![self.backing()]
    }
}

impl File {
    /// The device over what `backing` names, and what is worth knowing about how it was opened. Errors are those of the surroundings;
    /// [`spillway_core::Kind::NoSpace`] as in [`File::charged`].
    pub(crate) async fn open(
        backing: &BackingDevice,
        around: &Surroundings,
    ) -> Result<(Arc<Self>, Vec<String>), Error> {
        let opened = (around.open_file)(backing).await?;
        let file = Self::charged(opened.storage, around.env.clone(), &around.budget)?;
        Ok((Arc::new(file), opened.notes))
    }
}

/// A file as the control plane sees it.
struct Shown {
    path: PathBuf,
    file: Arc<File>,
}

static ROWS: &[Attribute<Shown>] = &[
    Attribute::read(OPTIONS.path, |shown| Value::Text(shown.path.display().to_string())),
    Attribute::read(OPTIONS.read_only, |shown| Value::Switch(shown.file.geometry().read_only)),
    Attribute::read(Spec::gauge("size", Unit::Bytes, "Size of the device"), |shown| {
        Value::U64(shown.file.geometry().size)
    }),
];
