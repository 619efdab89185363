//! Tests of the parts. The whole is tested in the simulated world (`tools/sim`) and with real servers (`tests`).

mod journal;
mod negotiation;
mod reconnect;
mod rounds;
mod transmission;
