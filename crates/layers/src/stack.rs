//! From a configuration to open devices: the table of kinds, and what is made of several.
//!
//! ```toml
//! origin = { kind = "zram", disksize = "4G", comp_algorithm = "lz4" }
//! layers = [ { kind = "delay", read_us = 100 }, { kind = "trace" } ]     # bottom up
//! ```
//!
//! A key of the configuration is the name of an attribute. A new kind is one line of a table below: its name in a configuration,
//! and its `Config`, which opens it ([`Open`]).

use std::sync::Arc;

use serde::Deserialize;
use spillway_core::sync::AtomicBool;
use spillway_core::{
    Answer, AtRisk, Attributes, BlockDevice, Error, Excerpt, Grow, Kind, Spec, Suspend, Value, Works, mutant,
};

use crate::about;
use crate::fenced::Fenced;
use crate::limits::{self, Limits};
use crate::open_context::{BackingDevice, Below, Open, OpenContext, OpenDevice};
use crate::options::Options;
use crate::passed::Passed;
use crate::small::{delay, fault, memory, null, rate, trace, volatile};
use crate::{file, page_cache, write_cache, zram};

/// The kinds over `$below`, one a line: the name that a configuration gives as `kind`, and what the rest of it says.
macro_rules! kinds {
    ($(#[$about:meta])* $name:ident over $below:ty { $($kind:tt => $variant:ident($config:ty),)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(tag = "kind")]
        pub enum $name {
            $(#[doc = concat!("Kind `", $kind, "`.")] #[serde(rename = $kind)] $variant($config),)*
        }

        impl $name {
            /// The options of `kind`, if there is one of this name.
            fn options(kind: &str) -> Option<&'static [Spec]> {
                match kind {
                    $($kind => Some(<$config>::specs()),)*
                    _ => None,
                }
            }

            fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $kind,)* }
            }

            fn backing_devices(&self) -> Vec<BackingDevice> {
                match self { $(Self::$variant(config) => config.backing_devices(),)* }
            }

            async fn open(&self, below: $below, context: &OpenContext) -> Result<OpenDevice, Error> {
                match self { $(Self::$variant(config) => config.open(below, context).await,)* }
            }
        }
    };
}

kinds! {
    /// Where data lives.
    OriginConfig over () {
        "zram" => Zram(zram::Config),
        "memory" => Memory(memory::Config),
        "null" => Null(null::Config),
        "file" => File(file::Config),
    }
}

kinds! {
    /// What stands on an origin.
    LayerConfig over Below {
        "delay" => Delay(delay::Config),
        "rate" => Rate(rate::Config),
        "fault" => Fault(fault::Config),
        "trace" => Trace(trace::Config),
        "volatile" => Volatile(volatile::Config),
        "write_cache" => WriteCache(write_cache::Config),
        "page_cache" => PageCache(page_cache::Config),
    }
}

/// The options of an origin or layer of this kind, if there is one.
pub fn options(kind: &str) -> Option<&'static [Spec]> {
    OriginConfig::options(kind).or_else(|| LayerConfig::options(kind))
}

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

impl StackConfig {
    /// Whether its layers keep each other's promises; [`Kind::Invalid`] says which does not. Opens nothing.
    pub fn check(&self) -> Result<(), Error> {
        let commits = |layer: &LayerConfig| match layer {
            LayerConfig::WriteCache(config) => config.ack == write_cache::Ack::Committed,
            _ => false,
        };
        let keeps = |layer: &LayerConfig| match layer {
            LayerConfig::PageCache(config) => config.mode == page_cache::Mode::Writeback,
            _ => false,
        };
        if self.layers.iter().skip_while(|layer| !commits(layer)).any(keeps) {
            return Err(Error::invalid(
                "ack committed of the write cache promises that every write survives, and the page cache over it, in mode writeback, keeps \
                 writes in memory: leave one out, or take mode writethrough",
            ));
        }
        Ok(())
    }

    /// Whether the content is lost with the process that holds it, unless that ends in order at best.
    pub fn is_in_memory(&self) -> bool {
        !matches!(self.origin, OriginConfig::File(_))
    }

    /// Whether acknowledged writes are lost with the process that holds them, unless a flush has covered them.
    pub fn loses_unflushed(&self) -> bool {
        let holds = |layer: &LayerConfig| match layer {
            LayerConfig::PageCache(config) => config.mode == page_cache::Mode::Writeback,
            LayerConfig::WriteCache(config) => config.ack != write_cache::Ack::Committed,
            LayerConfig::Volatile(_) => true,
            _ => false,
        };
        self.layers.iter().any(holds)
    }

    /// The files and block devices that it opens, from the origin up.
    pub fn backing_devices(&self) -> Vec<BackingDevice> {
        let above = self.layers.iter().flat_map(LayerConfig::backing_devices);
        self.origin.backing_devices().into_iter().chain(above).collect()
    }
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
    /// Its end, where it has to do something then.
    pub suspend: Option<Arc<dyn Suspend>>,
    /// Its growing, where its size is not that of the part below.
    pub grow: Option<Arc<dyn Grow>>,
    /// What passes to it from a layer above it, if there is one.
    pub passed: Option<Arc<Passed>>,
}

