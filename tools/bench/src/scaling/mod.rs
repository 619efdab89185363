//! What grows with what: throughput with clients (`connections`) and with workers (`scale`), the cost of a request with the size of a
//! device and its content (`growth`).

pub(crate) mod connections;
pub(crate) mod growth;
pub(crate) mod scale;
