//! Keys, from the bytes that a terminal sends for them: ECMA-48 control sequences as xterm and the Linux console use them.

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// A printable character of ASCII.
    Char(char),
}

const ESCAPE: u8 = 0x1b;

/// Longest control sequence in bytes that is waited for.
const SEQUENCE_BYTES_MAX: usize = 32;

/// Bytes that have arrived and are no whole key yet.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<u8>);

impl Keys {
    /// Takes bytes of the terminal.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next key that has arrived whole.
    pub(super) fn next(&mut self) -> Option<Key> {
        loop {
            let (count, key) = first(&self.0)?;
            assert!((1..=self.0.len()).contains(&count), "a key of {count} bytes, of {}", self.0.len());
            self.0.drain(..count);
            if key.is_some() {
                return key;
            }
        }
    }

    /// Whether a part of a key is there, once there is no whole one.
    pub(super) fn is_unfinished(&self) -> bool {
        !self.0.is_empty()
    }

    /// No more bytes follow: an escape alone is that key, and a sequence without its end none.
    pub(super) fn finish(&mut self) {
        // A byte that is no key makes a whole key of the escape before it.
        match self.0[..] {
            [ESCAPE] => self.0.push(0),
            _ => self.0.clear(),
        }
    }
}

/// How many of the bytes belong together, and the key that they are, if any; `None` where more bytes are needed.
fn first(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    match *bytes {
        [] | [ESCAPE] | [ESCAPE, b'O'] => None,
        [ESCAPE, b'[', ..] => sequence(bytes),
        [ESCAPE, b'O', last, ..] => Some((3, moving(last, b""))),
        [ESCAPE, ..] => Some((1, Some(Key::Escape))),
        [one, ..] => Some((1, single(one))),
    }
}

/// A control sequence: parameters, and a last byte that says what it is.
fn sequence(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    let end = bytes.iter().skip(2).position(|byte| (0x40..=0x7e).contains(byte));
    match end {
        Some(end) => Some((end + 3, moving(bytes[end + 2], &bytes[2..end + 2]))),
        None if bytes.len() > SEQUENCE_BYTES_MAX => Some((bytes.len(), None)),
        None => None,
    }
}

fn moving(last: u8, parameters: &[u8]) -> Option<Key> {
    match (last, parameters) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Key::Home),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Key::End),
        (b'~', b"5") => Some(Key::PageUp),
        (b'~', b"6") => Some(Key::PageDown),
        (b'M', b"") => Some(Key::Enter),
        _ => None,
    }
}

fn single(byte: u8) -> Option<Key> {
    match byte {
        0x03 => Some(Key::Interrupt),
        0x1a => Some(Key::Suspend),
        b'\r' | b'\n' => Some(Key::Enter),
        b' '..=b'~' => Some(Key::Char(byte.into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(keys: &mut Keys) -> Vec<Key> {
        std::iter::from_fn(|| keys.next()).collect()
    }

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut keys = Keys::default();
        keys.take(bytes);
        all(&mut keys)
    }

    #[test]
    fn terminals_send_a_key_in_several_ways() {
        for (bytes, key) in [
            (&b"\x1b[A"[..], Key::Up),
            (b"\x1bOA", Key::Up),
            (b"\x1b[1;5A", Key::Up),
            (b"\x1b[B", Key::Down),
            (b"\x1b[5~", Key::PageUp),
            (b"\x1b[6~", Key::PageDown),
            (b"\x1b[H", Key::Home),
            (b"\x1b[1~", Key::Home),
            (b"\x1b[F", Key::End),
            (b"\x1bOF", Key::End),
            (b"\r", Key::Enter),
            (b"\x03", Key::Interrupt),
            (b"\x1a", Key::Suspend),
            (b"q", Key::Char('q')),
        ] {
            assert_eq!(keys(bytes), [key], "{bytes:?}");
        }
    }

    #[test]
    fn keys_may_arrive_in_pieces_and_together() {
        let mut piecewise = Keys::default();
        let mut found = Vec::new();
        for byte in *b"\x1b[Bq\x1b[5~\x1bOH" {
            piecewise.take(&[byte]);
            found.extend(all(&mut piecewise));
        }
        assert_eq!(found, [Key::Down, Key::Char('q'), Key::PageUp, Key::Home]);
        assert!(!piecewise.is_unfinished());
        assert_eq!(keys(b"\x1b\x1b[A<"), [Key::Escape, Key::Up, Key::Char('<')]);
    }

    #[test]
    fn an_escape_alone_is_a_key_once_nothing_follows() {
        let mut alone = Keys::default();
        alone.take(b"\x1b");
        assert_eq!((alone.next(), alone.is_unfinished()), (None, true));
        alone.finish();
        assert_eq!(all(&mut alone), [Key::Escape]);
        assert!(!alone.is_unfinished());
        alone.take(b"\x1b[1;");
        assert_eq!((alone.next(), alone.is_unfinished()), (None, true));
        alone.finish();
        assert_eq!((all(&mut alone), alone.is_unfinished()), (vec![], false));
    }

    #[test]
    fn what_means_nothing_is_dropped() {
        assert_eq!(keys(b"\x1b[200~\x1b[<0;1;1M\xc3\xa9\x00\x7f"), []);
        let endless = [b"\x1b[".to_vec(), vec![b'1'; 100]].concat();
        assert_eq!(keys(&endless), []);
        for seed in 0u32..2000 {
            let bytes: Vec<u8> =
                (0..9).map(|at| (seed.wrapping_mul(2_654_435_761) >> (at * 3)) as u8).collect();
            let mut any = Keys::default();
            any.take(&bytes);
            all(&mut any);
            any.finish();
            all(&mut any);
            assert!(!any.is_unfinished(), "{bytes:?}");
        }
    }
}
