//! What another process needs to continue a socket and its frontend. It is not trusted: its values
//! are checked like those that a frontend sends.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::memory::Description;

/// A socket on which a disk is served, and its frontend. A field that a later version adds needs a
/// default. Its descriptors are the listening socket and those of the frontend: its connection, the
/// files of its memory, the channel for the device's requests, the file of its logs, for each queue
/// the eventfds that start it, notify the driver and report errors, and the files that came with a
/// part of a message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SocketState {
    #[serde(default)]
    pub(crate) frontend: Option<FrontendState>,
}

/// A frontend.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FrontendState {
    pub(crate) features: u64,
    pub(crate) protocol: u64,
    pub(crate) write_back: bool,
    /// The disk's size that was last reported to the frontend.
    pub(crate) size_bytes: u64,
    pub(crate) regions: Vec<Description>,
    pub(crate) has_channel: bool,
    pub(crate) logs: Option<LogsState>,
    /// The queues that the frontend has set up.
    pub(crate) queues: Vec<QueueState>,
    /// The part of the next message that has come.
    #[serde(default)]
    pub(crate) received: Vec<u8>,
    /// How many files came with it.
    #[serde(default)]
    pub(crate) received_files: usize,
}

/// The logs of requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LogsState {
    pub(crate) offset: u64,
    pub(crate) queues: u16,
    pub(crate) queue_size: u16,
}

/// A queue without requests in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueState {
    pub(crate) number: u16,
    pub(crate) size: u16,
    /// Where the rings are.
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
    pub(crate) next_available: u16,
    pub(crate) next_used: u16,
    pub(crate) is_started: bool,
    pub(crate) is_enabled: bool,
    pub(crate) is_broken: bool,
    pub(crate) has_call: bool,
    pub(crate) has_error: bool,
    /// The number of the next request in the log, if there is a log.
    pub(crate) log_counter: u64,
}

/// A frontend that pauses, with its descriptors.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) state: FrontendState,
    pub(crate) descriptors: Vec<OwnedFd>,
}
