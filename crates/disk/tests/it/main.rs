//! Disks as their users see them.

mod bounds;
mod forks;
mod kept;
mod over;
mod ram;
