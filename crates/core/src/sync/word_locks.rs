//! Locks in the two lowest bits of words.
//!
//! For tables with so many entries that a lock beside each would be too much. The other 62 bits are the entry's *content*. A thread
//! that finds the lock taken looks for a moment, then sets the second bit and sleeps in one of a few lots, chosen by a key of the
//! word; unlocking wakes the lot if the bit is set. An unlocked word has neither bit, so that one that is locked and one that is
//! empty are told apart in one load, and content that is not zero can be looked at without locking.
//!
//! The bit is set under the lot's lock, and the waker takes that lock after it has cleared the bit: it finds the sleeper asleep.

use super::primitives::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use crate::mutant;

const LOCKED: u64 = 1;
const AWAITED: u64 = 2;
const BOTH: u64 = LOCKED | AWAITED;

/// Lots in which threads sleep. In a model all sleep in one.
const LOTS: usize = if cfg!(feature = "shuttle") { 1 } else { 32 };

/// Looks before a thread sleeps: about a microsecond, the longest that a lock of this kind is held by a thread that runs.
const LOOKS: u32 = if cfg!(feature = "shuttle") { 0 } else { 60 };

/// Where threads sleep that wait for words. One serves any number of words.
pub struct WordLocks {
    lots: Box<[Lot]>,
}

#[derive(Default)]
struct Lot {
    entrance: Mutex<()>,
    unlocked: Condvar,
}

impl Default for WordLocks {
    fn default() -> Self {
        Self { lots: (0..LOTS).map(|_| Lot::default()).collect() }
    }
}

impl WordLocks {
    /// Lowest bits of a word that are not content.
    pub const BITS: u32 = 2;

    /// What a word holds beside its lock.
    pub fn content(word: u64) -> u64 {
        word & !BOTH
    }

    /// Locks `word` as soon as it is unlocked, while `wanted` is true of its content; returns that, or as an error the first
    /// content that is not wanted. The key is the same for every thread that locks or unlocks this word.
    ///
    /// Where it fails it may have tried to change the word, which changes nothing but makes the word's memory resident.
    #[inline]
    pub fn lock_if(&self, key: u64, word: &AtomicU64, wanted: impl Fn(u64) -> bool) -> Result<u64, u64> {
        let locked = self.exchange(key, word, |content| wanted(content).then_some(content | LOCKED));
        if locked.is_ok() {
            super::primitives::note_lock();
        }
        locked
    }

    /// Changes the content of `word` to what `next` makes of it, as soon as it is unlocked, without locking it; returns what it was, or as
    /// an error the first content of which `next` makes nothing. Content that stays as it is is not waited for.
    ///
    /// Where it fails, as of [`WordLocks::lock_if`].
    pub fn update(&self, key: u64, word: &AtomicU64, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.exchange(key, word, |content| {
            let next = next(content);
            assert!(next.is_none_or(|next| next & BOTH == 0), "content {next:x?} has bits of the lock");
            next
        })
    }

