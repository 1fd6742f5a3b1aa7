//! Remote images, as servers of all kinds and moods send them.

mod caching;
mod faults;
mod hostile;
mod reading;
mod registries;
mod traces;
