//! The one match over the kinds of origins and layers: from a configuration to a device.
//!
//! ```toml
//! origin = { kind = "zram", disksize = "4G", comp_algorithm = "lz4" }
//! layers = [ { kind = "delay", read_us = 100 }, { kind = "trace" } ]     # bottom up
//! ```
//!
//! A key of the configuration is the name of an attribute. Whoever builds a stack hands in its [`Surroundings`]; opening a
//! file is among them, because a layer cannot reach the operating system.
//!
//! A new kind is one variant of [`OriginConfig`] or [`LayerConfig`], and one line in the match below it.

use std::sync::Arc;

use serde::Deserialize;
use spillway_core::{
    Attribute, Attributes, BlockDevice, Budget, Env, Error, Kind, Lifecycle, Regions, Spec, Storage, Table,
    Unit,
};

use crate::config::{Size, about};
use crate::zram::{self, Zram};
use crate::{delay, fault, file, memory, null, rate, trace, write_cache};

/// An origin and the layers over it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackConfig {
    /// Where the data lives.
    pub origin: OriginConfig,
    /// What stands on it, bottom up; nothing by default.
    #[serde(default)]
    pub layers: Vec<LayerConfig>,
}

/// Where data lives; in a file, `kind` names the variant.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OriginConfig {
    /// Compressed RAM.
    Zram(ZramConfig),
    /// Plain RAM.
    Memory(memory::Config),
    /// Nowhere.
    Null(null::Config),
    /// A file or block device.
    File(FileConfig),
}

/// What stands on an origin; in a file, `kind` names the variant.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LayerConfig {
    /// Makes it slow to answer.
    Delay(delay::Config),
    /// Makes it slow to move bytes.
    Rate(rate::Config),
    /// Makes it fail.
    Fault(fault::Config),
    /// Watches it.
    Trace(trace::Config),
    /// Acknowledges its writes from a faster device.
    WriteCache(write_cache::Config),
}

/// What a configuration says about compressed RAM.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ZramConfig {
    /// Bytes of the device; 0, the default, until the attribute is written.
    pub disksize: Size,
    /// `lz4` by default.
    pub comp_algorithm: String,
    /// As the attribute takes them, such as `level=3`; none by default.
    pub algorithm_params: Option<String>,
    /// Compression streams; one for each core by default.
    pub max_comp_streams: Option<usize>,
    /// Bytes that the device may take of the budget; 0, the default, is no limit of its own.
    pub mem_limit: Size,
}

impl Default for ZramConfig {
    fn default() -> Self {
        Self {
            disksize: Size::default(),
            comp_algorithm: "lz4".into(),
            algorithm_params: None,
            max_comp_streams: None,
            mem_limit: Size::default(),
        }
    }
}

/// What a configuration says about a file or block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// Path of an existing file or block device.
    pub path: std::path::PathBuf,
    /// Whether writes are refused; they are not by default.
    #[serde(default)]
    pub read_only: bool,
    /// Whether it is reached through a mapping: a write cache in mode `p`.
    #[serde(skip)]
    pub mapped: bool,
}

/// Opens what a [`FileConfig`] names.
pub type OpenFile = Box<dyn Fn(&FileConfig) -> Result<Arc<dyn Storage>, Error> + Send + Sync>;

/// What a stack may have of the world around it.
pub struct Surroundings {
    /// Time, chance and tasks.
    pub env: Arc<dyn Env>,
    /// Large memory.
    pub regions: Arc<dyn Regions>,
    /// What all memory is charged to.
    pub budget: Arc<Budget>,
    /// Opens a file for the origin `file`.
    pub open_file: OpenFile,
}

/// A layer or origin of a stack, as the control plane sees it.
#[derive(Clone)]
pub struct Part {
    /// The `kind` of the configuration.
    pub kind: &'static str,
    /// The kind; of several parts of one kind the topmost, and `KIND2` for the next below it, and so on.
    pub name: String,
    /// Its attributes.
    pub attributes: Arc<dyn Attributes>,
    /// Its begin and end, where it has to do something then.
    pub lifecycle: Option<Arc<dyn Lifecycle>>,
}

