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

mod client;
mod command;
mod dispatch;
mod failure;
mod lines;
mod manage;
mod model;
mod records;
mod server;

pub use client::{Client, ClientError};
pub use command::{Add, AddBase, Command, Fork};
pub use dispatch::{MAX_NAME_BYTES, answer, check_name, check_size, snapshot_name, split_snapshot_name};
pub use failure::{Code, Failure};
pub use lines::MAX_REQUEST_BYTES;
pub use manage::{Batch, Held, Manage};
pub use model::Model;
pub use records::{
    BaseRecord, ChangedRange, Changes, Compacted, DiskKind, DiskRecord, DiskStat, Done, Dropped, Figures, FrozenRun,
    FrozenRuns, Greeting, Instant, Limited, LimitedConnections, Listing, Renamed, Resized, ServerStat, Stat, Stored,
};
pub use server::{Limits, Server, ServerHandle};
