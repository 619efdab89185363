//! The data path: what a block device is, what a request is, and the checks between two layers.

pub mod align;
pub mod at_risk;
pub mod contract;
pub mod device;
pub mod grow;
pub mod health;
pub mod request;
pub mod seam;
pub mod storage;
pub mod suspend;
