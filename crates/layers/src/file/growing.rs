//! How a device takes the size that its file, block device or server has by now, or that a file or image is given.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::env::within;
use spillway_core::size::human;
use spillway_core::sync::Ordering;
use spillway_core::{Answer, BlockDevice, Error, Grow, Kind, LocalFuture, Request, mutant};

use super::device::{Core, File};

/// How often a server is looked at while it does what a change of size asks of it: the end of the device waits for that.
const PATIENCE: Duration = Duration::from_secs(10);

impl Grow for File {
    fn look(&self) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move {
            let look = async {
                core.storage.look().await.map_err(|kind| Error::new(kind, "its size cannot be asked for"))
            };
            core.in_time(look).await
        })
    }

    fn target(&self, size: Option<u64>) -> Result<Option<u64>, Error> {
        match size {
            Some(wanted) => self.core.check(wanted).map(|()| size),
            None => self.core.present_size().map(Some),
        }
    }

    /// A file or image that is smaller becomes that large; a block device or export was made so before.
    fn grow(&self, size: Option<u64>) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move { core.in_time(core.grow(size)).await })
    }
}

impl File {
    /// Whether [`File::lengthen`] may do something: it is no block device.
    pub(crate) fn becomes_longer(&self) -> bool {
        let bytes = self.core.size.load(Ordering::Acquire);
        matches!(self.core.storage.lengthen(bytes), Answer::Done(Ok(())))
    }

    /// Makes a file as long as that, beside those who use it, one call at a time; [`spillway_core::Kind::NotSupported`] for a block device.
    pub(crate) async fn lengthen(&self, bytes: u64) -> Result<(), Error> {
        self.core.lengthen(bytes).await?;
        self.core.grow(None).await
    }
}

impl Core {
    async fn lengthen(&self, bytes: u64) -> Result<(), Error> {
        let lengthened = self.storage.lengthen(bytes).await;
        lengthened.map_err(|kind| Error::new(kind, format!("it cannot be made {} long", human(bytes))))
    }

    /// What comes of `work`, which can be left at any time: nobody waits for ever for a server that is away.
    async fn in_time(&self, work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let mut work = pin!(work);
        loop {
            if let Some(done) = within(&*self.env, PATIENCE, work.as_mut()).await {
                return done;
            }
            if !self.storage.connection().answers() {
                return Err(Error::new(
                    Kind::Unreachable,
                    "its server does not answer: try again once it does",
                ));
            }
        }
    }

    async fn grow(self: &Arc<Self>, wanted: Option<u64>) -> Result<(), Error> {
        if let Some(wanted) = wanted {
            if self.present_size()? < wanted {
                self.lengthen(wanted).await?;
            }
            self.check(wanted)?;
        }
        let there = self.present_size()?;
        // A length that was not durable would not be there after a crash, nor what is written behind the old end.
        let flush = match mutant::on("file: show a new length before it is durable") {
            true => Request::flush().answer(Ok(())),
            false => File { core: self.clone() }.submit(Request::flush()).await,
        };
        flush.result.map_err(|kind| Error::new(kind, "its new size cannot be made durable"))?;
        self.size.store(there, Ordering::Release);
        Ok(())
    }

    /// Whether there can be `wanted` bytes, and no others.
    fn check(&self, wanted: u64) -> Result<(), Error> {
        let (there, block) = (self.present_size()?, self.geometry.block_size.bytes());
        let is_fixed = || matches!(self.storage.lengthen(there), Answer::Done(Err(Kind::NotSupported)));
        let why = match wanted {
            _ if wanted == there => return Ok(()),
            _ if wanted < there => "without a size all that is there is taken".to_owned(),
            _ if self.geometry.read_only => "nothing is written to it".to_owned(),
            _ if !wanted.is_multiple_of(block) => format!("a size is a multiple of {block}"),
            _ if is_fixed() => "give the block device or export its size first".to_owned(),
            _ => return Ok(()),
        };
        Err(Error::invalid(format!("there are {there} bytes, not {wanted}: {why}")))
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
