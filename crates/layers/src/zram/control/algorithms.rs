//! The attributes that choose algorithms and their parameters: words as the kernel reads them, written one after another in the kernel and
//! here also with commas between, so that a configuration can say them all.

use spillway_core::{Error, Kind};

use crate::zram::codec::codecs::PRIORITIES;
use crate::zram::codec::decoders::Decoders;
use crate::zram::codec::encoder::Choice;
use crate::zram::codec::{self, CODECS, CodecIndex, Params};
use crate::zram::device::{Core, Zram};

/// Longest name of an algorithm that the kernel reads, and one.
const NAME_BYTES: usize = 128;

/// Windows that deflate may have, as powers of two; below zero without a head, which no page has here.
const WINDOW_BITS: std::ops::RangeInclusive<i32> = 8..=15;

/// Chooses what writers compress with.
pub(crate) fn set_primary(zram: &Zram, name: &str) -> Result<(), Error> {
    let _setup = zram.core.lock_blank("comp_algorithm")?;
    let codec = codec::find(name)?;
    zram.core.choose(CodecIndex::PRIMARY, Choice { codec, params: Params::default() })
}

/// Chooses what pages are recompressed with: `algo=NAME priority=N`.
pub(crate) fn set_secondaries(zram: &Zram, text: &str) -> Result<(), Error> {
    for one in text.split(',') {
        let Words { algo, priority, .. } = Words::read(one)?;
        let name = algo.ok_or_else(|| Error::invalid("algo is missing: write algo=NAME priority=N"))?;
        let priority = priority.map_or(Ok(CodecIndex(1)), |text| priority_from(1, text))?;
        if name.len() >= NAME_BYTES {
            return Err(Error::new(Kind::TooLong, "no algorithm has a name of 128 characters or more"));
        }
        let codec = codec::find(name)?;
        let _setup = zram.core.lock_blank("recomp_algorithm")?;
        zram.core.choose(priority, Choice { codec, params: Params::default() })?;
    }
    Ok(())
}

/// The secondaries, a line for each, with the list of all algorithms.
pub(crate) fn secondaries(zram: &Zram) -> String {
    let name = |chosen: usize, codec: usize| match CODECS[codec].name {
        name if codec == chosen => format!("[{name}] "),
        name => format!("{name} "),
    };
    let names =
        |choice: Choice| (0..CODECS.len()).map(move |codec| name(choice.codec, codec)).collect::<String>();
    let line = |(priority, choice): (CodecIndex, Choice)| format!("#{}: {}", priority.0, names(choice));
    zram.core.codecs.secondaries().into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Sets the parameters of one algorithm, from the defaults on.
pub(crate) fn set_params(zram: &Zram, text: &str) -> Result<(), Error> {
    let _setup = zram.core.lock_blank("algorithm_params")?;
    for one in text.split(',') {
        let words = Words::read(one)?;
        if let Some(other) = words.other {
            let known = "level, algo, priority and deflate.winbits";
            return Err(Error::invalid(format!("{other:?} is not a parameter here: there are {known}")));
        }
        let (priority, Choice { codec, .. }) = zram.core.target(words.algo, words.priority, 0)?;
        let level = words.level.map(|text| level(codec, text)).transpose()?;
        words.window.map_or(Ok(()), |text| check_window(codec, text))?;
        zram.core.choose(priority, Choice { codec, params: Params { level } })?;
    }
    Ok(())
}

/// Words of one algorithm.
#[derive(Default)]
struct Words<'a> {
    algo: Option<&'a str>,
    priority: Option<&'a str>,
    level: Option<&'a str>,
    window: Option<&'a str>,
    /// Another key.
    other: Option<&'a str>,
}

impl<'a> Words<'a> {
    fn read(text: &'a str) -> Result<Self, Error> {
        let mut words = Self::default();
        for word in text.split_whitespace() {
            let (key, value) = pair(word)?;
            match key {
                "algo" => words.algo = Some(value),
                "priority" => words.priority = Some(value),
                "level" => words.level = Some(value),
                "deflate.winbits" => words.window = Some(value),
                _ => words.other = Some(key),
            }
        }
        Ok(words)
    }
}

