//! The store as its users see it.

mod bounds;
mod clean;
mod compaction;
mod dedupe;
mod disks;
mod forked;
mod forks;
mod handover;
mod history;
mod killed;
mod limit;
mod model;
mod one;
mod pages;
mod stress;
mod threads;
