//! Drawn stories: requests, looks, answers and losses in any order.

use spillway_core::random::Random;

use super::house::{Asked, House};
use super::kernel::BLOCKS;

/// What was asked in a drawn story, and when what it promises had been acknowledged.
struct Promise {
    asked: Asked,
    blocks: Vec<usize>,
    judged: bool,
}

/// Blocks are written once each, flushed, lost and reported in any order: what a flush or a durable write that succeeded had
/// to cover is on the medium at that moment.
fn play(seed: u64) {
    let mut random = Random(seed);
    let house = House::new(random.below(2) == 0);
    let (mut next, mut acked, mut promises) = (0, Vec::new(), Vec::<Promise>::new());
    let mut plain: Vec<(usize, Asked)> = Vec::new();
    for _ in 0..80 {
        match random.below(9) {
            0 | 1 if next < BLOCKS => {
                plain.push((next, house.write(next, false)));
                next += 1;
            }
            2 if next < BLOCKS => {
                promises.push(Promise { asked: house.write(next, true), blocks: vec![next], judged: false });
                next += 1;
            }
            3 => promises.push(Promise { asked: house.flush(), blocks: acked.clone(), judged: false }),
            4 => {
                let mask = random.draw();
                // With O_DIRECT only what has ended lies in a cache, and a durable write answers for itself.
                let spared = |block: usize| house.kernel.direct && !acked.contains(&block);
                let lost = |block: usize| mask >> block & 1 == 1 && !spared(block);
                house.kernel.state.lock().lose(lost);
            }
            5 | 6 => draw(&mut random, house.open(false)).into_iter().for_each(|index| house.look(index)),
            _ => draw(&mut random, house.open(true)).into_iter().for_each(|index| house.answer(index)),
        }
        acked.extend(ended(&mut plain));
        promises.iter_mut().for_each(|promise| judge(&house, promise, seed));
    }
    for _ in 0..100 {
        house.carry_out();
        ended(&mut plain);
        promises.iter_mut().for_each(|promise| judge(&house, promise, seed));
    }
    assert!(promises.iter().all(|promise| promise.judged), "seed {seed}: a request is never answered");
}

/// Blocks of the plain writes that have succeeded; the rest is still to end.
fn ended(plain: &mut Vec<(usize, Asked)>) -> Vec<usize> {
    let mut succeeded = Vec::new();
    plain.retain_mut(|(block, asked)| match asked.poll() {
        Some(Ok(())) => {
            succeeded.push(*block);
            false
        }
        Some(Err(kind)) => panic!("a plain write fails with {kind:?}"),
        None => true,
    });
    succeeded
}

fn judge(house: &House, promise: &mut Promise, seed: u64) {
    if promise.judged {
        return;
    }
    let Some(result) = promise.asked.poll() else { return };
    promise.judged = true;
    let medium = house.kernel.state.lock().medium;
    let lost: Vec<_> = promise.blocks.iter().filter(|&&block| medium[block] != block as u8 + 1).collect();
    assert!(result.is_err() || lost.is_empty(), "seed {seed}: success, but blocks {lost:?} are lost");
}

fn draw(random: &mut Random, from: Vec<usize>) -> Option<usize> {
    (!from.is_empty()).then(|| from[random.below(from.len() as u64) as usize])
}

#[test]
fn no_success_covers_a_loss_in_any_order() {
    (0..4000).for_each(play);
}