    /// Puts what `next` makes of the content in its place, as soon as `word` is unlocked.
    #[inline]
    fn exchange(&self, key: u64, word: &AtomicU64, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut looks = 0;
        loop {
            let seen = word.load(Ordering::Acquire);
            let content = Self::content(seen);
            let Some(next) = next(content) else { return Err(content) };
            if next == content {
                return Ok(content);
            }
            if seen & LOCKED != 0 && !mutant::on("word locks: change what is locked") {
                self.wait(key, word, &mut looks);
            } else if word.compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(content);
            } else {
                super::primitives::note_failed_exchange(word);
            }
        }
    }

    /// Locks `word` and changes its content if it is unlocked and holds `from`.
    pub fn lock_changed(&self, word: &AtomicU64, from: u64, to: u64) -> bool {
        assert!((from | to) & BOTH == 0, "content {from:#x} or {to:#x} has bits of the lock");
        word.compare_exchange(from, to | LOCKED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Changes the content of `word` without locking it if it is unlocked and holds `from`.
    pub fn change(&self, word: &AtomicU64, from: u64, to: u64) -> bool {
        assert!((from | to) & BOTH == 0, "content {from:#x} or {to:#x} has bits of the lock");
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Unlocks `word`, which then holds `content`. Panics where it was not locked.
    #[inline]
    pub fn unlock(&self, key: u64, word: &AtomicU64, content: u64) {
        assert!(content & BOTH == 0, "content {content:#x} has bits of the lock");
        let before = word.swap(content, Ordering::Release);
        assert!(before & LOCKED != 0, "a word is unlocked that was not locked");
        if before & AWAITED != 0 {
            self.wake(key);
        }
    }

    #[cold]
    fn wait(&self, key: u64, word: &AtomicU64, looks: &mut u32) {
        if *looks != LOOKS {
            *looks += 1;
            std::hint::spin_loop();
            return;
        }
        let lot = self.lot(key);
        let early = mutant::on("word locks: ask to be woken before going to sleep");
        if early && !ask(word) {
            return;
        }
        let entrance = lot.entrance.lock();
        if early || ask(word) {
            sleep(&lot.unlocked, entrance);
        }
    }

    #[cold]
    fn wake(&self, key: u64) {
        let lot = self.lot(key);
        let _entrance = lot.entrance.lock();
        lot.unlocked.notify_all();
    }

    fn lot(&self, key: u64) -> &Lot {
        &self.lots[key as usize % self.lots.len()]
    }
}

/// Sets the bit that has the holder of `word` wake; false where there is no holder any more.
fn ask(word: &AtomicU64) -> bool {
    let seen = word.load(Ordering::Relaxed);
    let asked = seen | AWAITED;
    if seen & LOCKED == 0 || seen == asked {
        return seen & LOCKED != 0;
    }
    let done = word.compare_exchange(seen, asked, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if !done {
        super::primitives::note_failed_exchange(word);
    }
    done
}

#[cfg(not(feature = "shuttle"))]
fn sleep(unlocked: &Condvar, mut entrance: MutexGuard<'_, ()>) {
    unlocked.wait(&mut entrance);
}

#[cfg(feature = "shuttle")]
fn sleep(unlocked: &Condvar, entrance: MutexGuard<'_, ()>) {
    drop(unlocked.wait(entrance).expect("a model ends with its first panic"));
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::models::{every_order, finds};
    use shuttle::thread;
    use std::sync::Arc;

    const ONE: u64 = 1 << WordLocks::BITS;

    /// Three threads add to the same word, which looks at two values while it is locked: none is lost, and each gets its turn.
    fn additions() {
        let shared = Arc::new((WordLocks::default(), AtomicU64::new(0), AtomicU64::new(0)));
        let add = |_| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (locks, word, beside) = &*shared;
                let before = locks.lock_if(7, word, |_| true).expect("any content is wanted");
                assert_eq!(beside.load(Ordering::Relaxed) * ONE, before, "another thread is inside");
                beside.store(before / ONE + 1, Ordering::Relaxed);
                locks.unlock(7, word, before + ONE);
            })
        };
        let threads: Vec<_> = (0..3).map(add).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(shared.1.load(Ordering::Relaxed), 3 * ONE);
    }

    #[test]
    fn whoever_waits_for_a_word_gets_it() {
        every_order(20_000, additions);
    }

    /// Two threads add to the content of a word without locking it, while a third adds to it under its lock, in two steps.
    #[test]
    fn what_is_changed_without_a_lock_is_not_lost_to_who_holds_it() {
        every_order(20_000, || {
            let shared = Arc::new((WordLocks::default(), AtomicU64::new(ONE)));
            let add = |_| {
                let shared = shared.clone();
                thread::spawn(move || shared.0.update(7, &shared.1, |content| Some(content + ONE)).is_ok())
            };
            let adders = [(); 2].map(add);
            let (locks, word) = &*shared;
            let before = locks.lock_if(7, word, |_| true).expect("any content is wanted");
            thread::yield_now();
            locks.unlock(7, word, before + 10 * ONE);
            assert!(adders.into_iter().all(|thread| thread.join().expect("it ends")));
            assert_eq!(word.load(Ordering::Relaxed), 13 * ONE);
        });
    }

    #[test]
    fn the_checker_finds_a_change_of_what_is_locked() {
        finds(
            "word locks: change what is locked",
            what_is_changed_without_a_lock_is_not_lost_to_who_holds_it,
        );
    }

    #[test]
    fn the_checker_finds_a_sleeper_that_is_not_woken() {
        finds("word locks: ask to be woken before going to sleep", whoever_waits_for_a_word_gets_it);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn many_threads_on_a_few_words_lose_nothing() {
        let (locks, words) = (WordLocks::default(), [const { AtomicU64::new(0) }; 3]);
        let each = if cfg!(miri) { 100 } else { 20_000 };
        std::thread::scope(|scope| {
            for lane in 0..4 {
                let (locks, words) = (&locks, &words);
                scope.spawn(move || {
                    for step in 0..each {
                        let key = (lane + step) % 3;
                        let word = &words[key as usize];
                        let before = locks.lock_if(key, word, |_| true).unwrap();
                        locks.unlock(key, word, before + 4);
                    }
                });
            }
        });
        assert_eq!(words.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>(), 4 * 4 * each);
    }

    #[test]
    fn content_that_is_not_wanted_is_told_without_locking() {
        let (locks, word) = (WordLocks::default(), AtomicU64::new(8));
        assert_eq!(locks.lock_if(0, &word, |content| content == 0), Err(8));
        assert!(locks.lock_changed(&word, 8, 0) && !locks.change(&word, 0, 4));
        assert_eq!(locks.lock_if(0, &word, |content| content != 0), Err(0), "a locked word can be looked at");
        locks.unlock(0, &word, 16);
        assert!(locks.change(&word, 16, 20) && !locks.lock_changed(&word, 16, 0));
        let double = |content: u64| (content < 100).then_some(content * 2);
        assert_eq!((locks.update(0, &word, double), locks.update(0, &word, double)), (Ok(20), Ok(40)));
        assert_eq!(locks.update(0, &word, double), Ok(80));
        assert_eq!(locks.update(0, &word, double), Err(160));
        assert!(locks.lock_changed(&word, 160, 164));
        assert_eq!(locks.update(0, &word, Some), Ok(164), "what stays is not waited for");
        assert_eq!(word.load(Ordering::Relaxed), 164 | LOCKED);
    }
}
