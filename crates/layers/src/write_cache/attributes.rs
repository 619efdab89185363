//! The cache as the control plane sees it: the kernel's status line, each of its fields by name, the options, the messages.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{Attribute, Error, Kind, Place, Table, Unit};

use super::cache::{Opened, WriteCache};
use super::counts::Count;
use super::settings::switch;

const NOT_OPEN: &str = "-";

impl WriteCache {
    fn field(&self, show: impl FnOnce(&mut Opened) -> u64) -> String {
        self.core.look(show).map_or(NOT_OPEN.into(), |value| value.to_string())
    }

    fn count(&self, count: Count) -> String {
        self.core.counts.get(count).to_string()
    }

    /// The kernel's 14 fields.
    fn status(&self) -> String {
        let fields = self.core.look(|opened| {
            [
                u64::from(self.core.failure.check().is_err()),
                opened.layout.n_blocks,
                u64::from(opened.index.free.count()),
                u64::from(opened.index.copying()),
            ]
        });
        let counts = [
            Count::Reads,
            Count::ReadHits,
            Count::Writes,
            Count::HitsUncommitted,
            Count::HitsCommitted,
            Count::Around,
            Count::Allocated,
            Count::Blocked,
            Count::Flushes,
            Count::Discards,
        ];
        let counts = counts.map(|count| self.core.counts.get(count));
        let fields: Vec<String> =
            fields.unwrap_or_default().iter().chain(&counts).map(ToString::to_string).collect();
        fields.join(" ")
    }

    fn message(&self, text: &str) -> Result<(), Error> {
        match text.trim() {
            "flush" => self.drain(false),
            "flush_on_suspend" => {
                self.core.flush_on_suspend.store(true, Ordering::Release);
                Ok(())
            }
            "cleaner" => self.set_cleaner("1"),
            "clear_stats" => {
                self.core.counts.clear();
                Ok(())
            }
            other => Err(Error::invalid(format!(
                "there is no message {other:?}; there are: flush, flush_on_suspend, cleaner, clear_stats"
            ))),
        }
    }

    fn drain(&self, stays_clean: bool) -> Result<(), Error> {
        match self.core.look(|_| ()) {
            Some(()) => self.core.drain(stays_clean),
            None => Err(Error::new(Kind::Busy, "the cache is not open yet")),
        }
    }

    fn set_cleaner(&self, text: &str) -> Result<(), Error> {
        self.core.settings.cleaner.store(text)?;
        if self.core.settings.cleaner.get() == 0 {
            self.core.forget_drain();
        }
        self.changed();
        Ok(())
    }

    /// An option has changed: what it asks for begins, on a thread that runs tasks.
    fn changed(&self) {
        let core = self.core.clone();
        self.core.env.spawn(Place::Background, Box::new(move || Box::pin(async move { core.resume() })));
    }
}

macro_rules! field {
    ($name:literal, $help:literal, $show:expr) => {
        Attribute::read($name, Unit::Count, $help, |cache: &WriteCache| cache.field($show))
    };
}

macro_rules! count {
    ($name:literal, $help:literal, $count:ident) => {
        Attribute::read($name, Unit::Count, $help, |cache: &WriteCache| cache.count(Count::$count))
    };
}

macro_rules! option {
    ($name:ident, $unit:ident, $help:literal) => {
        Attribute::both(
            stringify!($name),
            Unit::$unit,
            $help,
            |cache: &WriteCache| cache.core.settings.$name.show(),
            |cache, text| {
                cache.core.settings.$name.store(text)?;
                cache.changed();
                Ok(())
            },
        )
    };
}

