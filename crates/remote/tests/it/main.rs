//! Remote images, as servers of all kinds and moods send them.

mod caching;
mod early;
mod faults;
mod flips;
mod hostile;
mod mirrors;
mod reading;
mod registries;
mod traces;
