//! The store as its users see it.

mod limit;
mod model;
mod pages;
mod threads;
