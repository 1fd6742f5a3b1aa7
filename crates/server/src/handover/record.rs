//! The record of what is handed over, as JSON.
//!
//! It may come from another version of this program: unknown fields are ignored. A field that a
//! later version adds has a default here. The version changes only if that is not enough.

use pagefold_control::{BaseRecord, DiskQuota};
use pagefold_serve::{ClientState, ListenerState, NewcomerState};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::HandedTransport;

/// The version of the record and of the messages.
pub(crate) const VERSION: u32 = 1;

/// The part that is needed to read the pool before the record.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ahead {
    pub(crate) version: u32,
    pub(crate) pool: PoolState,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) tls: bool,
    /// Whether the server stores the memory of the new process, which must then send it.
    #[serde(default)]
    pub(crate) stores: bool,
    /// The bases when the record is made; the new process opens them before the pause.
    #[serde(default)]
    pub(crate) bases: Vec<BaseRecord>,
}

/// A server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u32,
    /// The version of the program.
    pub(crate) program: String,
    pub(crate) pool: PoolState,
    /// The stream has the unmodified disks of bases first, then all others in the order of `disks`.
    pub(crate) bases: Vec<BaseRecord>,
    pub(crate) disks: Vec<DiskState>,
    /// Part of the disks' identities.
    pub(crate) id: u64,
    pub(crate) next_number: u64,
    pub(crate) limit_bytes: Option<u64>,
    /// Most connections.
    pub(crate) connections: u64,
    /// Whether writes beyond a limit wait.
    pub(crate) waits: bool,
    pub(crate) uptime_ms: u64,
    /// When the first server began to listen, in Unix time.
    #[serde(default)]
    pub(crate) start_time_ns: Option<u64>,
    /// Whether clients can use TLS.
    pub(crate) tls: bool,
    /// As in [`Ahead`].
    #[serde(default)]
    pub(crate) stores: bool,
    /// The descriptors belong to the following, in this order.
    pub(crate) listeners: Vec<ListenerState>,
    pub(crate) clients: Vec<ClientState>,
    pub(crate) newcomers: Vec<NewcomerState>,
    pub(crate) control: Option<ControlState>,
    pub(crate) files: Vec<String>,
    #[serde(default)]
    pub(crate) texts: Vec<(String, String)>,
    /// Ways to the disks other than NBD.
    #[serde(default)]
    pub(crate) transports: Vec<TransportState>,
}

/// A transport.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TransportState {
    pub(crate) name: String,
    /// As the transport defines it.
    pub(crate) state: Box<RawValue>,
    /// How many descriptors belong to it.
    pub(crate) descriptors: usize,
}

impl TransportState {
    pub(crate) fn of(handed: &HandedTransport) -> Self {
        let HandedTransport { name, state, descriptors } = handed;
        Self { name: (*name).to_owned(), state: state.clone(), descriptors: descriptors.len() }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PoolState {
    pub(crate) codec: String,
    pub(crate) dedupe: bool,
}

/// A disk.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DiskState {
    pub(crate) name: String,
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    /// The index of the base that it is, or that is below it.
    pub(crate) base: Option<usize>,
    /// The name of the disk that a fork or a snapshot was made from.
    pub(crate) origin: Option<String>,
    #[serde(default)]
    pub(crate) origin_number: Option<u64>,
    pub(crate) age_ms: u64,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) read_only: bool,
    #[serde(default)]
    pub(crate) quota: DiskQuota,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Ram,
    Snapshot,
    Base,
}

/// The control socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ControlState {
    pub(crate) path: Option<String>,
    pub(crate) owns_file: bool,
    /// Whether a service manager has passed it.
    #[serde(default)]
    pub(crate) is_passed: bool,
}
