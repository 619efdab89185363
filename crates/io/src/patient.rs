//! Writing to a descriptor that others read, without waiting for them for ever.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, write};

/// Bytes of one write: a pipe that is writable takes these at once, because it has a page free.
const PIECE_BYTES: usize = 4096;

/// Writes a beginning of `bytes` once `to` takes one, and returns how many bytes that is. [`ErrorKind::TimedOut`] where it
/// takes none within `patience`.
pub fn write_some(to: impl AsFd, bytes: &[u8], patience: Duration) -> Result<usize> {
    let (start, piece) = (Instant::now(), &bytes[..bytes.len().min(PIECE_BYTES)]);
    loop {
        let left = patience.saturating_sub(start.elapsed());
        let outcome = if is_writable(&to, left)? { write(&to, piece) } else { Err(Errno::AGAIN) };
        match outcome {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if left.is_zero() => {
                return Err(Error::new(ErrorKind::TimedOut, "nobody reads it"));
            }
            Err(Errno::AGAIN) => {}
            written => return Ok(written?),
        }
    }
}

/// Writes all of `bytes`, with `patience` for all of them together; see [`write_some`].
pub fn write_all(to: impl AsFd, mut bytes: &[u8], patience: Duration) -> Result<()> {
    let start = Instant::now();
    while !bytes.is_empty() {
        let count = write_some(&to, bytes, patience.saturating_sub(start.elapsed()))?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Whether a write would not wait: within `patience`, or as far as that is known until a signal comes.
fn is_writable(to: &impl AsFd, patience: Duration) -> Result<bool> {
    let timeout = Timespec::try_from(patience).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
    match poll(&mut [PollFd::new(to, PollFlags::OUT)], Some(&timeout)) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::{Read, pipe};

    #[test]
    fn what_nobody_reads_ends_the_wait_and_not_the_process() {
        let (mut reader, writer) = pipe().unwrap();
        let stuck = write_all(&writer, &[7; 1 << 20], Duration::from_millis(1)).unwrap_err();
        assert_eq!(stuck.kind(), ErrorKind::TimedOut);
        reader.read_exact(&mut [0; 8192]).unwrap();
        assert_eq!(write_some(&writer, &[7; 5000], Duration::ZERO).unwrap(), PIECE_BYTES);
        drop(reader);
        let gone = write_some(&writer, &[7], Duration::from_secs(60)).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_full_device_says_so() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert_eq!(write_all(&full, b"x", Duration::ZERO).unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
