//! The fixed parts of the NBD protocol: numbers, layouts, and functions that parse and encode them.
//!
//! Source: `doc/proto.md` of the NBD project. All numbers are big-endian. Nothing here does I/O:
//! parsers take byte slices and encoders return bytes, so each can be tested and fuzzed alone.

use serde::{Deserialize, Serialize};

/// First eight bytes a server sends: `NBDMAGIC`.
pub const INIT_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Start of the newstyle greeting's second half and of every option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Start of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Start of every extended request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Start of a chunk of an extended reply.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of the server's greeting: magic, magic, flags.
pub const GREETING_BYTES: usize = 8 + 8 + 2;
/// Bytes of an option's header: magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 8 + 4 + 4;
/// Bytes of the header of a reply to an option: magic, option, type, length.
pub const OPTION_REPLY_HEADER_BYTES: usize = 8 + 4 + 4 + 4;
/// Bytes of a request's header: magic, flags, type, cookie, offset, length.
pub const REQUEST_BYTES: usize = 4 + 2 + 2 + 8 + 8 + 4;
/// Bytes of a simple reply before its data: magic, error, cookie.
pub const SIMPLE_REPLY_BYTES: usize = 4 + 4 + 8;
/// Bytes of a chunk's header: magic, flags, type, cookie, length.
pub const CHUNK_HEADER_BYTES: usize = 4 + 2 + 2 + 8 + 4;
/// Bytes of an extended request's header: magic, flags, type, cookie, offset, length.
pub const EXTENDED_REQUEST_BYTES: usize = 4 + 2 + 2 + 8 + 8 + 8;
/// Bytes of the header of an extended reply's chunk: magic, flags, type, cookie, offset, length.
pub const EXTENDED_CHUNK_HEADER_BYTES: usize = 4 + 2 + 2 + 8 + 8 + 8;
/// Zeros after the reply to `EXPORT_NAME`, unless both sides agreed to omit them.
pub const EXPORT_NAME_ZEROES: usize = 124;

const _: () = assert!(GREETING_BYTES == 18 && OPTION_HEADER_BYTES == 16 && OPTION_REPLY_HEADER_BYTES == 20);
const _: () = assert!(REQUEST_BYTES == 28 && SIMPLE_REPLY_BYTES == 16 && CHUNK_HEADER_BYTES == 20);
const _: () = assert!(EXTENDED_REQUEST_BYTES == 32 && EXTENDED_CHUNK_HEADER_BYTES == 32);

/// Smallest block that a client may request.
pub const MIN_BLOCK_BYTES: u32 = 1;
/// Most efficient block size: a page.
pub const PREFERRED_BLOCK_BYTES: u32 = 4096;
/// Largest payload advertised to clients. Some clients refuse a larger value than they are used to.
pub const ADVERTISED_PAYLOAD_BYTES: u32 = 32 << 20;
/// Largest payload of a READ or WRITE that is accepted: the largest that clients send without
/// asking for the limit.
pub const MAX_PAYLOAD_BYTES: u32 = 64 << 20;
/// Longest string that the protocol allows (names, queries, messages).
pub const MAX_STRING_BYTES: usize = 4096;
/// Largest option that is read. A larger one is refused and ends the connection.
pub const MAX_OPTION_BYTES: u32 = 64 << 10;

