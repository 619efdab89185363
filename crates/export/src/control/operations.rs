//! An operation carried out: one code, whatever the protocol that asked for it.

use spillway_core::{Answer, Error, Kind, Type};

use super::catalog::{Catalog, added_name};
use super::message::{ControlReply, Operation};
use super::rows::Shown;
use super::work::WorkRow;

/// Carries out `operation`. Looking is answered at once; a change that has begun completes whether the answer is awaited or not.
pub(super) fn carry_out(catalog: &dyn Catalog, operation: Operation) -> Answer<Result<ControlReply, Error>> {
    let reply = match operation {
        Operation::Version {} => Ok(ControlReply::Server(catalog.version())),
        Operation::Server {} => {
            Ok(ControlReply::Values(catalog.server().into_iter().map(|(_, shown)| shown).collect()))
        }
        Operation::List {} => Ok(ControlReply::Devices(catalog.devices())),
        Operation::Work {} => Ok(ControlReply::Work(works(catalog))),
        Operation::Report { .. } | Operation::Keep { .. } => Err(Error::new(
            Kind::NotSupported,
            "only a connection to a control socket reports work or brings a client back",
        )),
        Operation::Attributes { device } => catalog.attributes(&device).map(ControlReply::Attributes),
        Operation::Get { device, attribute, from } => {
            values(catalog, &device, attribute, from.unwrap_or(0)).map(ControlReply::Values)
        }
        Operation::Add {} => {
            tracing::info!("a control client asks for another device");
            let added = catalog.hot_add();
            return added.map(|added| added.map(|number| ControlReply::Added(added_name(number))));
        }
        change => {
            tracing::info!(?change, "a control client asks for a change");
            return catalog.change(change).map(|changed| changed.map(|()| ControlReply::Done));
        }
    };
    Answer::Done(reply)
}

/// Long work that is under way.
pub(super) fn works(catalog: &dyn Catalog) -> Vec<WorkRow> {
    let registry = catalog.registry().into_iter();
    registry.flat_map(|registry| registry.progress()).map(WorkRow::from).collect()
}

/// One attribute from a place on, or all; lines are shown to those who ask for them.
pub(super) fn values(
    catalog: &dyn Catalog,
    device: &str,
    attribute: Option<String>,
    from: u64,
) -> Result<Vec<Shown>, Error> {
    match attribute {
        Some(name) => Ok(vec![catalog.get(device, &name, from)?]),
        None => catalog
            .attributes(device)?
            .into_iter()
            .filter(|row| row.readable && row.r#type != Type::Lines.name())
            .map(|row| catalog.get(device, &row.name, 0))
            .collect(),
    }
}
