//! Messages come whole and are answered once, and a mount ends with its readers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use spillway_core::exchange::{Exchange, Message, MessageFormat};
use spillway_core::{Env, IoBuf};

use super::Mount;
use super::queue::number_of;
use crate::pace::Pace;
use crate::world::World;

const FORMAT: MessageFormat = MessageFormat { len_max: 100, payload_offset: 80, kept_len_min: 50 };

/// Bytes of a message that it keeps, and of one that it keeps for itself and takes nothing meanwhile.
const KEPT: usize = 60;
const PARKED: usize = 70;

/// Buffers that devices keep.
type Kept = Rc<RefCell<Vec<IoBuf>>>;

/// Replies to each message by its head, after a poll.
#[derive(Default)]
struct Echo {
    replies: Vec<Vec<u8>>,
    kept: Kept,
    parked: Option<IoBuf>,
    gone: Rc<Cell<u32>>,
}

impl Exchange for Echo {
    fn takes(&mut self) -> bool {
        self.parked.is_none()
    }

    fn receive(&mut self, message: IoBuf, last: bool) -> Option<IoBuf> {
        assert!(message.iter().skip(16).all(|&byte| byte == message[16]), "a message is whole");
        self.replies.push(message[..16].to_vec());
        match message.len() {
            KEPT if !last => self.kept.borrow_mut().push(message),
            PARKED => self.parked = Some(message),
            _ => return Some(message),
        }
        None
    }

    fn returned(&mut self) -> Option<IoBuf> {
        self.parked.take()
    }

    fn poll(&mut self, _: &mut Context<'_>) {}

    fn next_reply(&mut self) -> Option<Message> {
        self.replies.pop().map(|reply| Message::new(&reply, IoBuf::empty()))
    }

    fn hang_up(&mut self) {
        self.gone.set(self.gone.get() + 1);
    }

    fn pending(&self) -> usize {
        0
    }
}

fn message(number: u64, len: usize) -> Vec<u8> {
    let mut message = [[0; 8], number.to_ne_bytes()].concat();
    message.resize(len, number as u8);
    message
}

/// A mount with two readers, how many of these have hung up, and what they keep.
fn mount(world: &Arc<World>, seed: u64) -> (Rc<Mount>, Rc<Cell<u32>>, Kept) {
    let (gone, kept): (Rc<Cell<u32>>, Kept) = Default::default();
    let echo = || Echo { gone: gone.clone(), kept: kept.clone(), ..Echo::default() };
    let readers: Vec<Box<dyn Exchange>> = vec![Box::new(echo()), Box::new(echo())];
    let pace = Pace { turn: 3, delay: Duration::from_millis(1) };
    (Rc::new(Mount::connect(world, readers, FORMAT, pace, seed)), gone, kept)
}

/// The numbers of the replies, until there are so many or the mount is gone.
fn replies(world: &World, mount: &Rc<Mount>, count: usize) -> Vec<u64> {
    let (got, done): (Rc<RefCell<Vec<u64>>>, Rc<Cell<bool>>) = Default::default();
    let (mount, heard, ended) = (mount.clone(), got.clone(), done.clone());
    world.spawn_here(Box::pin(async move {
        while heard.borrow().len() < count
            && let Some(reply) = mount.receive().await
        {
            heard.borrow_mut().push(number_of(&reply));
        }
        ended.set(true);
    }));
    world.run_until(|| done.get());
    got.take()
}

#[test]
fn each_message_is_answered_once_whatever_devices_keep() {
    for seed in 0..100 {
        let world = World::new(seed);
        let (mount, gone, kept) = mount(&world, seed);
        for number in 1..=40 {
            mount.send(message(number, [20, KEPT, PARKED][number as usize % 3]), true);
        }
        let mut numbers = replies(&world, &mount, 40);
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
        assert_eq!(kept.borrow().len(), 2, "one for each reader, and no more");
        assert_eq!(gone.get(), 0);
    }
}

#[test]
fn what_is_taken_back_nobody_reads_and_an_abort_ends_all() {
    let mut taken = 0;
    for seed in 0..100 {
        let world = World::new(seed);
        let (mount, gone, _kept) = mount(&world, seed);
        (1..=8).for_each(|number| mount.send(message(number, 20), true));
        (0..seed % 20).for_each(|_| _ = world.step());
        let took = mount.take_back(5);
        taken += u32::from(took);
        let count = 8 - usize::from(took);
        let numbers = replies(&world, &mount, count);
        assert_eq!((numbers.len(), numbers.contains(&5)), (count, !took));
        mount.abort();
        mount.send(message(9, 20), true);
        assert_eq!(replies(&world, &mount, 1), []);
        world.run_until(|| gone.get() == 2);
    }
    assert!((1..100).contains(&taken), "{taken}");
}

#[test]
#[should_panic(expected = "a reply that nobody waits for")]
fn a_reply_to_what_wants_none_breaks_the_story() {
    let world = World::new(1);
    let (mount, _gone, _kept) = mount(&world, 1);
    mount.send(message(1, 20), false);
    world.run_until(|| false);
}