/// Flags of the server's greeting; the client's flags have the same bits.
pub mod handshake {
    /// The server replies to options that it does not know.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// Omits the 124 zeros after the reply to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: the capabilities of an export.
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag works.
    pub const SEND_DF: u16 = 1 << 7;
    /// Every connection sees what any other has written.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Negotiation options.
pub mod option {
    /// Chooses an export and begins transmission; a refusal can only close the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the negotiation.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Begins TLS.
    pub const STARTTLS: u32 = 5;
    /// Describes an export.
    pub const INFO: u32 = 6;
    /// Describes an export and begins transmission.
    pub const GO: u32 = 7;
    /// Allows structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Selects metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Enables requests and replies with 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR_BIT + 1;
    /// The server's policy refuses the option.
    pub const ERR_POLICY: u32 = ERROR_BIT + 2;
    /// The option's data are invalid.
    pub const ERR_INVALID: u32 = ERROR_BIT + 3;
    /// The option needs TLS.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT + 5;
    /// No export has this name.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT + 6;
    /// The option is larger than the server accepts.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT + 9;
    /// The option cannot be combined with extended headers, which were negotiated.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR_BIT + 10;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// A line of text that describes it.
    pub const DESCRIPTION: u16 = 2;
    /// Block sizes: minimum, preferred, maximum.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Types of requests.
pub mod command {
    /// Reads bytes.
    pub const READ: u16 = 0;
    /// Writes the bytes that follow.
    pub const WRITE: u16 = 1;
    /// Ends the connection.
    pub const DISC: u16 = 2;
    /// Makes completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Discards a range that is no longer needed.
    pub const TRIM: u16 = 4;
    /// Announces that the range will be read soon.
    pub const CACHE: u16 = 5;
    /// Makes the range read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Reports the status of a range, such as which parts are allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Reply only once the change is durable.
    pub const FUA: u16 = 1 << 0;
    /// Keep the zeroed range allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Reply with a single data chunk.
    pub const DF: u16 = 1 << 2;
    /// Reply with a single extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than write zeros slowly.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// A payload of the request's length follows; only in extended requests.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types and flags of chunks.
pub mod chunk {
    /// The last chunk of a reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// No data; ends a reply.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The same with 64-bit lengths.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error with a message.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// States of an extent in `base:allocation`.
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// States of an extent in `pagefold:changed`.
pub mod changed_state {
    /// Changed since the disk was created.
    pub const CHANGED: u32 = 1 << 0;
}

/// A metadata context: what BLOCK_STATUS reports about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Context {
    /// Which parts are holes, and which read as zeros: [`state`].
    Allocation,
    /// Which parts have changed since the disk was created: [`changed_state`].
    Changed,
}

impl Context {
    /// All contexts, in the order in which replies report them.
    pub const ALL: [Self; 2] = [Self::Allocation, Self::Changed];

    /// Returns the context's name.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Allocation => b"base:allocation",
            Self::Changed => b"pagefold:changed",
        }
    }

    /// Returns the query for all contexts of its namespace.
    pub fn wildcard(self) -> &'static [u8] {
        match self {
            Self::Allocation => b"base:",
            Self::Changed => b"pagefold:",
        }
    }

    /// Returns the identifier used in replies once the context is selected.
    pub fn id(self) -> u32 {
        match self {
            Self::Allocation => 1,
            Self::Changed => 2,
        }
    }
}

/// The negotiated format of requests and replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Headers {
    /// One reply per request.
    #[default]
    Simple,
    /// Replies to READ and BLOCK_STATUS, and errors, are sent in chunks.
    Structured,
    /// All replies are sent in chunks; lengths have 64 bits.
    Extended,
}

impl Headers {
    /// Returns the size of a request's header.
    pub fn request_bytes(self) -> usize {
        if self == Self::Extended { EXTENDED_REQUEST_BYTES } else { REQUEST_BYTES }
    }

    /// Returns the size of a chunk's header.
    pub fn chunk_bytes(self) -> usize {
        if self == Self::Extended { EXTENDED_CHUNK_HEADER_BYTES } else { CHUNK_HEADER_BYTES }
    }
}

/// Error numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// No memory.
    NoMem = 12,
    /// Invalid argument.
    Inval = 22,
    /// No space.
    NoSpace = 28,
    /// Too large.
    Overflow = 75,
    /// Not supported.
    NotSup = 95,
    /// The server or the requested object is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// Returns the number for an error number of Linux; those that the protocol does not have are
    /// EIO.
    pub fn of_linux(errno: i32) -> Self {
        let all = [Self::Perm, Self::NoMem, Self::Inval, Self::NoSpace, Self::Overflow, Self::NotSup, Self::Shutdown];
        all.into_iter().find(|&known| known as i32 == errno).unwrap_or(Self::Io)
    }
}

