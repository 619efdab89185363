//! How a device ends: one order, from the front to the disks, for a signal, for `spillway stop` and for a server that ends. `signals` ask a
//! server for its end, and `leaving` is what they may have to wait for.
//!
//! | step | waits for |
//! | --- | --- |
//! | commands | nothing: those that take long end early, and a server that is away has its time once more |
//! | clients | nothing: no other is accepted, and received requests are completed |
//! | changes | the one under way; no other is made, but for a `timeout` of an origin |
//! | clients | their connections close |
//! | layers | each ends, from the top down |
//! | flush | what was acknowledged is as durable as the device can make it |
//! | close | writing back and reading ahead, as far as disks answer; a lock that keeps other hosts out is given back, connections end |
//!
//! A step that takes longer than [`PATIENCE`] is named in the log, and waited for: what was acknowledged is given up by a second signal, or
//! by such a timeout where the server of the origin does not answer.
//! Clients that do not take their replies are disconnected after [`stop_grace`](spillway_io::ConnectionLimits::stop_grace).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::env::within;
use spillway_core::{Attributes, Env, Error, Seam, Value};
use spillway_export::Reserved;
use spillway_io::Serving;

use crate::exit::failed;
use crate::server::device::Device;
use crate::server::endpoints::{Front, NbdFront};
use crate::server::event::ReplySender;
use crate::system::service::{self, reported};

mod leaving;
pub(crate) mod signals;

/// How long a step may take before the log says what it waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A device that is taken out of a server which goes on.
pub(crate) struct Stopping {
    pub(crate) device: Arc<Device>,
    pub(crate) front: Front,
    pub(crate) control: Option<Serving>,
    pub(crate) env: Arc<dyn Env>,
}

impl Stopping {
    /// Ends the device, and answers how that went. Its control socket goes last, so that the answer still travels over it.
    pub(crate) async fn stop(self, reply: ReplySender) -> Result<(), Error> {
        let flushed = end(&self.device, self.front, &*self.env).await;
        reply.done(self.device.end.outcome().await);
        close(self.control).await;
        flushed
    }

    /// The same for a device that is `unused` until then, with its name and its memory free again before the answer, which does not travel
    /// over its control socket.
    pub(crate) async fn remove(self, unused: Reserved, reply: ReplySender) -> Result<(), Error> {
        let flushed = end(&self.device, self.front, &*self.env).await;
        let outcome = self.device.end.outcome().await;
        close(self.control).await;
        drop((unused, self.device));
        reply.done(outcome);
        flushed
    }
}

async fn close(control: Option<Serving>) {
    if let Some(serving) = control {
        serving.stop().await;
    }
}

/// Ends a device. Whatever of this fails, a layer that cannot write costs those below nothing. The log has every error; the first that may
/// have cost data is returned. Who waits for the end hears of what could not be given back, too. No error looks like a refusal.
pub(crate) async fn end(device: &Device, front: Front, env: &dyn Env) -> Result<(), Error> {
    let logged = |error: &Error| tracing::error!("{}", error.message());
    let parts = || device.stack.parts.iter().filter_map(|part| Some((&part.name, part.suspend.as_ref()?)));
    let name = device.name();
    parts().for_each(|(_, part)| part.wind_down());
    let left = leave(device, front);
    step(env, device, "the change under way", device.changes.end()).await;
    step(env, device, "its clients", left).await;
    let mut flushed = Ok(());
    for (layer, part) in parts() {
        let ended = step(env, device, &format!("its {layer} to end"), part.suspend()).await;
        let ended = ended.map_err(|error| {
            Error::new(error.kind, format!("device {name} did not end as asked for: {}", error.message()))
        });
        flushed = flushed.and(ended.inspect_err(logged));
    }
    let flushed =
        flushed.and(step(env, device, "its last flush", last_flush(device)).await.inspect_err(logged));
    let flushed = flushed.map_err(failed);
    let closed = step(env, device, "its layers to close", device.stack.close()).await;
    let closed = closed.map_err(|error| {
        tracing::warn!("{}", error.message());
        let text = format!("device {name} has ended and lost nothing, but {}", error.message());
        failed(Error::new(error.kind, text))
    });
    device.end.tell(flushed.clone().and(closed));
    flushed
}

/// Waits for a step; says what it waits for where that takes long.
async fn step<T>(env: &dyn Env, device: &Device, what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(reported(env, &device.stack.works, work));
    if let Some(done) = within(env, PATIENCE, work.as_mut()).await {
        return done;
    }
    service::warn(&format!("device {} ends: waiting for {what}{}", device.name(), way_out(device)));
    work.await
}

