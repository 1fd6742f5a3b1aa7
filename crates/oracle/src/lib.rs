//! Libraries that tests and benches compare with, opened at run time where this machine has them.
//!
//! Nothing of pagefold is linked with them and nothing that ships depends on this crate: liblzo2 is
//! GPL, so it is looked for with `dlopen` and only ever stands beside our own codec.

mod liblzo2;

pub use liblzo2::{Liblzo2, Liblzo2Work};
