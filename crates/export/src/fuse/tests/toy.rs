//! A part with two attributes, and a server that changes them, and adds devices: at once, or once it is told to finish. The fuzzer of the session uses it
//! too, so it names this crate as others do.

use std::sync::Arc;

use spillway_core::attribute::Type;
use spillway_core::sync::{AtomicBool, AtomicU64, Ordering, WaitList};
use spillway_core::{Answer, Attribute, Attributes, Error, Excerpt, Kind, Spec, Table, Value};
use spillway_export::control::{DeviceChanges, Operation, value_of};
use spillway_export::fuse::Folder;

/// Devices that are added at most.
pub(super) const ADDED_MAX: u64 = 12;

#[derive(Default)]
pub(super) struct Toy {
    pub(super) level: AtomicU64,
    pub(super) slow: AtomicBool,
    /// Devices that were added; they have these numbers from 1 on.
    pub(super) added: AtomicU64,
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
    Attribute::lines("lines", "As many as the level", lines),
];

/// Lines that are shown at once, of 40 bytes each.
pub(super) const LINES_SHOWN: u64 = 1000;

fn lines(toy: &Toy, from: u64) -> Result<Excerpt, Error> {
    let lines = toy.level.load(Ordering::SeqCst);
    let end = lines.min(from.saturating_add(LINES_SHOWN));
    let text: Vec<String> = (from..end).map(|line| format!("{line:0>39}")).collect();
    Ok(Excerpt { value: Value::Text(text.join("\n")), next: (end < lines).then_some(end) })
}

impl Toy {
    /// Its part, as a mount shows it.
    pub(super) fn folder(self: &Arc<Self>) -> Folder {
        Folder { name: "toy".into(), attributes: Arc::new(Table::new(self.clone(), ROWS)) }
    }

    /// Removes what was added last.
    fn remove(&self, number: u32) -> Result<(), Error> {
        let last = self.added.load(Ordering::SeqCst);
        if number == 0 {
            return Err(Error::new(Kind::Busy, "it is in use"));
        }
        if u64::from(number) != last {
            return Err(Error::new(Kind::NotFound, "there is no such device"));
        }
        self.added.store(last - 1, Ordering::SeqCst);
        Ok(())
    }

    /// What `change` comes to, once it is made.
    fn make<T: Unpin + 'static>(self: &Arc<Self>, change: impl Fn(&Arc<Self>) -> T + 'static) -> Answer<T> {
        if !self.slow.load(Ordering::SeqCst) {
            return Answer::Done(change(self));
        }
        let toy = self.clone();
        Answer::pending(async move {
            toy.waiters.until(|| (!toy.slow.load(Ordering::SeqCst)).then_some(())).await;
            change(&toy)
        })
    }

    /// Lets slow changes come to their end.
    pub(super) fn finish(&self) {
        self.slow.store(false, Ordering::SeqCst);
        self.waiters.wake_all();
    }
}

/// The server of one device, `ram0`.
pub(super) struct ToyServer(pub(super) Arc<Toy>);

impl DeviceChanges for ToyServer {
    fn change(&self, operation: Operation) -> Answer<Result<(), Error>> {
        let Operation::Set { device, attribute, value } = operation else { panic!("{operation:?}") };
        assert_eq!(device, "ram0");
        let name = attribute.strip_prefix("toy.").expect("the part is named").to_owned();
        let value = value_of(value).expect("it is text");
        self.0.make(move |toy| Table::new(toy.clone(), ROWS).set(&name, value.clone()).now())
    }

    fn hot_remove(&self, number: u32) -> Answer<Result<(), Error>> {
        self.0.make(move |toy| toy.remove(number))
    }

    fn hot_add(&self) -> Answer<Result<u32, Error>> {
        self.0.make(|toy| match toy.added.load(Ordering::SeqCst) {
            ADDED_MAX => Err(Error::new(Kind::NoSpace, "there are enough")),
            added => {
                toy.added.store(added + 1, Ordering::SeqCst);
                Ok(added as u32 + 1)
            }
        })
    }
}
