//! Block devices: what a transport serves and what it may ask of it.
//!
//! [`BlockDevice`] is the interface; [`Checked`] is the one place that validates range, capability and emptiness, so
//! that devices and transports stay short.

mod checked;
mod device;
mod shared;

pub use checked::Checked;
pub use device::{BlockDevice, Error, Extent, Zeroes};
