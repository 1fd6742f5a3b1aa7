//! The memory that a pool may use: the account of what it takes, and what the machine has.

mod budget;
pub(crate) mod machine;

pub(crate) use self::budget::{Budget, Full, Purpose};
