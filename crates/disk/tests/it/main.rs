//! Disks as their users see them.

mod bounds;
mod forks;
mod handover;
mod kept;
mod over;
mod ram;
