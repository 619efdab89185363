//! A part with two attributes, and a catalog that changes them: at once, or once it is told to finish. The fuzzer of the session uses it
//! too, so it names this crate as others do.

use std::sync::Arc;

use spillway_core::attribute::Type;
use spillway_core::sync::{AtomicBool, AtomicU64, Ordering, WaitList};
use spillway_core::{Answer, Attribute, Attributes, Error, Kind, Spec, Table, Value};
use spillway_export::control::{AttributeRow, Catalog, Change, DeviceRow, ServerVersion, Shown};
use spillway_export::fuse::Folder;

#[derive(Default)]
pub(super) struct Toy {
    pub(super) level: AtomicU64,
    pub(super) slow: AtomicBool,
    waiters: WaitList,
}

static ROWS: &[Attribute<Toy>] = &[
    Attribute::both(
        Spec::fact("level", Type::Number(0, u64::MAX), "A number"),
        |toy| Value::U64(toy.level.load(Ordering::SeqCst)),
        |toy, value| {
            toy.level.store(value.number().expect("a number"), Ordering::SeqCst);
            Ok(())
        },
    ),
    Attribute::write(Spec::command("poke", Type::Text, "Anything"), |_, _| Ok(())),
];

impl Toy {
    /// Its part, as a mount shows it.
    pub(super) fn folder(self: &Arc<Self>) -> Folder {
        Folder { name: "toy".into(), attributes: Arc::new(Table::new(self.clone(), ROWS)) }
    }

    /// Lets slow changes come to their end.
    pub(super) fn finish(&self) {
        self.slow.store(false, Ordering::SeqCst);
        self.waiters.wake_all();
    }
}

/// The catalog of one device, `ram0`.
pub(super) struct ToyCatalog(pub(super) Arc<Toy>);

impl Catalog for ToyCatalog {
    fn version(&self) -> ServerVersion {
        unreachable!("a mount does not ask")
    }

    fn devices(&self) -> Vec<DeviceRow> {
        unreachable!("a mount does not ask")
    }

    fn attributes(&self, _: &str) -> Result<Vec<AttributeRow>, Error> {
        unreachable!("a mount does not ask")
    }

    fn get(&self, _: &str, _: &str) -> Result<Shown, Error> {
        unreachable!("a mount does not ask")
    }

    fn change(&self, change: Change) -> Answer<Result<(), Error>> {
        let Change::Set { device, attribute, value } = change else { panic!("{change:?}") };
        assert_eq!(device, "ram0");
        let name = attribute.strip_prefix("toy.").expect("the part is named").to_owned();
        let toy = self.0.clone();
        let change = move || match toy.slow.load(Ordering::SeqCst) {
            true => Err(Error::new(Kind::Busy, "later")),
            false => Table::new(toy.clone(), ROWS).set(&name, value.clone()).now(),
        };
        if !self.0.slow.load(Ordering::SeqCst) {
            return Answer::Done(change());
        }
        let toy = self.0.clone();
        Answer::pending(async move {
            toy.waiters.until(|| (!toy.slow.load(Ordering::SeqCst)).then_some(())).await;
            change()
        })
    }
}
