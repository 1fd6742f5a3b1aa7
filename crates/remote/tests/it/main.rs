//! Remote images, as servers of all kinds and moods send them.

mod caching;
mod hostile;
mod reading;
mod registries;
