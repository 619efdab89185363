//! What a configuration says about a file or block device, and how one is opened, as an origin or below a layer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::storage::ConnectionStatus;
use spillway_core::sync::Mutex;
use spillway_core::{
    Attribute, BlockDevice, Error, Grow, LocalFuture, Preset, Spec, Suspend, Table, Type, Unit, Value,
};

use super::device::File;
use crate::open_context::{BackingDevice, Ceph, Open, OpenContext, OpenDevice, Remote};
use crate::options::{Field, options};

options! {
    /// What a configuration says about a file or block device.
    pub struct Config;
    Start path: PathBuf = Type::Path,
        "The file or block device, which must exist; or an export of an NBD server: nbd://HOST/EXPORT, nbd://HOST:PORT/EXPORT, \
         nbd+unix:///EXPORT?socket=PATH, with nbds for TLS; or an image of Ceph RBD: rbd:POOL/IMAGE, rbd:POOL/NAMESPACE/IMAGE, either with \
         @SNAP"
        .preset(Preset::Required).option("origin");
    Start read_only: bool = Type::Switch, "Let clients only read. A disk opens its origin for reading then, and shares its lock with other readers"
        .preset(Preset::Switch(false)).option("read-only");
    Live timeout: Option<u64> = Type::Number(0, 31_536_000),
        "How long requests wait while the server of the origin cannot be reached, before they fail; 0 is no limit"
        .unit(Unit::Seconds).preset(Preset::Words("none")).or_none().option("origin-timeout");
    Start connections: u64 = Type::Number(1, 16),
        "Connections to the server of the origin at most, one for each worker; one where it does not allow several"
        .preset(Preset::Number(4)).option("origin-connections");
    Start journal: u64 = Type::Number(1 << 20, 1 << 30),
        "Memory for writes that the server of the origin has acknowledged and no flush has covered, to write them again after a lost \
         connection; a full journal is flushed"
        .unit(Unit::Bytes).preset(Preset::Number(16 << 20)).option("origin-journal");
    Start tls_certificates: Option<PathBuf> = Type::Path,
        "For an export with TLS (nbds:), the folder with the authority's ca-cert.pem; with client-cert.pem and client-key.pem for a server that asks \
         who its client is"
        .preset(Preset::Words("none")).or_none().option("origin-tls-certificates");
    Start ceph_conf: Option<PathBuf> = Type::Path,
        "The configuration of Ceph for an RBD image. Without it CEPH_CONF says where it is, or it lies where Ceph's tools look"
        .preset(Preset::Words("none")).or_none().option("ceph-conf");
    Start ceph_id: Option<String> = Type::Text,
        "The name of the client at the Ceph cluster, without client."
        .preset(Preset::Words("none")).or_none().option("ceph-id");
    Start ceph_keyring: Option<PathBuf> = Type::Path,
        "The file with the key of the client at the Ceph cluster. Without it that of the configuration"
        .preset(Preset::Words("none")).or_none().option("ceph-keyring");
    Start take_over: bool = Type::Switch,
        "Take the lock of the RBD image from the client that has it. That client can write nothing more, and what it has not written is lost"
        .preset(Preset::Switch(false)).option("take-over");
}

/// Seconds that requests wait at most; 0 means the same as none.
fn limit(timeout: Option<u64>) -> Option<u64> {
    timeout.filter(|&seconds| seconds > 0)
}

impl Config {
    fn backing(&self) -> BackingDevice {
        let (path, read_only) = (self.path.clone(), self.read_only);
        let remote = Remote {
            timeout: limit(self.timeout).map(Duration::from_secs),
            connections: self.connections as usize,
            journal_bytes: self.journal as usize,
            tls_certificates: self.tls_certificates.clone(),
            ceph: Ceph {
                conf: self.ceph_conf.clone(),
                id: self.ceph_id.clone(),
                keyring: self.ceph_keyring.clone(),
                take_over: self.take_over,
            },
        };
        BackingDevice { role: "origin", path, create: None, read_only, mapped: false, remote }
    }
}

