//! What one server hands to another, which continues with the same sockets: the states of listening
//! sockets, of clients, and of clients that negotiate.
//!
//! States are records that may come from another version of this program: unknown fields are ignored,
//! and those that are missing have their defaults.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::protocol::{Context, Headers, Request};

/// Sockets with their states. `D` is a descriptor.
#[derive(Debug)]
pub struct Handed<D> {
    /// Sockets that listen.
    pub listeners: Vec<(ListenerState, D)>,
    /// Sockets of clients.
    pub clients: Vec<(ClientState, D)>,
    /// Sockets of clients that have not chosen an export.
    pub newcomers: Vec<(NewcomerState, D)>,
    /// Number of the clients that cannot be handed over, and lose their connections.
    pub left_out: usize,
}

impl<D> Default for Handed<D> {
    fn default() -> Self {
        Self { listeners: Vec::new(), clients: Vec::new(), newcomers: Vec::new(), left_out: 0 }
    }
}

/// A listening socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerState {
    /// Path of a Unix socket.
    pub(crate) path: Option<PathBuf>,
    /// Whether the server has created the socket's file, and removes it when it stops.
    pub(crate) owns_file: bool,
    /// Whether a service manager has passed the socket.
    #[serde(default)]
    pub(crate) is_passed: bool,
    /// Context id and port of a vsock socket.
    pub(crate) vsock: Option<(u32, u32)>,
    /// The only export that clients of the socket see; `None` means all.
    pub(crate) export: Option<String>,
}

impl ListenerState {
    /// Returns the path of a Unix socket.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns whether a service manager has passed the socket.
    pub fn is_passed(&self) -> bool {
        self.is_passed
    }

    /// Returns the name of the only export that clients of the socket see; `None` means all.
    pub fn export(&self) -> Option<&str> {
        self.export.as_deref()
    }
}

/// A client that has chosen an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientState {
    pub(crate) export: String,
    pub(crate) headers: Headers,
    pub(crate) contexts: Vec<Context>,
    /// Received bytes that were not used.
    #[serde(with = "hex")]
    pub(crate) input: Vec<u8>,
    /// Bytes to be sent before anything else.
    #[serde(with = "hex")]
    pub(crate) output: Vec<u8>,
    #[serde(default)]
    pub(crate) unfinished: Option<UnfinishedState>,
}

/// A request of whose payload only a part was received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnfinishedState {
    pub(crate) request: Request,
    pub(crate) left_bytes: u64,
    /// Why it fails: the protocol's error number and a message.
    pub(crate) failure: Option<(u32, String)>,
}

/// A client that negotiates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewcomerState {
    /// The only export that it sees; `None` means all.
    pub(crate) only: Option<String>,
    /// Whether it may or must begin TLS.
    pub(crate) tls: TlsState,
    pub(crate) no_zeroes: bool,
    pub(crate) headers: Headers,
    /// The export and the contexts that it has selected.
    pub(crate) selected: Option<(String, Vec<Context>)>,
    /// While exports are listed, the number of the one after which the list continues.
    pub(crate) listed: Option<u64>,
    pub(crate) next: NextState,
    /// The part of the next message that was received.
    #[serde(with = "hex")]
    pub(crate) received: Vec<u8>,
    /// Bytes to be sent before anything else.
    #[serde(with = "hex")]
    pub(crate) output: Vec<u8>,
}

/// Whether a client that has not begun TLS may or must use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TlsState {
    Never,
    May,
    Must,
}

/// The message that a client sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NextState {
    Flags,
    Header,
    Data { option: u32, len_bytes: u32 },
}

/// Bytes as hexadecimal digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const DIGITS: &[u8; 16] = b"0123456789abcdef";

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let text: String = digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect();
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let digit = |byte: u8| Some(char::from(byte).to_digit(16)? as u8);
        let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect::<Option<_>>();
        bytes.filter(|_| rest.is_empty()).ok_or_else(|| D::Error::custom("not an even number of hexadecimal digits"))
    }
}
