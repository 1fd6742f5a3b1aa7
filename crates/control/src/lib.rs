//! The control protocol of a running server: one JSON object per line on a Unix socket.
//!
//! [`answer`] turns a request's line into the answer's line by calling a [`Manage`], which does the
//! work. [`Server`] does that for the clients of a socket; [`Client`] is the other end.
//! `docs/control.md` lists every field and every error.
//!
//! ```no_run
//! use std::time::Duration;
//! use pagefold_control::{Client, Command, Listing};
//!
//! let mut client = Client::connect("/run/pagefold/control.sock".as_ref(), Duration::from_secs(10))?;
//! let listing: Listing = client.call(&Command::List {})?;
//! for disk in listing.disks {
//!     println!("{}: {} bytes", disk.name, disk.size_bytes);
//! }
//! # Ok::<(), pagefold_control::ClientError>(())
//! ```
#![forbid(unsafe_code)]

mod checks;
mod client;
mod command;
mod dispatch;
mod failure;
mod gate;
mod lines;
mod manage;
mod model;
mod name;
mod records;
mod server;

pub use checks::{MAX_FORKS, MIN_LIMIT_BYTES, MIN_RATE_BYTES, check_limit, check_size};
pub use client::{Client, ClientError};
pub use command::{Add, AddBase, BindSpare, Command, DiskQuota, DiskSocket, Fork, NewDevice, Quota, Resize};
pub use dispatch::answer;
pub use failure::{Code, Failure};
pub use gate::Pause;
pub use lines::MAX_REQUEST_BYTES;
pub use manage::{Batch, Held, Manage};
pub use model::Model;
pub use name::{
    MAX_NAME_BYTES, check_name, check_new_name, check_snapshot, is_unseen, snapshot_name, split_snapshot_name,
};
pub use records::{
    BaseRecord, BusyDisk, ChangedRange, Changes, Compacted, DeviceEnding, DeviceFault, DiskKind, DiskRecord, DiskStat,
    Dropped, Figures, FrozenRun, FrozenRuns, Greeting, HandingOver, Instant, Limited, LimitedConnections, Listing,
    Renamed, Resized, ServerStat, SpareRecord, Stat, Stopping, Stored,
};
pub use server::{Limits, Server, ServerHandle};
