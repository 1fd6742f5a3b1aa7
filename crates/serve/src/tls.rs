//! TLS between a client's socket and the connection that uses it.

mod certificates;
mod layer;
mod records;
mod session;

pub use certificates::{Certificates, CertificatesError};
pub(crate) use layer::Layer;
pub use layer::{IDLE_BYTES, WORK_BYTES};
