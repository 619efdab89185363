//! The folder `zram-control`: devices come and go by its files, as by the kernel's class of that name.
//!
//! Each read of `hot_add` from its start adds a device and shows its number; a number that is written to `hot_remove` removes that device.

use std::sync::Arc;

use spillway_core::{Answer, Kind};

use super::controls::{ControlFile, Controls, TextPiece};
use super::wire::errno;
use crate::control::DeviceChanges;

/// Its name.
pub const CLASS: &str = "zram-control";

const HOT_ADD: ControlFile = ControlFile { name: "hot_add", permissions: 0o400 };
const HOT_REMOVE: ControlFile = ControlFile { name: "hot_remove", permissions: 0o200 };

/// The folder.
pub(super) struct ClassFolder {
    pub(super) server: Arc<dyn DeviceChanges>,
}

impl Controls for ClassFolder {
    fn name(&self) -> &str {
        CLASS
    }

    fn files(&self) -> &[ControlFile] {
        &[HOT_ADD, HOT_REMOVE]
    }

    fn show(&self, _: &ControlFile, _: u64) -> Answer<Result<TextPiece, i32>> {
        let added = self.server.hot_add();
        Answer::pending(async move {
            let added = added.await.inspect_err(|error| tracing::info!("{}: {error}", HOT_ADD.name));
            added.map(|number| TextPiece::new(number.to_string(), None)).map_err(|error| error.kind.errno())
        })
    }

    fn store(&self, _: &ControlFile, text: String) -> Answer<Result<(), i32>> {
        let number = match number_of(&text) {
            Ok(number) => number,
            Err(errno) => return Answer::Done(Err(errno)),
        };
        let removed = self.server.hot_remove(number);
        Answer::pending(async move {
            let removed = removed.await.inspect_err(|error| tracing::info!("{}: {error}", HOT_REMOVE.name));
            removed.map_err(|error| match error.kind {
                Kind::NotFound => errno::ENODEV,
                kind => kind.errno(),
            })
        })
    }
}

/// A number as the kernel reads one of this type: decimal, with a sign; it takes none below 0.
fn number_of(text: &str) -> Result<u32, i32> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    match text.parse::<i32>() {
        Ok(number) => u32::try_from(number).map_err(|_| errno::EINVAL),
        Err(why) if matches!(why.kind(), PosOverflow | NegOverflow) => Err(errno::ERANGE),
        Err(_) => Err(errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_the_kernel_reads_them() {
        for (text, number) in [
            ("0", Ok(0)),
            ("+7", Ok(7)),
            ("007", Ok(7)),
            ("2147483647", Ok(2_147_483_647)),
            ("2147483648", Err(errno::ERANGE)),
            ("-2147483649", Err(errno::ERANGE)),
            ("-1", Err(errno::EINVAL)),
            ("", Err(errno::EINVAL)),
            (" 1", Err(errno::EINVAL)),
            ("1 ", Err(errno::EINVAL)),
            ("1\n", Err(errno::EINVAL)),
            ("0x1", Err(errno::EINVAL)),
            ("ram0", Err(errno::EINVAL)),
        ] {
            assert_eq!(number_of(text), number, "{text:?}");
        }
    }
}