impl Part {
    fn has(&self, attribute: &str) -> bool {
        self.attributes.specs().iter().any(|spec| spec.name == attribute)
    }
}

/// An open device, and the parts it is made of.
pub struct Stack {
    /// The top: what an export serves.
    pub device: Arc<dyn BlockDevice>,
    /// From the top to the origin, and at last the limits of all of them.
    pub parts: Vec<Part>,
    /// What was found when the parts were opened, from the origin up, for people.
    pub notes: Vec<String>,
    /// Where its long work is registered.
    pub works: Works,
    /// What a crash would take of the parts.
    at_risk: Vec<Arc<dyn AtRisk>>,
    /// Set once another host has taken the origin over.
    fence: Option<Arc<AtomicBool>>,
}

/// The kind of the part that is no origin and no layer.
const LIMITS: &str = "limits";

/// The command that empties a part: one of the whole stack.
const DRAIN: &str = "drain";

/// The command that takes an origin's data away, and layers that would go on with what they have of it.
const RESET: &str = "reset";
const HOLDING: [&str; 3] = ["volatile", "write_cache", "page_cache"];

impl Stack {
    /// Opens what `config` says, from the origin up, on a thread that runs tasks. An error calls the part by its own of the `names`, which
    /// come in the same order, or else by its place in a file, and ends what was opened before; dropped, it leaves that as a crash would.
    pub async fn open(config: &StackConfig, names: &[&str], context: &OpenContext) -> Result<Self, Error> {
        let name = |part: usize| match (names.get(part), part) {
            (Some(name), _) => (*name).to_owned(),
            (None, 0) => "origin".to_owned(),
            (None, part) => format!("layers[{}]", part - 1),
        };
        config.check()?;
        let opened = config.origin.open((), context).await.map_err(|error| about(&name(0), &error))?;
        let device = opened.device.clone();
        let works = context.works.clone();
        let mut stack =
            Self { device, parts: Vec::new(), notes: Vec::new(), works, at_risk: Vec::new(), fence: None };
        stack.put(config.origin.kind(), opened);
        match stack.open_layers(config, name, context).await {
            Ok(()) => Ok(stack),
            Err(error) => {
                stack.end().await;
                Err(error)
            }
        }
    }

    async fn open_layers(
        &mut self,
        config: &StackConfig,
        name: impl Fn(usize) -> String,
        context: &OpenContext,
    ) -> Result<(), Error> {
        for (index, layer) in config.layers.iter().enumerate() {
            let below = Arc::new(Passed::new(self.device.clone(), context.env.clone()));
            let opened = layer.open(below.clone(), context).await;
            self.parts[0].passed = Some(below);
            self.put(layer.kind(), opened.map_err(|error| about(&name(index + 1), &error))?);
        }
        number(&mut self.parts);
        assert_eq!(self.parts.len(), 1 + config.layers.len(), "each part of the configuration is open");
        self.notes.dedup();
        self.put_limits(context)?;
        if let Some(fence) = self.fence.take() {
            self.device = Arc::new(Fenced::new(self.device.clone(), fence));
        }
        Ok(())
    }

    /// Ends the parts from the top down, of a stack that no client has used. The log has what they fail with.
    pub async fn end(&self) {
        let parts = || self.parts.iter().filter_map(|part| part.suspend.as_ref());
        parts().for_each(|part| part.wind_down());
        for part in parts() {
            part.suspend().await.unwrap_or_else(|error| tracing::warn!("{error}"));
        }
        self.close().await.unwrap_or_else(|error| tracing::warn!("{error}"));
    }

    /// After the last flush: gives back what keeps others out. The first error says what was left.
    pub async fn close(&self) -> Result<(), Error> {
        let mut closed = Ok(());
        for part in self.parts.iter().filter_map(|part| part.suspend.as_ref()) {
            closed = closed.and(part.close().await);
        }
        closed
    }

    fn put(&mut self, kind: &'static str, opened: OpenDevice) {
        let OpenDevice { device, attributes, suspend, grow, at_risk, fence, notes } = opened;
        self.device = device;
        self.parts.insert(0, Part { kind, name: kind.to_owned(), attributes, suspend, grow, passed: None });
        self.notes.extend(notes);
        self.at_risk.extend(at_risk);
        self.fence = self.fence.take().or(fence);
    }

    /// Puts limits on top; none are set.
    fn put_limits(&mut self, context: &OpenContext) -> Result<(), Error> {
        let (below, parts) = (self.device.clone(), self.at_risk.clone());
        let limits = Limits::new(&context.name, below, parts, context.env.clone())?;
        if !self.device.geometry().volatile {
            self.device = limits.clone();
        }
        let attributes = Arc::new(limits::attributes(limits));
        let name = LIMITS.to_owned();
        self.parts.push(Part { kind: LIMITS, name, attributes, suspend: None, grow: None, passed: None });
        Ok(())
    }