/// Bytes that violate the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A magic number is wrong.
    #[error("wrong magic number {0:#x}")]
    Magic(u64),
    /// Lengths within an option contradict each other.
    #[error("an option's lengths contradict each other")]
    Lengths,
}

/// Takes numbers and strings off the front of a slice; each method returns `None` if it is too
/// short.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Takes a string preceded by its 32-bit length.
    fn string(&mut self) -> Option<&'a [u8]> {
        let len_bytes = usize::try_from(self.u32()?).ok()?;
        let (head, tail) = self.0.split_at_checked(len_bytes)?;
        self.0 = tail;
        Some(head)
    }
}

/// An option's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// One of [`option`], or any other value.
    pub option: u32,
    /// Number of bytes that follow.
    pub len_bytes: u32,
}

impl OptionHeader {
    /// Parses a header.
    pub fn parse(bytes: &[u8; OPTION_HEADER_BYTES]) -> Result<Self, Malformed> {
        let mut reader = FieldReader(bytes);
        let magic = reader.u64().ok_or(Malformed::Lengths)?;
        if magic != OPTION_MAGIC {
            return Err(Malformed::Magic(magic));
        }
        let option = reader.u32().ok_or(Malformed::Lengths)?;
        let len_bytes = reader.u32().ok_or(Malformed::Lengths)?;
        Ok(Self { option, len_bytes })
    }

    /// Encodes the header.
    pub fn encode(self) -> [u8; OPTION_HEADER_BYTES] {
        let mut bytes = [0; OPTION_HEADER_BYTES];
        bytes[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.option.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len_bytes.to_be_bytes());
        bytes
    }
}

/// The header of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that this replies to.
    pub option: u32,
    /// One of [`reply`].
    pub kind: u32,
    /// Number of bytes that follow.
    pub len_bytes: u32,
}

impl OptionReplyHeader {
    /// Parses a header.
    pub fn parse(bytes: &[u8; OPTION_REPLY_HEADER_BYTES]) -> Result<Self, Malformed> {
        let mut reader = FieldReader(bytes);
        let magic = reader.u64().ok_or(Malformed::Lengths)?;
        if magic != OPTION_REPLY_MAGIC {
            return Err(Malformed::Magic(magic));
        }
        let option = reader.u32().ok_or(Malformed::Lengths)?;
        let kind = reader.u32().ok_or(Malformed::Lengths)?;
        let len_bytes = reader.u32().ok_or(Malformed::Lengths)?;
        Ok(Self { option, kind, len_bytes })
    }

    /// Encodes the header.
    pub fn encode(self) -> [u8; OPTION_REPLY_HEADER_BYTES] {
        let mut bytes = [0; OPTION_REPLY_HEADER_BYTES];
        bytes[..8].copy_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.option.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.kind.to_be_bytes());
        bytes[16..].copy_from_slice(&self.len_bytes.to_be_bytes());
        bytes
    }
}

/// The data of INFO and GO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoQuery<'a> {
    /// The export's name.
    pub name: &'a [u8],
    /// The requested kinds of information.
    pub kinds: Vec<u16>,
}

impl<'a> InfoQuery<'a> {
    /// Parses an option's data. The fields must cover all of it.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = FieldReader(data);
        let name = reader.string().ok_or(Malformed::Lengths)?;
        let count = reader.u16().ok_or(Malformed::Lengths)?;
        if name.len() > MAX_STRING_BYTES || reader.0.len() != usize::from(count) * 2 {
            return Err(Malformed::Lengths);
        }
        let kinds = reader.0.chunks_exact(2).map(|kind| u16::from_be_bytes([kind[0], kind[1]])).collect();
        Ok(Self { name, kinds })
    }

    /// Encodes the option's data.
    pub fn encode(&self) -> Vec<u8> {
        let mut data = Vec::new();
        push_string(&mut data, self.name);
        data.extend_from_slice(&u16::try_from(self.kinds.len()).unwrap_or(u16::MAX).to_be_bytes());
        for kind in self.kinds.iter().take(usize::from(u16::MAX)) {
            data.extend_from_slice(&kind.to_be_bytes());
        }
        data
    }
}

