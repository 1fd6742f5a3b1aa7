//! Tests of several modules together, and concurrency models.

#[cfg(not(loom))]
mod faults;
#[cfg(not(loom))]
mod limit;
#[cfg(loom)]
mod models;
#[cfg(loom)]
mod models_common;
#[cfg(not(loom))]
mod one;
#[cfg(not(loom))]
mod training;

#[cfg(not(loom))]
pub(crate) use self::one::One;
