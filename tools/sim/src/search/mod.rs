//! Which stories are run: many of them (`campaign`), and ever shorter ones where one breaks a promise (`shrink`); and the
//! deliberate defects that stories have to find (`mutants`).

pub mod campaign;
pub mod mutants;
pub mod shrink;
