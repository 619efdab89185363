//! What a server offers: exports by their names.
//!
//! [`Exports`] is shared by all sessions and may change at any time; a session looks a name up once, when its client chooses it. Each name
//! is an [`Offer`]: an export has its own, and that of its alias, by which clients can only read. An export whose device has size 0 is not
//! served: it is neither listed nor found. A hidden name is found and not listed.
//!
//! The empty name means the only export of which a name is listed, by its own name if that is listed: it leads to nothing that a list hides.
//!
//! Lock order: the list's lock is a leaf, never held while a device is asked.

use std::sync::{Arc, Weak};

use spillway_core::sync::RwLock;
use spillway_core::{Error, Geometry, Kind};

use crate::export::Export;

/// An export under one of its names.
#[derive(Clone)]
pub struct Offer {
    export: Arc<Export>,
    by_alias: bool,
}

/// An offer that keeps no export: it may be remembered for longer than the export is served.
pub(crate) struct WeakOffer {
    export: Weak<Export>,
    by_alias: bool,
}

impl WeakOffer {
    /// Whether it is that offer: not where another export has the name by now.
    pub(crate) fn is(&self, offer: &Offer) -> bool {
        // No other export has this address as long as this remembers it.
        let same = std::ptr::eq(self.export.as_ptr(), Arc::as_ptr(&offer.export));
        same && self.by_alias == offer.by_alias
    }
}

impl Offer {
    /// What an export offers, its own name first.
    fn all_of(export: &Arc<Export>) -> impl Iterator<Item = Self> {
        let by = |by_alias| Self { export: export.clone(), by_alias };
        [Some(by(false)), export.alias().map(|_| by(true))].into_iter().flatten()
    }

    /// The same, without keeping the export.
    pub(crate) fn downgrade(&self) -> WeakOffer {
        WeakOffer { export: Arc::downgrade(&self.export), by_alias: self.by_alias }
    }

    /// The export.
    pub fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.export.alias().filter(|_| self.by_alias).map_or(self.export.name(), |alias| &alias.name)
    }

    /// The device as clients see it who come by this name.
    pub fn geometry(&self) -> Geometry {
        let geometry = self.export.geometry();
        Geometry { read_only: geometry.read_only || self.by_alias, ..geometry }
    }

    /// Whether lists leave it out.
    fn is_hidden(&self) -> bool {
        self.export.alias().filter(|_| self.by_alias).map_or(self.export.is_hidden(), |alias| alias.hidden)
    }
}

/// The exports of a server, in the order in which they were added.
#[derive(Default)]
pub struct Exports {
    list: RwLock<Vec<Arc<Export>>>,
}

impl Exports {
    /// No exports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an export; [`Kind::Busy`] where one of its names is taken.
    pub fn add(&self, export: Export) -> Result<Arc<Export>, Error> {
        let export = Arc::new(export);
        let mut list = self.list.write();
        let taken =
            |offer: &Offer| list.iter().flat_map(Offer::all_of).any(|other| other.name() == offer.name());
        if let Some(offer) = Offer::all_of(&export).find(taken) {
            let message = format!("an export named '{}' exists already: choose another name", offer.name());
            return Err(Error::new(Kind::Busy, message));
        }
        list.push(export.clone());
        Ok(export)
    }

    /// Takes an export of that own name from the list, with its alias. Its clients keep it until they leave.
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        let mut list = self.list.write();
        let index = list.iter().position(|export| export.name() == name)?;
        Some(list.remove(index))
    }

    /// What is served, by all names.
    fn offers(&self) -> Vec<Offer> {
        let list = self.list.read().clone();
        let served = list.iter().filter(|export| export.device().geometry().size > 0);
        served.flat_map(Offer::all_of).collect()
    }

    /// The names that clients may see.
    pub fn listed(&self) -> Vec<Offer> {
        let mut offers = self.offers();
        offers.retain(|offer| !offer.is_hidden());
        offers
    }

    /// What is served under that name; for the empty one see the head of this file.
    pub fn find(&self, name: &[u8]) -> Option<Offer> {
        let named = self.offers().into_iter().find(|offer| offer.name().as_bytes() == name);
        named.or_else(|| if name.is_empty() { self.preset() } else { None })
    }

    /// What the empty name means where no export has it.
    fn preset(&self) -> Option<Offer> {
        let mut listed = self.listed().into_iter();
        let first = listed.next()?;
        listed.all(|other| Arc::ptr_eq(&other.export, &first.export)).then_some(first)
    }
}
