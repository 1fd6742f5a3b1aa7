//! Disks as their users see them.

mod bounds;
mod forks;
mod over;
mod ram;