/// A device, and the parts it is made of.
pub struct Stack {
    /// The top: what an export serves.
    pub device: Arc<dyn BlockDevice>,
    /// From the top to the origin.
    pub parts: Vec<Part>,
}

impl Stack {
    /// Builds what `config` says. An error names the part, the key, the value and what is allowed.
    pub fn build(config: &StackConfig, around: &Surroundings) -> Result<Self, Error> {
        let (mut device, part) = origin(&config.origin, around).map_err(|error| about("origin", &error))?;
        let mut parts = vec![part];
        for (index, config) in config.layers.iter().enumerate() {
            let place = || format!("layers[{index}]");
            let (above, part) = layer(config, device, around).map_err(|error| about(&place(), &error))?;
            device = above;
            parts.insert(0, part);
        }
        name(&mut parts);
        Ok(Self { device, parts })
    }

    /// Those parts that do something when the device begins and ends to be served, from the origin to the top.
    pub fn lifecycles(&self) -> Vec<Arc<dyn Lifecycle>> {
        self.parts.iter().rev().filter_map(|part| part.lifecycle.clone()).collect()
    }

    /// The kinds from the top to the origin: `trace > delay > zram`.
    pub fn describe(&self) -> String {
        let kinds: Vec<_> = self.parts.iter().map(|part| part.kind).collect();
        kinds.join(" > ")
    }

    /// The part that `name` means, and the attribute's own name: `NAME` is looked for from the top, `PART.NAME` in the
    /// part of that name. [`Kind::NotFound`] lists what there is.
    pub fn find<'a>(&self, name: &'a str) -> Result<(&Part, &'a str), Error> {
        let (wanted, own) = match name.split_once('.') {
            Some((part, own)) => (Some(part), own),
            None => (None, name),
        };
        let means = |part: &&Part| {
            wanted.is_none_or(|wanted| wanted == part.name)
                && part.attributes.specs().iter().any(|spec| spec.name == own)
        };
        let part = self.parts.iter().find(means).ok_or_else(|| self.unknown(name))?;
        Ok((part, own))
    }

    fn unknown(&self, name: &str) -> Error {
        let names = |part: &Part| {
            let specs = part.attributes.specs();
            specs.iter().map(|spec| format!("{}.{}", part.name, spec.name)).collect::<Vec<_>>()
        };
        let known: Vec<_> = self.parts.iter().flat_map(names).collect();
        Error::new(Kind::NotFound, format!("there is no attribute {name:?}; there are: {}", known.join(", ")))
    }
}

/// The stack as one set of attributes; names as in [`Stack::find`].
impl Attributes for Stack {
    fn specs(&self) -> Vec<Spec> {
        self.parts.iter().flat_map(|part| part.attributes.specs()).collect()
    }

    fn show(&self, name: &str) -> Result<String, Error> {
        let (part, own) = self.find(name)?;
        part.attributes.show(own)
    }

    fn store(&self, name: &str, value: &str) -> Result<(), Error> {
        let (part, own) = self.find(name)?;
        part.attributes.store(own, value)
    }
}

/// Numbers the parts of one kind from the top.
fn name(parts: &mut [Part]) {
    for index in 0..parts.len() {
        let above = parts[..index].iter().filter(|part| part.kind == parts[index].kind).count();
        if above > 0 {
            parts[index].name = format!("{}{}", parts[index].kind, above + 1);
        }
    }
}

type Built = (Arc<dyn BlockDevice>, Part);

fn origin(config: &OriginConfig, around: &Surroundings) -> Result<Built, Error> {
    let budget = &around.budget;
    Ok(match config {
        OriginConfig::Zram(config) => built("zram", zram(config, around)?, zram::attributes),
        OriginConfig::Memory(config) => {
            built("memory", memory::Memory::new(config, budget.clone())?, memory::attributes)
        }
        OriginConfig::Null(config) => built("null", null::Null::new(config)?, null::attributes),
        OriginConfig::File(config) => file(config, around)?,
    })
}

