//! Disks as their users see them.

mod bounds;
mod over;
mod forks;
mod ram;