fn push_string(data: &mut Vec<u8>, string: &[u8]) {
    data.extend_from_slice(&u32::try_from(string.len()).unwrap_or(u32::MAX).to_be_bytes());
    data.extend_from_slice(string);
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextQuery<'a> {
    /// The export's name.
    pub name: &'a [u8],
    /// The queries.
    pub queries: Vec<&'a [u8]>,
}

impl<'a> ContextQuery<'a> {
    /// Parses an option's data. The fields must cover all of it.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = FieldReader(data);
        let name = reader.string().ok_or(Malformed::Lengths)?;
        let count = reader.u32().ok_or(Malformed::Lengths)?;
        let mut queries = Vec::new();
        for _ in 0..count {
            let query = reader.string().ok_or(Malformed::Lengths)?;
            if query.len() > MAX_STRING_BYTES {
                return Err(Malformed::Lengths);
            }
            queries.push(query);
        }
        if name.len() > MAX_STRING_BYTES || !reader.0.is_empty() {
            return Err(Malformed::Lengths);
        }
        Ok(Self { name, queries })
    }
}

/// One piece of information about an export, as a client receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InfoReply<'a> {
    /// Size and transmission flags.
    Export {
        /// The export's size.
        size_bytes: u64,
        /// [`transmission`] flags.
        flags: u16,
    },
    /// The export's name.
    Name(&'a [u8]),
    /// A line of text that describes it.
    Description(&'a [u8]),
    /// Block sizes.
    BlockSize {
        /// Smallest.
        min_bytes: u32,
        /// Preferred.
        preferred_bytes: u32,
        /// Largest payload.
        max_bytes: u32,
    },
    /// A kind unknown to this version.
    Other(u16),
}

impl<'a> InfoReply<'a> {
    /// Parses the data of a [`reply::INFO`].
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = FieldReader(data);
        let kind = reader.u16().ok_or(Malformed::Lengths)?;
        let parsed = match kind {
            info::EXPORT => {
                let size_bytes = reader.u64().ok_or(Malformed::Lengths)?;
                let flags = reader.u16().ok_or(Malformed::Lengths)?;
                Self::Export { size_bytes, flags }
            }
            info::NAME => return Ok(Self::Name(reader.0)),
            info::DESCRIPTION => return Ok(Self::Description(reader.0)),
            info::BLOCK_SIZE => {
                let min_bytes = reader.u32().ok_or(Malformed::Lengths)?;
                let preferred_bytes = reader.u32().ok_or(Malformed::Lengths)?;
                let max_bytes = reader.u32().ok_or(Malformed::Lengths)?;
                Self::BlockSize { min_bytes, preferred_bytes, max_bytes }
            }
            other => return Ok(Self::Other(other)),
        };
        if reader.0.is_empty() { Ok(parsed) } else { Err(Malformed::Lengths) }
    }

    /// Encodes the data of a [`reply::INFO`].
    pub fn encode(&self) -> Vec<u8> {
        let mut data = Vec::new();
        match self {
            Self::Export { size_bytes, flags } => {
                data.extend_from_slice(&info::EXPORT.to_be_bytes());
                data.extend_from_slice(&size_bytes.to_be_bytes());
                data.extend_from_slice(&flags.to_be_bytes());
            }
            Self::Name(name) => {
                data.extend_from_slice(&info::NAME.to_be_bytes());
                data.extend_from_slice(name);
            }
            Self::Description(line) => {
                data.extend_from_slice(&info::DESCRIPTION.to_be_bytes());
                data.extend_from_slice(line);
            }
            Self::BlockSize { min_bytes, preferred_bytes, max_bytes } => {
                data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                for bytes in [min_bytes, preferred_bytes, max_bytes] {
                    data.extend_from_slice(&bytes.to_be_bytes());
                }
            }
            Self::Other(kind) => data.extend_from_slice(&kind.to_be_bytes()),
        }
        data
    }
}