    /// Sets the limits that `config` asks for. [`Kind::Invalid`] where nothing is ever durable.
    pub fn limit(&self, config: &limits::Config) -> Result<(), Error> {
        let values = limits::Config::specs().iter().map(|spec| (spec.name, config.value(spec.name)));
        let mut given = values.filter(|(_, value)| *value != Value::None);
        given.try_for_each(|(name, value)| self.set(name, value).now())
    }

    /// Grows to `size` bytes, or to what the origin's file or block device has where none is given, from the origin up, while requests go
    /// on. [`Kind::Invalid`] where that is less than now, or cannot be, and nothing has grown; another error may come when parts below
    /// have. One call at a time.
    pub async fn grow(&self, size: Option<u64>) -> Result<(), Error> {
        let has = self.device.geometry().size;
        if let Some(size) = size.filter(|&size| size < has) {
            return Err(Error::invalid(format!("the device has {has} bytes and cannot shrink to {size}")));
        }
        let growing: Vec<_> =
            self.parts.iter().rev().filter_map(|part| Some((part, part.grow.as_ref()?))).collect();
        for (part, grow) in &growing {
            grow.look().await.map_err(|error| about(&part.name, &error))?;
        }
        let target = |below, (part, grow): &(&Part, &Arc<dyn Grow>)| {
            grow.target(below).map_err(|error| about(&part.name, &error))
        };
        growing.iter().try_fold(size, target)?;
        for (part, grow) in growing {
            grow.grow(size).await.map_err(|error| about(&part.name, &error))?;
        }
        assert!(self.device.geometry().size >= has, "a device of {has} bytes does not shrink");
        Ok(())
    }

    /// The kinds from the top to the origin: `trace > delay > zram`.
    pub fn describe(&self) -> String {
        let kinds: Vec<_> = self.parts.iter().map(|part| part.kind).filter(|kind| *kind != LIMITS).collect();
        kinds.join(" > ")
    }

    /// The part that `name` means, and the attribute's own name: `NAME` is looked for from the top, `PART.NAME` in the
    /// part of that name. [`Kind::NotFound`] lists what there is.
    pub fn find<'a>(&self, name: &'a str) -> Result<(&Part, &'a str), Error> {
        let (wanted, own) = match name.split_once('.') {
            Some((part, own)) => (Some(part), own),
            None => (None, name),
        };
        let means = |part: &&Part| wanted.is_none_or(|wanted| wanted == part.name) && part.has(own);
        let part = self.parts.iter().find(means).ok_or_else(|| self.unknown(name))?;
        Ok((part, own))
    }

    /// Drains all parts that can be, from the top down: the next one begins once it has what a page cache above had. Write caches drain
    /// beside each other until the last is empty: what leaves one bypasses those below it.
    fn drain(&self, value: Value) -> Answer<Result<(), Error>> {
        let parts = self.parts.iter().filter(|part| part.has(DRAIN));
        let parts: Vec<_> = parts.map(|part| part.attributes.clone()).collect();
        if parts.is_empty() {
            return Answer::Done(Err(self.unknown(DRAIN)));
        }
        Answer::pending(async move {
            let above = if mutant::on("stack: drain the last part alone") { parts.len() - 1 } else { 0 };
            for part in &parts[above..] {
                part.set(DRAIN, value.clone()).await?;
            }
            Ok(())
        })
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

/// The stack as one set of attributes; names as in [`Stack::find`], but that `drain` means all parts that have it.
impl Attributes for Stack {
    fn specs(&self) -> Vec<Spec> {
        self.parts.iter().flat_map(|part| part.attributes.specs()).collect()
    }

    fn spec(&self, name: &str) -> Result<Spec, Error> {
        let (part, own) = self.find(name)?;
        part.attributes.spec(own)
    }

    fn excerpt(&self, name: &str, from: u64) -> Result<Excerpt, Error> {
        let (part, own) = self.find(name)?;
        part.attributes.excerpt(own, from)
    }

    fn set(&self, name: &str, value: Value) -> Answer<Result<(), Error>> {
        if name == DRAIN {
            return self.drain(value);
        }
        match self.find(name) {
            Ok((_, RESET))
                if let Some(holding) = self.parts.iter().find(|part| HOLDING.contains(&part.kind)) =>
            {
                let text = "would still have what it holds: stop the device and start it again";
                Answer::Done(Err(Error::invalid(format!("{} {text}", holding.name))))
            }
            Ok((part, own)) => part.attributes.set(own, value),
            Err(unknown) => Answer::Done(Err(unknown)),
        }
    }
}

/// Numbers the parts of one kind from the top.
fn number(parts: &mut [Part]) {
    for index in 0..parts.len() {
        let above = parts[..index].iter().filter(|part| part.kind == parts[index].kind).count();
        if above > 0 {
            parts[index].name = format!("{}{}", parts[index].kind, above + 1);
        }
    }
}
