//! The store as its users see it.

mod bounds;
mod compaction;
mod history;
mod limit;
mod model;
mod pages;
mod stress;
mod threads;