/// Key and value of a word.
pub(crate) fn pair(word: &str) -> Result<(&str, &str), Error> {
    word.split_once('=').ok_or_else(|| Error::invalid(format!("{word:?} has no value: write {word}=VALUE")))
}

fn priority_from(least: u8, text: &str) -> Result<CodecIndex, Error> {
    let most = PRIORITIES as u8 - 1;
    let priority = text.parse().ok().filter(|priority| (least..=most).contains(priority));
    priority.map(CodecIndex).ok_or_else(|| {
        Error::invalid(format!("priority {text:?} is not allowed: there are {least} to {most}"))
    })
}

fn level(codec: usize, text: &str) -> Result<i32, Error> {
    let allowed = (CODECS[codec].levels)();
    text.parse().ok().filter(|level| allowed.contains(level)).ok_or_else(|| {
        let (name, least, most) = (CODECS[codec].name, allowed.start(), allowed.end());
        Error::invalid(format!("level {text:?} is not allowed: {name} takes {least} to {most}"))
    })
}

/// Whether it is a window that deflate may have. It bounds memory in the kernel; here a page is a window, and none takes more.
fn check_window(codec: usize, text: &str) -> Result<(), Error> {
    let allowed = |bits: i32| WINDOW_BITS.contains(&bits.saturating_abs());
    if CODECS[codec].name == "deflate" && text.parse().is_ok_and(allowed) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "deflate.winbits {text:?} is not allowed: deflate takes -15 to -8 and 8 to 15"
    )))
}

impl Core {
    fn choice(&self, priority: CodecIndex) -> Option<Choice> {
        if priority == CodecIndex::PRIMARY {
            return Some(self.streams.choice());
        }
        self.codecs.secondary(priority)
    }

    /// The algorithm that words name, of a priority from `least` on: that itself where they name none. [`Kind::Invalid`] where it is not
    /// in use, or is another than the one of that priority.
    pub(crate) fn target(
        &self,
        algo: Option<&str>,
        priority: Option<&str>,
        least: u8,
    ) -> Result<(CodecIndex, Choice), Error> {
        let named = priority.map(|text| priority_from(least, text)).transpose()?;
        let codec = algo.map(codec::find).transpose()?;
        let among = match (named, codec) {
            (Some(priority), _) => priority.0..=priority.0,
            (None, Some(_)) => least..=PRIORITIES as u8 - 1,
            (None, None) => least..=least,
        };
        let wanted = |choice: &Choice| codec.is_none_or(|codec| codec == choice.codec);
        let mut found = among.map(CodecIndex).filter_map(|priority| Some((priority, self.choice(priority)?)));
        found.find(|(_, choice)| wanted(choice)).ok_or_else(|| {
            let what = algo.map_or(String::new(), |algo| format!(" algo {algo:?}"));
            let at = named.map_or(String::new(), |priority| format!(" priority {}", priority.0));
            Error::invalid(format!(
                "no algorithm is in use as{what}{at}{}: set comp_algorithm or recomp_algorithm first",
                if algo.is_none() && priority.is_none() { " the first for recompression" } else { "" }
            ))
        })
    }

    /// Chooses a codec while no client reads or writes; its memory is charged first.
    pub(crate) fn choose(&self, priority: CodecIndex, choice: Choice) -> Result<(), Error> {
        let refused = |kind| {
            let name = CODECS[choice.codec].name;
            Error::new(
                kind,
                format!("{name} takes up to 4 MiB before anything is written, and --memory has less left"),
            )
        };
        let others = (0..PRIORITIES as u8).map(CodecIndex).filter(|other| *other != priority);
        let mut in_use: Vec<usize> = others.filter_map(|other| Some(self.choice(other)?.codec)).collect();
        in_use.push(choice.codec);
        let decoders = Decoders::charge(&in_use, &self.fixed).map_err(refused)?;
        if priority == CodecIndex::PRIMARY {
            self.streams.choose(choice).map_err(refused)?;
            self.codecs.set_primary(choice.codec);
        } else {
            self.codecs.set_secondary(priority, choice, &self.fixed).map_err(refused)?;
        }
        self.decoders.choose(decoders);
        Ok(())
    }
}
