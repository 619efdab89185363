//! TLS around a conversation that begins without it and asks for it, as NBD does by STARTTLS.
//!
//! ```text
//!   bytes of the peer -> TlsSession -> plain bytes -> the session inside
//!   bytes to the peer <- TlsSession <- plain output <- the session inside
//! ```
//!
//! [`TlsSession`] passes bytes on as they are until the session inside has [`StartTls::starts_tls`]; from the next byte on everything is TLS, so
//! that plain bytes which were sent early are no part of what is protected: they are no TLS, and end the connection. The protocol is rustls's
//! (TLS 1.2 and 1.3), the arithmetic ring's.
//!
//! *Upwards* it promises what a [`Session`](spillway_core::session::Session) does, and that nothing is sent in plain once TLS was asked for. What
//! a client makes it hold beside the session is [`TLS_BYTES`]. *Below* it needs certificates, as [`Certificates`].

mod certificates;
mod records;
mod session;

pub use certificates::{Certificates, Clients, Pem, Trust, TrustPem};
pub use rustls::StreamOwned;
pub use session::{StartTls, TLS_BYTES, TlsSession};

#[cfg(test)]
mod tests;