impl Open<()> for Config {
    async fn open(&self, (): (), context: &OpenContext) -> Result<OpenDevice, Error> {
        let (file, notes) = File::open(&self.backing(), context).await?;
        let timeout = Mutex::new(limit(self.timeout));
        let shown = |file| Table::new(Arc::new(Shown { config: self.clone(), timeout, file }), ROWS);
        let (grow, suspend): (Arc<dyn Grow>, Arc<dyn Suspend>) = (file.clone(), file.clone());
        let fence = file.fence();
        Ok(OpenDevice {
            notes,
            grow: Some(grow),
            suspend: Some(suspend),
            fence,
            ..OpenDevice::new(file, shown)
        })
    }

    fn backing_devices(&self) -> Vec<BackingDevice> {
        vec![self.backing()]
    }
}

impl File {
    /// The device over what `backing` names, and what is worth knowing about how it was opened. Errors are those of the context;
    /// [`spillway_core::Kind::NoSpace`] as in [`File::charged`].
    pub(crate) async fn open(
        backing: &BackingDevice,
        context: &OpenContext,
    ) -> Result<(Arc<Self>, Vec<String>), Error> {
        let opened = (context.open_file)(backing).await?;
        let file = Self::charged(opened.storage, context.env.clone(), &context.budget)?;
        Ok((Arc::new(file), opened.notes))
    }
}

/// Nothing is left to do before the last flush.
impl Suspend for File {
    fn wind_down(&self) {
        self.core.storage.wait_anew();
    }

    fn suspend(&self) -> LocalFuture<Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn close(&self) -> LocalFuture<Result<(), Error>> {
        self.core.storage.close()
    }
}

/// A file as the control plane sees it.
struct Shown {
    config: Config,
    /// See [`limit`].
    timeout: Mutex<Option<u64>>,
    file: Arc<File>,
}

impl Shown {
    fn set_timeout(&self, timeout: Option<u64>) -> Result<(), Error> {
        // With the lock: of two that are set at once, the one that holds is shown.
        let (mut shown, timeout) = (self.timeout.lock(), limit(timeout));
        self.file.core.storage.set_timeout(timeout.map(Duration::from_secs))?;
        *shown = timeout;
        Ok(())
    }

    fn connection(&self) -> ConnectionStatus {
        self.file.core.storage.connection()
    }
}

