//! Bytes in any pieces, and the two ways in which a stream ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use spillway_core::session::{Intake, Output, Session};
use spillway_core::{Env, IoBuf};

use super::{Cable, SessionOutcome, Stream, StreamShape};
use crate::pace::Pace;
use crate::world::World;

/// Sends back what it receives, and ends at a full stop.
#[derive(Default)]
struct Echo {
    output: Output,
    over: bool,
    gone: Rc<Cell<bool>>,
}

impl Session for Echo {
    fn intake(&mut self) -> Intake {
        if self.output.len() > 64 { Intake::Pause } else { Intake::Bytes }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        let used = bytes.iter().position(|&byte| byte == b'.').map_or(bytes.len(), |at| at + 1);
        self.over |= bytes[used - 1] == b'.';
        self.output.push(&bytes[..used]);
        used
    }

    fn returned(&mut self, _: IoBuf, _: usize) {}

    fn poll(&mut self, _: &mut Context<'_>) {}

    fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn finished(&self) -> bool {
        self.over
    }

    fn hang_up(&mut self) {
        self.gone.set(true);
    }

    fn wind_down(&mut self) {}

    fn pending(&self) -> usize {
        0
    }
}

fn shape() -> StreamShape {
    StreamShape { room: 50, pace: Pace { turn: 40, delay: Duration::from_millis(1) } }
}

#[test]
fn bytes_arrive_in_order_whatever_the_pieces_and_end_with_the_session() {
    for seed in 0..200 {
        let world = World::new(seed);
        let stream = Rc::new(Stream::connect(&world, Box::<Echo>::default(), shape(), seed));
        let text: Vec<u8> = (0..1000).map(|at| b'a' + at as u8 % 26).chain([b'.']).collect();
        let (sender, sent) = (stream.clone(), text.clone());
        world.spawn_here(Box::pin(async move { assert!(sender.send(&sent).await) }));
        let got: Rc<RefCell<Vec<u8>>> = Rc::default();
        let outcome: Rc<Cell<Option<SessionOutcome>>> = Rc::default();
        let (heard, ended) = (got.clone(), outcome.clone());
        world.spawn_here(Box::pin(async move {
            let mut bytes = Vec::new();
            while stream.receive(&mut bytes).await {}
            heard.replace(bytes);
            ended.set(Some(stream.over().await));
        }));
        world.run_until(|| outcome.get().is_some());
        assert_eq!((&*got.borrow(), outcome.get()), (&text, Some(SessionOutcome::Finished)));
    }
}

#[test]
fn a_session_hangs_up_once_its_client_has_closed() {
    for seed in 0..200 {
        let world = World::new(seed);
        let gone: Rc<Cell<bool>> = Rc::default();
        let echo = Echo { gone: gone.clone(), ..Echo::default() };
        let stream = Stream::connect(&world, Box::new(echo), shape(), seed);
        let outcome: Rc<Cell<Option<SessionOutcome>>> = Rc::default();
        let ended = outcome.clone();
        world.spawn_here(Box::pin(async move {
            assert!(stream.send(b"some words").await);
            stream.close();
            assert!(!stream.send(b"more").await && !stream.receive(&mut Vec::new()).await);
            ended.set(Some(stream.over().await));
        }));
        world.run_until(|| outcome.get().is_some());
        assert!(gone.get() && outcome.get() == Some(SessionOutcome::HungUp));
    }
}

#[test]
fn over_a_silent_cable_nothing_arrives_before_it_heals() {
    for seed in 0..200 {
        let world = World::new(seed);
        let gone: Rc<Cell<bool>> = Rc::default();
        let server = Echo { gone: gone.clone(), ..Echo::default() };
        let mut client = Echo { over: true, ..Echo::default() };
        client.output.push(b"some words");
        let cable = Cable::connect(&world, Box::new(client), Box::new(server), shape(), seed);
        cable.set_silent(true);
        let outcome: Rc<Cell<Option<SessionOutcome>>> = Rc::default();
        let (ended, late, watched) = (outcome.clone(), Rc::new(Cell::new(false)), cable.clone());
        world.spawn_here(Box::pin(async move { ended.set(Some(watched.over().await)) }));
        let (told, sleep) = (late.clone(), world.sleep(Duration::from_secs(1)));
        world.spawn_here(Box::pin(async move {
            sleep.await;
            told.set(true);
        }));
        world.run_until(|| late.get());
        assert!(cable.is_closed() && !gone.get() && outcome.get().is_none());
        cable.set_silent(false);
        world.run_until(|| outcome.get().is_some());
        assert!(gone.get() && outcome.get() == Some(SessionOutcome::HungUp));
    }
}
