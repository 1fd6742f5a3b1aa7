//! What every transport of block devices needs: [named devices](Exports) that come and go, the
//! [threads](Executor) that run requests, and the [memory](Memory) of connections.
//!
//! A transport decodes requests and encodes replies. A request that needs no waiting runs on the
//! transport's own thread, with [`BlockDevice::try_read`](pagefold_disk::BlockDevice::try_read) and
//! its like. The rest is a [`Task`]; many small requests that arrive together are a [`Batch`].
//!
//! Each connection, open file or queue is a [`Client`] of an [`Export`], and counts as such. A
//! [`Change`] that finds no room waits without a thread if its device says so; when it is done, its
//! [`Completion`] replies. A transport that mirrors the exports, such as a folder with a file for
//! each, has a [`Watch`]. It counts the requests of a client with its [`Activity`].
#![forbid(unsafe_code)]

mod activity;
mod aside;
mod change;
mod client;
mod completion;
mod executor;
mod export;
mod exports;
mod memory;
mod polling;
mod quota;
mod running;
mod scratch;
mod thread;
mod waiting;
mod watch;

pub use activity::{Activity, AllDone, Done, Latencies, Operation, SAMPLED, Started, Times};
pub use change::{Attempt, Change, Keep, Payload, Storage};
pub use client::{Client, ClientLimits, InProgress, OpenError, Thread};
pub use completion::{Completion, Failed};
pub use executor::{Batch, Executor, Reserved, Task, Working};
pub use export::{Access, Device, Export};
pub use exports::{ExportError, Exports, MAX_NAME_BYTES};
pub use memory::{Account, Claim, Growing, IDLE_BYTES, Lent, Memory, Share, Taken, WORK_BYTES};
pub use polling::Polling;
pub use quota::{LEAST_COST_BYTES, Quota, RateLimit, has_part};
pub use scratch::{SCRATCH_BYTES, Scratch};
pub use thread::{THREAD_BYTES, spawn};
pub use watch::{Event, Stopper, Watch};
