//! The memory that a pool may use: the account of its memory, and the memory of the machine.

mod budget;
pub(crate) mod machine;

pub(crate) use self::budget::{Budget, Full, Purpose};
