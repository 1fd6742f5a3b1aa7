//! Exports as files, as the kernel and its users see them.

mod mounted;
mod rules;
mod same_bytes;
mod sharing;
mod storage;
mod taken;
mod tools;
mod waiting;
