//! Libraries that tests and benches compare with, opened at run time if the machine has them.
//!
//! pagefold does not link with them, and nothing that ships depends on this crate. liblzo2 is GPL,
//! so it is loaded with `dlopen`, and only compared with our own codec.

mod liblzo2;

pub use liblzo2::{Liblzo2, Liblzo2Work};