static ROWS: &[Attribute<WriteCache>] = &[
    Attribute::read(
        "status",
        Unit::Text,
        "The kernel's 14 fields: error, blocks, free_blocks, writeback_blocks, reads, read_hits, writes, \
         write_hits_uncommitted, write_hits_committed, writes_around, writes_allocate, writes_blocked_on_freelist, flushes, \
         discards. Blocks, except for the error (0 or 1), the blocked and the flushes, which are requests.",
        WriteCache::status,
    ),
    Attribute::read(
        "error",
        Unit::Text,
        "The first error of the metadata or of a copy, which sticks until the cache is opened again; none.",
        |cache| {
            let failure = cache.core.failure.check();
            failure.map_or_else(|kind| kind.errno_name().to_owned(), |()| "none".into())
        },
    ),
    field!("blocks", "Blocks of the cache.", |opened| opened.layout.n_blocks),
    field!(
        "bad_blocks",
        "Blocks set aside for ten minutes or until the next start: writing them failed.",
        |opened| { u64::from(opened.index.aside.blocks()) }
    ),
    field!("free_blocks", "Blocks that hold nothing.", |opened| u64::from(opened.index.free.count())),
    field!("dirty_blocks", "Blocks of the origin that the cache holds.", |opened| u64::from(
        opened.index.used()
    )),
    field!("uncommitted_blocks", "Of these, in no commit yet.", |opened| u64::from(
        opened.index.uncommitted()
    )),
    field!("writeback_blocks", "Blocks being copied to the origin.", |opened| u64::from(
        opened.index.copying()
    )),
    field!("seq_count", "Of the superblock.", |opened| opened.index.committed),
    count!("reads", "Blocks read.", Reads),
    count!("read_hits", "Of these, from the cache.", ReadHits),
    count!("writes", "Blocks written.", Writes),
    count!("write_hits_uncommitted", "Of these, over a block in no commit yet.", HitsUncommitted),
    count!("write_hits_committed", "Of these, over a committed block.", HitsCommitted),
    count!("writes_around", "Of these, sent straight to the origin.", Around),
    count!("writes_allocate", "Of these, new in the cache.", Allocated),
    count!("writes_blocked_on_freelist", "Writes that waited for free blocks.", Blocked),
    count!("flushes", "Flush requests.", Flushes),
    count!("discards", "Blocks discarded.", Discards),
    count!("commits", "Superblocks written.", Commits),
    count!("copies", "Writes of cached blocks to the origin.", Copies),
    Attribute::read(
        "blocks_per_copy",
        Unit::Count,
        "Mean of blocks that a copy wrote to the origin at once.",
        |cache| cache.core.counts.ratio(Count::Copied, Count::Copies),
    ),
    Attribute::read(
        "pieces_per_write",
        Unit::Count,
        "Mean of I/Os that a write to the cache took: 1 where free blocks follow each other.",
        |cache| cache.core.counts.ratio(Count::Pieces, Count::CacheWrites),
    ),
    Attribute::read("free_run_mean", Unit::Count, "Mean length of runs of free blocks.", |cache| {
        let mean = cache.core.look(|opened| opened.index.free.mean_len());
        mean.map_or(NOT_OPEN.into(), |mean| format!("{mean:.1}"))
    }),
    field!("free_run_p10", "Length that nine tenths of the runs of free blocks reach.", |opened| u64::from(
        opened.index.free.p10_len()
    )),
    Attribute::read(
        "origin_bytes_per_second",
        Unit::Bytes,
        "How fast the origin took writes when that was last measured; 0 before.",
        |cache| cache.core.pace.lock().bytes_per_second().to_string(),
    ),
    Attribute::both(
        "drain",
        Unit::Text,
        "off, running LEFT TOTAL (blocks), complete, or failed ERRNO. Writing 1 copies everything to the origin, and lets \
         nothing enter the cache afterwards (cleaner is on).",
        |cache| cache.core.look(|opened| opened.drain_text()).unwrap_or(NOT_OPEN.into()),
        |cache, text| match text.trim() {
            "1" => cache.drain(true),
            other => Err(Error::invalid(format!("drain cannot be {other:?}: give 1; cleaner 0 ends it"))),
        },
    ),
    Attribute::write(
        "message",
        Unit::Text,
        "The kernel's messages: flush (begin to copy everything to the origin; `drain` shows how far that is), flush_on_suspend (do \
         so once, when the device is stopped), cleaner, clear_stats.",
        WriteCache::message,
    ),
    Attribute::both(
        "high_watermark",
        Unit::Count,
        "Copying begins when so many percent of the blocks are used; 0 to 100, not below low_watermark.",
        |cache| cache.core.settings.high_watermark.show(),
        |cache, text| cache.core.settings.store_high(text).map(|()| cache.changed()),
    ),
    Attribute::both(
        "low_watermark",
        Unit::Count,
        "Copying ends when fewer percent than this are used; 0 to 100, not above high_watermark.",
        |cache| cache.core.settings.low_watermark.show(),
        |cache, text| cache.core.settings.store_low(text).map(|()| cache.changed()),
    ),
    option!(
        writeback_jobs,
        Count,
        "Blocks copied at a time; 0 is as many as 16 MiB hold, which is the most."
    ),
    option!(autocommit_blocks, Count, "A commit begins after so many uncommitted blocks."),
    option!(
        autocommit_time,
        Count,
        "Milliseconds after which something that was written is committed; 0 to 3600000."
    ),
    option!(
        max_age,
        Count,
        "Milliseconds after which a block is copied to the origin; 0 to 86400000, or none."
    ),
    Attribute::both(
        "cleaner",
        Unit::Switch,
        "Whether everything is copied to the origin and nothing new enters the cache.",
        |cache| cache.core.settings.cleaner.show(),
        WriteCache::set_cleaner,
    ),
    option!(
        metadata_only,
        Switch,
        "Whether only metadata of file systems enters the cache. NBD does not tell what is metadata: nothing new enters then."
    ),
    option!(
        pause_writeback,
        Count,
        "Milliseconds since the last write around the cache before copies go on; 0 to 60000."
    ),
    Attribute::read("path", Unit::Text, "The cache device.", |cache| {
        cache.core.settings.path.display().to_string()
    }),
    Attribute::read("block_size", Unit::Bytes, "Bytes of a block.", |cache| {
        cache.core.block_bytes().to_string()
    }),
    Attribute::read(
        "start_sector",
        Unit::Count,
        "Where the cache begins on its device, in sectors of 512 bytes.",
        |cache| cache.core.settings.start_sector.to_string(),
    ),
    Attribute::read(
        "mode",
        Unit::Text,
        "s: the cache device is reached by I/O; p: through a mapping.",
        |cache| cache.core.settings.mode().into(),
    ),
    Attribute::read(
        "fua",
        Unit::Switch,
        "Whether copies are written to the origin with FUA instead of a flush after them.",
        |cache| switch(cache.core.settings.fua),
    ),
    Attribute::read(
        "ack",
        Unit::Text,
        "When a write is acknowledged: received, or committed (then a flush is free).",
        |cache| cache.core.settings.ack().into(),
    ),
    Attribute::read(
        "allocation",
        Unit::Text,
        "How free blocks are chosen: best_fit, or next_fit as the kernel does.",
        |cache| cache.core.settings.allocation().into(),
    ),
    Attribute::read(
        "large_writes",
        Unit::Switch,
        "Whether blocks that follow each other are written as one I/O.",
        |cache| switch(cache.core.settings.large_writes),
    ),
    Attribute::read("group_commit", Unit::Switch, "Whether flushes share commits.", |cache| {
        switch(cache.core.settings.group_commit)
    }),
];

/// The attributes of `cache`.
pub fn attributes(cache: Arc<WriteCache>) -> Table<WriteCache> {
    Table::new(cache, ROWS)
}