/// Parses the data of a [`reply::SERVER`] and returns the export's name. A description may follow
/// the name.
pub fn parse_server_reply(data: &[u8]) -> Result<&[u8], Malformed> {
    FieldReader(data).string().ok_or(Malformed::Lengths)
}

/// Encodes the data of a [`reply::SERVER`].
pub fn encode_server_reply(name: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    push_string(&mut data, name);
    data
}

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`command_flag`] bits.
    pub flags: u16,
    /// One of [`command`], or any other value.
    pub kind: u16,
    /// Identifies the request in its reply.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

impl Request {
    /// Parses a header.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Malformed> {
        let mut reader = FieldReader(bytes);
        let magic = reader.u32().ok_or(Malformed::Lengths)?;
        if magic != REQUEST_MAGIC {
            return Err(Malformed::Magic(u64::from(magic)));
        }
        let flags = reader.u16().ok_or(Malformed::Lengths)?;
        let kind = reader.u16().ok_or(Malformed::Lengths)?;
        let cookie = reader.u64().ok_or(Malformed::Lengths)?;
        let offset = reader.u64().ok_or(Malformed::Lengths)?;
        let len_bytes = reader.u32().ok_or(Malformed::Lengths)?.into();
        Ok(Self { flags, kind, cookie, offset, len_bytes })
    }

    /// Parses an extended header.
    pub fn parse_extended(bytes: &[u8; EXTENDED_REQUEST_BYTES]) -> Result<Self, Malformed> {
        let mut reader = FieldReader(bytes);
        let magic = reader.u32().ok_or(Malformed::Lengths)?;
        if magic != EXTENDED_REQUEST_MAGIC {
            return Err(Malformed::Magic(u64::from(magic)));
        }
        let flags = reader.u16().ok_or(Malformed::Lengths)?;
        let kind = reader.u16().ok_or(Malformed::Lengths)?;
        let cookie = reader.u64().ok_or(Malformed::Lengths)?;
        let offset = reader.u64().ok_or(Malformed::Lengths)?;
        let len_bytes = reader.u64().ok_or(Malformed::Lengths)?;
        Ok(Self { flags, kind, cookie, offset, len_bytes })
    }

    /// Returns the size of the payload after the header. A WRITE has a payload even without the
    /// flag, which qemu 10 omits.
    pub fn payload_bytes(&self, headers: Headers) -> u64 {
        let says_so = headers == Headers::Extended && self.flags & command_flag::PAYLOAD_LEN != 0;
        if says_so || self.kind == command::WRITE { self.len_bytes } else { 0 }
    }

    /// Encodes the extended header.
    pub fn encode_extended(self) -> [u8; EXTENDED_REQUEST_BYTES] {
        let mut bytes = [0; EXTENDED_REQUEST_BYTES];
        bytes[..4].copy_from_slice(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len_bytes.to_be_bytes());
        bytes
    }

    /// Encodes the header. A length above 32 bits is clamped to `u32::MAX`.
    pub fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&u32::try_from(self.len_bytes).unwrap_or(u32::MAX).to_be_bytes());
        bytes
    }
}

/// Encodes a simple reply without its data; `errno` 0 means success.
pub fn encode_simple_reply(errno: u32, cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Encodes a chunk's header.
pub fn encode_chunk_header(flags: u16, kind: u16, cookie: u64, len_bytes: u32) -> [u8; CHUNK_HEADER_BYTES] {
    let mut bytes = [0; CHUNK_HEADER_BYTES];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// Encodes the header of an extended reply's chunk; `offset` is the request's.
pub fn encode_extended_chunk_header(
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len_bytes: u64,
) -> [u8; EXTENDED_CHUNK_HEADER_BYTES] {
    let mut bytes = [0; EXTENDED_CHUNK_HEADER_BYTES];
    bytes[..4].copy_from_slice(&EXTENDED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}