static ROWS: &[Attribute<Shown>] = &[
    Attribute::read(OPTIONS.path, |shown| Value::Text(shown.config.path.display().to_string())),
    Attribute::read(OPTIONS.read_only, |shown| Value::Switch(shown.file.geometry().read_only)),
    Attribute::both(
        OPTIONS.timeout,
        |shown| shown.timeout.lock().value(),
        |shown, timeout| shown.set_timeout(Field::of(timeout)),
    ),
    Attribute::read(OPTIONS.connections, |shown| Value::U64(shown.config.connections)),
    Attribute::read(OPTIONS.journal, |shown| Value::U64(shown.config.journal)),
    Attribute::read(OPTIONS.tls_certificates, |shown| shown.config.tls_certificates.value()),
    Attribute::read(OPTIONS.ceph_conf, |shown| shown.config.ceph_conf.value()),
    Attribute::read(OPTIONS.ceph_id, |shown| shown.config.ceph_id.value()),
    Attribute::read(OPTIONS.ceph_keyring, |shown| shown.config.ceph_keyring.value()),
    Attribute::read(OPTIONS.take_over, |shown| Value::Switch(shown.config.take_over)),
    Attribute::read(
        Spec::fact(
            "connection",
            Type::Choice(ConnectionStatus::STATES),
            "How the origin is reached: local for a file or device of this host; up; reconnecting, while requests wait; failing, while \
             they fail; fenced, once another client has taken an RBD image over or removed it; full, while the server or pool refuses writes that need room",
        ),
        |shown| Value::Choice(shown.connection().state),
    ),
    Attribute::read(
        Spec::gauge("connection_seconds", Unit::Seconds, "How long the connection has been in that state"),
        |shown| Value::U64(shown.connection().lasts.as_secs()),
    ),
    Attribute::read(
        Spec::counter("connections_lost", Unit::None, "Times that the connection to the server was lost"),
        |shown| Value::U64(shown.connection().lost),
    ),
    Attribute::read(
        Spec::gauge(
            "unflushed_bytes",
            Unit::Bytes,
            "Writes that the server has acknowledged and no flush has covered: written again after a lost connection",
        ),
        |shown| Value::U64(shown.connection().unflushed),
    ),
    Attribute::read(
        Spec::gauge(
            "read_latency",
            Unit::Microseconds,
            "How long reads take, on average: the last one counts for an eighth",
        ),
        |shown| Value::U64(shown.file.core.latencies.read.micros()),
    ),
    Attribute::read(Spec::gauge("write_latency", Unit::Microseconds, "The same of writes"), |shown| {
        Value::U64(shown.file.core.latencies.write.micros())
    }),
    Attribute::read(Spec::gauge("flush_latency", Unit::Microseconds, "The same of flushes"), |shown| {
        Value::U64(shown.file.core.latencies.flush.micros())
    }),
    Attribute::read(Spec::gauge("size", Unit::Bytes, "Size of the device"), |shown| {
        Value::U64(shown.file.geometry().size)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_of_0_is_none() {
        for (text, seconds) in [("0", None), ("none", None), ("1", Some(1))] {
            let timeout = Field::of(OPTIONS.timeout.parse(text).unwrap());
            let config = Config { timeout, ..Config::default() };
            assert_eq!(config.backing().remote.timeout, seconds.map(Duration::from_secs), "{text}");
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use spillway_core::models::{every_order, join};
    use spillway_core::storage::Moved;
    use spillway_core::sync::shuttle::thread;
    use spillway_core::test_clock::Clock;
    use spillway_core::{ByteRange, FallocateMode, Geometry, IoBuf, Kind, Storage};

    use super::*;

    /// A storage that has a timeout, and nothing else.
    #[derive(Default)]
    struct Limited(Mutex<Option<Duration>>);

    impl Storage for Limited {
        fn geometry(&self) -> Geometry {
            Geometry::in_memory(1 << 20)
        }

        fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), Error> {
            *self.0.lock() = timeout;
            Ok(())
        }

        fn read(&self, _: u64, _: IoBuf, _: usize) -> LocalFuture<Moved> {
            unreachable!("nothing is read")
        }

        fn write(&self, _: u64, _: IoBuf, _: usize, _: bool) -> LocalFuture<Moved> {
            unreachable!("nothing is written")
        }

        fn sync(&self) -> LocalFuture<Result<(), Kind>> {
            unreachable!("nothing is flushed")
        }

        fn zero(&self, _: ByteRange, _: FallocateMode) -> LocalFuture<Result<(), Kind>> {
            unreachable!("nothing is zeroed")
        }
    }

    #[test]
    fn of_two_timeouts_that_are_set_at_once_the_one_that_holds_is_shown() {
        every_order(2000, || {
            let storage = Arc::<Limited>::default();
            let file = Arc::new(File::new(storage.clone(), Arc::<Clock>::default()));
            let (config, timeout) = (Config::default(), Mutex::default());
            let shown = Arc::new(Shown { config, timeout, file });
            let other = shown.clone();
            let setting = thread::spawn(move || other.set_timeout(Some(1)).expect("it can be set"));
            shown.set_timeout(Some(2)).expect("it can be set");
            join([setting]);
            let (held, told) = (*storage.0.lock(), *shown.timeout.lock());
            assert_eq!(held, told.map(Duration::from_secs));
        });
    }
}
