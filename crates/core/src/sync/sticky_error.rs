//! The first error, which stays.

use super::{AtomicU32, Ordering};
use crate::error::Kind;

/// The first failure of something that cannot be used as before afterwards. Reading it is one load.
#[derive(Default)]
pub struct StickyError {
    /// Errno, 0 for none.
    errno: AtomicU32,
}

impl StickyError {
    /// Notes a failure; true if it is the first, for which the caller says what failed and what to do.
    pub fn set(&self, kind: Kind) -> bool {
        self.errno.compare_exchange(0, kind.errno() as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The first failure, if there was one.
    #[inline]
    pub fn check(&self) -> Result<(), Kind> {
        match self.errno.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(Kind::of_errno(errno as i32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_stays() {
        let error = StickyError::default();
        assert_eq!(error.check(), Ok(()));
        assert!(error.set(Kind::NoSpace) && !error.set(Kind::Io));
        assert_eq!(error.check(), Err(Kind::NoSpace));
    }
}
