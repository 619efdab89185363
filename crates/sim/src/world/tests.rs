//! Tasks, their order, and what they leave behind.

use super::*;

fn sleepers(world: &Arc<World>) -> Vec<Answer<u128>> {
    let sleeper = |millis| {
        let env = world.clone();
        Answer::pending(async move {
            env.sleep(Duration::from_millis(millis)).await;
            env.sleep(Duration::ZERO).await;
            env.now().as_millis()
        })
    };
    [30, 10, 20].map(sleeper).into()
}

#[test]
fn the_clock_skips_to_each_deadline_in_turn() {
    let world = World::new(1);
    assert_eq!(world.run_all(sleepers(&world)), [30, 10, 20]);
    assert_eq!(world.clock.sleepers.lock().len(), 0);
}

/// Lanes of the tasks of a world of this thread.
fn lanes() -> Vec<usize> {
    let world = World::new(1);
    let lane = |_| Answer::pending(async { stats::lane() });
    world.run_all((0..20).map(lane).collect())
}

#[test]
fn tasks_have_the_lanes_of_several_threads_whichever_thread_runs_them() {
    let here = lanes();
    assert!((0..LANES as usize).all(|lane| here.contains(&lane)), "{here:?}");
    std::thread::scope(|scope| assert_eq!(scope.spawn(lanes).join().expect("it ends"), here));
}

/// Spawns another that has so many behind it when it is dropped.
struct Heir(Arc<World>, u32);

impl Drop for Heir {
    fn drop(&mut self) {
        if self.1 > 0 {
            leave(&self.0, self.1 - 1);
        }
    }
}

fn leave(world: &Arc<World>, behind: u32) {
    let heir = Heir(world.clone(), behind);
    world.spawn(Place::Background, Box::new(move || Box::pin(async move { drop(heir) })));
}

#[test]
fn a_power_cut_drops_what_tasks_that_have_not_begun_leave_behind() {
    let world = World::new(1);
    leave(&world, 2);
    world.power_off();
    assert_eq!(Arc::strong_count(&world), 1, "all of them are gone");
}

/// Leaves another that has so many behind it to its thread when it is dropped.
struct Follower(Arc<World>, Arc<AtomicU64>, u32);

impl Drop for Follower {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
        if self.2 > 0 {
            follow(Self(self.0.clone(), self.1.clone(), self.2 - 1));
        }
    }
}

fn follow(follower: Follower) {
    let world = follower.0.clone();
    world.spawn_here(Box::pin(async move { drop(follower) }));
}

#[test]
fn a_thread_that_ends_drops_what_its_last_tasks_leave_behind() {
    let dropped = Arc::<AtomicU64>::default();
    let counted = dropped.clone();
    let thread = std::thread::spawn(move || follow(Follower(World::new(1), counted, 2)));
    thread.join().expect("it ends in order");
    assert_eq!(dropped.load(Ordering::Relaxed), 3);
}

#[test]
fn chance_and_order_follow_from_the_seed() {
    let happen = |seed| {
        let world = World::new(seed);
        world.run_all((0..8).flat_map(|_| sleepers(&world)).collect());
        (world.random(), world.log())
    };
    assert_eq!(happen(7), happen(7));
    assert_ne!(happen(7), happen(8));
}

#[test]
#[should_panic(expected = "a wake was lost")]
fn a_lost_wake_is_a_hang() {
    World::new(1).run(Answer::<()>::pending(std::future::pending()));
}

#[test]
fn what_a_broken_world_left_does_not_break_the_next() {
    struct Bomb(&'static std::cell::Cell<u32>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            assert!(self.0.get() > 2, "it finds a world in ruins");
        }
    }
    let dropped: &'static std::cell::Cell<u32> = Box::leak(Box::default());
    let world = World::new(1);
    for _ in 0..3 {
        let bomb = Bomb(dropped);
        world.spawn_here(Box::pin(async move {
            let _bomb = bomb;
            std::future::pending::<()>().await;
        }));
    }
    World::abandon();
    assert_eq!(dropped.get(), 3);
    World::new(2);
}