/// What ends the wait for an origin that does not answer.
fn way_out(device: &Device) -> String {
    match device.stack.get("connection") {
        Ok(Value::Choice("reconnecting")) => format!(
            ". Its origin does not answer: spillway set {} timeout SECONDS gives it up after that time, unless it is an RBD image that has \
             had no timeout yet",
            device.name()
        ),
        _ => String::new(),
    }
}

/// Has the clients of a device leave. The future waits for that.
fn leave(device: &Device, front: Front) -> impl Future<Output = ()> {
    let guest = front.guest.map(|(serving, charge)| (serving.stop(), charge));
    let own = match front.nbd {
        NbdFront::Own(serving) => Some(serving.stop()),
        NbdFront::Closed => None,
        NbdFront::Shared => {
            device.export.close();
            None
        }
    };
    async move {
        match own {
            Some(stopped) => stopped.await,
            None => device.export.emptied().await,
        }
        if let Some((guest, _charge)) = guest {
            guest.await;
        }
    }
}

async fn last_flush(device: &Device) -> Result<(), Error> {
    if device.export.geometry().size == 0 {
        return Ok(());
    }
    let name = device.name();
    Seam::new(Arc::clone(&device.stack.device)).flush().await.map_err(|kind| {
        Error::new(kind, format!("the last flush of device {name} failed: acknowledged writes may be lost"))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::address::Address;
    use crate::exit::{Exit, Failure, code_of};
    use crate::server::building::opening::StackOpener;
    use crate::server::device::ChangeLock;
    use crate::trust::Trusts;
    use spillway_core::sync::{AtomicBool, Mutex, Ordering};
    use spillway_core::{
        Answer, Attribute, BlockDevice, Budget, Geometry, Job, Kind, LocalFuture, Place, Request, Spec,
        Submission, Suspend, Table, Type, block_on,
    };
    use spillway_export::Export;
    use spillway_io::{Workers, WorkersOptions};
    use spillway_layers::small::null;
    use spillway_layers::stack::{OriginConfig, Stack, StackConfig};
    use std::sync::mpsc;

    /// A device `a` that nobody serves.
    pub(in crate::server) fn device(workers: &Workers) -> Arc<Device> {
        let opening = StackOpener::new(workers, &Budget::new(Budget::UNLIMITED), Trusts::default());
        let origin = OriginConfig::Null(null::Config { size: 1 << 20 });
        let stack = block_on(opening.stack("d", &StackConfig { origin, layers: Vec::new() }, &[])).unwrap();
        let export = Arc::new(Export::new("a", opening.aligned(&stack, false).unwrap()).unwrap());
        let address = Address::unix("/s");
        Arc::new(Device {
            stack,
            changes: ChangeLock::new(),
            end: Arc::default(),
            export,
            address,
            file: None,
            guest: None,
            _connections: None,
        })
    }

    /// Ends with an error, and notes that it did.
    struct Failing(Kind, &'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Suspend for Failing {
        fn suspend(&self) -> LocalFuture<Result<(), Error>> {
            self.2.lock().push(self.1);
            Box::pin(std::future::ready(Err(Error::new(self.0, self.1))))
        }
    }

    #[test]
    fn every_layer_ends_whatever_another_came_to() {
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
        let (names, env) = (Arc::new(Mutex::new(Vec::new())), workers.env());
        let mut device = device(&workers);
        let parts = &mut Arc::get_mut(&mut device).unwrap().stack.parts;
        for (part, name) in parts.iter_mut().zip(["upper", "lower"]) {
            part.suspend = Some(Arc::new(Failing(Kind::Io, name, names.clone())));
        }
        let own = env.clone();
        let ended = Job::spawn(&*env, Place::Background, move || async move {
            end(&device, Front::closed(), &*own).await
        });
        let error = block_on(ended).expect("it ends").expect_err("both have failed");
        assert!(error.message().contains("upper"), "{error}");
        assert_eq!(*names.lock(), ["upper", "lower"]);
    }

    /// Gives nothing back.
    struct Left(Kind);

    impl Suspend for Left {
        fn suspend(&self) -> LocalFuture<Result<(), Error>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn close(&self) -> LocalFuture<Result<(), Error>> {
            Box::pin(std::future::ready(Err(Error::new(self.0, "its lock is left"))))
        }
    }

    /// Its data is safe: the server ends well.
    #[test]
    fn who_stops_a_device_hears_of_what_was_left_and_the_exit_code_says_nothing() {
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
        let (mut device, env) = (device(&workers), workers.env());
        Arc::get_mut(&mut device).unwrap().stack.parts[0].suspend = Some(Arc::new(Left(Kind::Unreachable)));
        let (answer, reply) = Job::new();
        let stopping = Stopping { device, front: Front::closed(), control: None, env: env.clone() };
        let ended = Job::spawn(&*env, Place::Background, move || stopping.stop(reply));
        assert_eq!(block_on(ended), Some(Ok(())));
        let error = block_on(answer).expect("it is answered").expect_err("its lock is left");
        assert!(error.message().contains("lost nothing, but its lock is left"), "{error}");
    }

    /// Fails each request.
    struct Unflushed(Arc<dyn BlockDevice>, Kind);

    impl BlockDevice for Unflushed {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn submit(&self, request: Request) -> Submission {
            Answer::Done(request.answer(Err(self.1)))
        }
    }

    /// A disk or a server may call it by the errno of a device that is not there, that is in use, or that was asked for wrongly.
    #[test]
    fn what_a_device_has_failed_with_is_no_refusal() {
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
        let env = workers.env();
        let ways: [fn(&mut Stack, Kind); 3] = [
            |stack, kind| stack.parts[0].suspend = Some(Arc::new(Failing(kind, "no", Arc::default()))),
            |stack, kind| stack.device = Arc::new(Unflushed(stack.device.clone(), kind)),
            |stack, kind| stack.parts[0].suspend = Some(Arc::new(Left(kind))),
        ];
        for (kind, fails) in Kind::ALL.into_iter().flat_map(|kind| ways.map(|fails| (kind, fails))) {
            let mut device = device(&workers);
            fails(&mut Arc::get_mut(&mut device).unwrap().stack, kind);
            let (own, told) = (env.clone(), device.end.clone());
            let ended = Job::spawn(&*env, Place::Background, move || async move {
                end(&device, Front::closed(), &*own).await
            });
            let flushed = block_on(ended).expect("it ends");
            let outcome = block_on(told.outcome());
            assert!(outcome.is_err(), "{kind:?}");
            for error in [flushed, outcome].into_iter().filter_map(Result::err) {
                let failure = anyhow::Error::from(Failure::from(error));
                assert_eq!(code_of(&failure), Exit::Failed, "{kind:?}: {failure}");
            }
        }
    }

    #[test]
    fn who_waits_for_an_origin_that_does_not_answer_is_told_what_ends_that() {
        static ROWS: &[Attribute<&'static str>] = &[Attribute::read(
            Spec::fact("connection", Type::Choice(&["up", "reconnecting"]), "How it is reached"),
            |&state| Value::Choice(state),
        )];
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
        let mut device = device(&workers);
        assert_eq!(way_out(&device), "", "it has no server");
        for (state, words) in [("up", ""), ("reconnecting", "spillway set a timeout SECONDS")] {
            let attributes = Arc::new(Table::new(Arc::new(state), ROWS));
            Arc::get_mut(&mut device).unwrap().stack.parts[0].attributes = attributes;
            let said = way_out(&device);
            assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{state}: {said:?}");
        }
    }

    #[test]
    fn a_device_ends_once_the_change_under_way_is_made_and_is_not_changed_after_that() {
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
        let (device, env) = (device(&workers), workers.env());
        let (made, begun) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let (finish, finished) = Job::new();
        let (changed, noted) = (device.clone(), made.clone());
        let change = Job::spawn(&*env, Place::Background, move || async move {
            let change = async {
                begun.0.send(()).unwrap();
                finish.await.unwrap();
                noted.store(true, Ordering::SeqCst);
                Ok(())
            };
            changed.changes.make(change).await
        });
        begun.1.recv().unwrap();
        let (answer, reply) = Job::new();
        let stopping =
            Stopping { device: device.clone(), front: Front::closed(), control: None, env: env.clone() };
        let end = Job::spawn(&*env, Place::Background, move || async move {
            let flushed = stopping.stop(reply).await;
            assert!(made.load(Ordering::SeqCst), "it ended in the middle of a change");
            flushed
        });
        // The end has every chance to go ahead.
        (0..1000).for_each(|_| std::thread::yield_now());
        finished.done(());
        assert_eq!(block_on(end), Some(Ok(())));
        assert_eq!((block_on(change), block_on(answer)), (Some(Ok(())), Some(Ok(()))));
        let late = block_on(device.changes.make(async { Ok(()) }));
        assert_eq!(late.map_err(|error| error.kind), Err(Kind::ShuttingDown));
    }
}
