//! The compressed RAM origin.