fn layer(config: &LayerConfig, below: Arc<dyn BlockDevice>, around: &Surroundings) -> Result<Built, Error> {
    let (env, budget) = (around.env.clone(), &around.budget);
    Ok(match config {
        LayerConfig::Delay(config) => {
            built("delay", delay::Delay::new(config, below, env)?, delay::attributes)
        }
        LayerConfig::Rate(config) => built("rate", rate::Rate::new(config, below, env)?, rate::attributes),
        LayerConfig::Fault(config) => {
            built("fault", fault::Fault::new(config, below, env)?, fault::attributes)
        }
        LayerConfig::Trace(config) => {
            built("trace", trace::Trace::new(config, below, env, budget)?, trace::attributes)
        }
        LayerConfig::WriteCache(config) => write_cache(config, below, around)?,
    })
}

fn write_cache(
    config: &write_cache::Config,
    below: Arc<dyn BlockDevice>,
    around: &Surroundings,
) -> Result<Built, Error> {
    if config.path.as_os_str().is_empty() {
        return Err(Error::invalid("path is missing: give the file or block device that is the cache"));
    }
    let file = FileConfig { path: config.path.clone(), mapped: config.is_mapped(), ..FileConfig::default() };
    let storage = (around.open_file)(&file)?;
    let device: Arc<dyn BlockDevice> =
        Arc::new(file::File::charged(storage, around.env.clone(), &around.budget)?);
    let (env, budget) = (around.env.clone(), around.budget.clone());
    let cache = write_cache::WriteCache::new(config, below, device, env, budget)?;
    let (device, part) = built("write_cache", cache.clone(), write_cache::attributes);
    Ok((device, Part { lifecycle: Some(cache), ..part }))
}

fn built<T: BlockDevice + 'static>(
    kind: &'static str,
    device: Arc<T>,
    attributes: fn(Arc<T>) -> Table<T>,
) -> Built {
    (device.clone(), part(kind, Arc::new(attributes(device))))
}

fn part(kind: &'static str, attributes: Arc<dyn Attributes>) -> Part {
    Part { kind, name: kind.to_owned(), attributes, lifecycle: None }
}

fn zram(config: &ZramConfig, around: &Surroundings) -> Result<Arc<Zram>, Error> {
    let config = zram::Config {
        disksize: config.disksize.bytes("disksize")?,
        comp_algorithm: config.comp_algorithm.clone(),
        algorithm_params: config.algorithm_params.clone(),
        max_comp_streams: config.max_comp_streams.unwrap_or(0),
        mem_limit: config.mem_limit.bytes("mem_limit")?,
    };
    Zram::new(config, around.env.clone(), around.regions.clone(), around.budget.clone())
}

/// A file as the control plane sees it; the device itself comes from outside.
struct FileView {
    config: FileConfig,
    device: Arc<dyn BlockDevice>,
}

static FILE_ROWS: &[Attribute<FileView>] = &[
    Attribute::read("path", Unit::Text, "The file or block device.", |file| {
        file.config.path.display().to_string()
    }),
    Attribute::read("read_only", Unit::Switch, "Whether writes are refused.", |file| {
        u8::from(file.device.geometry().read_only).to_string()
    }),
    Attribute::read("size", Unit::Bytes, "Size of the device.", |file| {
        file.device.geometry().size.to_string()
    }),
];

fn file(config: &FileConfig, around: &Surroundings) -> Result<Built, Error> {
    let storage = (around.open_file)(config)?;
    let device: Arc<dyn BlockDevice> =
        Arc::new(file::File::charged(storage, around.env.clone(), &around.budget)?);
    let view = FileView { config: config.clone(), device: device.clone() };
    Ok((device, part("file", Arc::new(Table::new(Arc::new(view), FILE_ROWS)))))
}
