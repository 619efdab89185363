//! What the data of options says.

use super::wire::{self, Reader, rep};

/// An option that is refused: the reply and the words that go with it.
pub(super) type Refused = (u32, &'static str);

/// The name and the queries of the two options on metadata contexts.
pub(super) fn split_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut reader = Reader(data);
    let name = reader.string()?;
    let count = reader.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(reader.string()?);
    }
    reader.at_end().then_some((name, queries))
}

/// The name and the kinds of information that `OPT_INFO` and `OPT_GO` ask for.
pub(super) fn parse_query(data: &[u8]) -> Result<(&[u8], Vec<u16>), Refused> {
    let (name, wanted) = split_query(data).ok_or((rep::ERR_INVALID, "the lengths do not add up"))?;
    match name.len() > wire::STRING_LEN_MAX {
        true => Err((rep::ERR_TOO_BIG, "the name is too long")),
        false => Ok((name, wanted)),
    }
}

fn split_query(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut reader = Reader(data);
    let name = reader.string()?;
    let count = reader.u16()?;
    let wanted: Vec<u16> = (0..count).map(|_| reader.u16()).collect::<Option<_>>()?;
    reader.at_end().then_some((name, wanted))
}

pub(super) fn no_payload(data: &[u8]) -> Result<(), Refused> {
    if data.is_empty() { Ok(()) } else { Err((rep::ERR_INVALID, "this option has no data")) }
}
