//! How a device takes the size that its file or block device has by now.

use std::sync::Arc;

use spillway_core::size::human;
use spillway_core::sync::Ordering;
use spillway_core::{Answer, BlockDevice, Error, Grow, Kind, LocalFuture, Request, mutant};

use super::device::{Backing, File};

impl Grow for File {
    fn look(&self) -> LocalFuture<Result<(), Error>> {
        let look = self.backing.storage.look();
        Box::pin(async { look.await.map_err(|kind| Error::new(kind, "its size cannot be asked for")) })
    }

    fn target(&self, size: Option<u64>) -> Result<Option<u64>, Error> {
        Ok(size.or(Some(self.backing.storage.geometry().size)))
    }

    /// A file or image that is smaller becomes that large; a block device or export was made so before.
    fn grow(&self, size: Option<u64>) -> LocalFuture<Result<(), Error>> {
        let backing = self.backing.clone();
        Box::pin(async move { backing.grow(size).await })
    }
}

impl File {
    /// Whether [`File::lengthen`] may do something: it is no block device.
    pub(crate) fn becomes_longer(&self) -> bool {
        let bytes = self.backing.size.load(Ordering::Acquire);
        matches!(self.backing.storage.lengthen(bytes), Answer::Done(Ok(())))
    }

    /// Makes a file as long as that, beside those who use it, one call at a time; [`spillway_core::Kind::NotSupported`] for a block device.
    pub(crate) async fn lengthen(&self, bytes: u64) -> Result<(), Error> {
        self.backing.lengthen(bytes).await?;
        self.backing.grow(None).await
    }
}

impl Backing {
    async fn lengthen(&self, bytes: u64) -> Result<(), Error> {
        let lengthened = self.storage.lengthen(bytes).await;
        lengthened.map_err(|kind| Error::new(kind, format!("it cannot be made {} long", human(bytes))))
    }

    async fn grow(self: &Arc<Self>, wanted: Option<u64>) -> Result<(), Error> {
        let mut there = self.present_size()?;
        let longer = |bytes: &u64| *bytes > there && bytes.is_multiple_of(self.geometry.block_size.bytes());
        if let Some(wanted) = wanted.filter(longer).filter(|_| !self.geometry.read_only) {
            match self.lengthen(wanted).await {
                Err(error) if error.kind == Kind::NotSupported => {}
                lengthened => lengthened?,
            }
            there = self.present_size()?;
        }
        if let Some(wanted) = wanted.filter(|&wanted| wanted != there) {
            return Err(Error::invalid(format!(
                "there are {there} bytes, not {wanted}: give the block device or export its size first; without a size all that is \
                 there is taken"
            )));
        }
        // A length that was not durable would not be there after a crash, nor what is written behind the old end.
        let flush = match mutant::on("file: show a new length before it is durable") {
            true => Request::flush().answer(Ok(())),
            false => File { backing: self.clone() }.submit(Request::flush()).await,
        };
        flush.result.map_err(|kind| Error::new(kind, "its new size cannot be made durable"))?;
        self.size.store(there, Ordering::Release);
        Ok(())
    }

    /// What there is by now, of which nothing that is in use is missing.
    fn present_size(&self) -> Result<u64, Error> {
        let (now, has) = (self.storage.geometry(), self.size.load(Ordering::Acquire));
        if now.identity != self.geometry.identity {
            return Err(Error::invalid("what was opened is another file or device now: restart the server"));
        }
        if now.size < has {
            let text =
                format!("there are {} bytes now, and {has} are in use: what was cut off is lost", now.size);
            return Err(Error::invalid(text));
        }
        Ok(now.size)
    }
}
