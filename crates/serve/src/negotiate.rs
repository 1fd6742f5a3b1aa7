//! The handshake: greeting, options, and the choice of an export.

use std::{io, sync::Arc};

use pagefold_disk::BlockDevice;
use pagefold_executor::{Access, Export, Exports, Memory, Taken};

pub(crate) use crate::session::Session;
use crate::{
    adopt_error::AdoptError,
    handover::{NewcomerState, NextState, TlsState},
    protocol::{
        ADVERTISED_PAYLOAD_BYTES, Context, ContextQuery, EXPORT_NAME_ZEROES, GREETING_BYTES, Headers, INIT_MAGIC,
        InfoQuery, InfoReply, MAX_OPTION_BYTES, MIN_BLOCK_BYTES, Malformed, OPTION_HEADER_BYTES, OPTION_MAGIC,
        OptionHeader, OptionReplyHeader, PREFERRED_BLOCK_BYTES, encode_server_reply, handshake, info, option, reply,
        transmission,
    },
    request::ReadBroke,
    transport::{Deadline, Transport},
};

/// Longer options are accounted for separately; shorter ones fit into a connection's minimum
/// memory.
const SHORT_OPTION_BYTES: u32 = 2 << 10;

/// A parsed option takes up to this many times its length: four bytes encode an empty query, and the list of
/// queries grows.
const OPTION_COST: u64 = 8;

/// Replies to LIST are created in pieces of this size, each once the previous one has been sent.
const LIST_PIECE_BYTES: usize = 2 << 10;

/// Exports that are looked up together for a LIST.
const LIST_PIECE_EXPORTS: usize = 64;

/// The reason why a connection ended. It affects only the peer; the text is for tests and
/// debugging.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the client sent flags that were not offered")]
    ClientFlags,
    #[error("an option of {0} bytes exceeds the maximum")]
    OptionTooBig(u32),
    #[error("no such export")]
    NoSuchExport,
    #[error("an option that is not allowed with extended headers")]
    OldOption,
    #[error("too many connections")]
    TooMany,
    #[error("the client ended the negotiation")]
    Aborted,
    #[error("the client chose an export without TLS, which is required")]
    TlsRequired,
    #[error("a payload of {0} bytes exceeds the maximum")]
    PayloadTooBig(u64),
    #[error(transparent)]
    ReadBroke(#[from] ReadBroke),
}

/// Whether a client uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    /// The client cannot use TLS: the server has no certificates.
    Plain,
    /// The client may begin it.
    Offered,
    /// It must begin TLS before any other option.
    Required,
    /// TLS begins once the replies have been sent: all bytes that follow are TLS records.
    Starts,
    /// TLS has begun.
    Tls,
}

/// The reason why a client that has chosen an export is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All connections that this limit allows are in use, or kept for other exports.
    Full(usize),
    /// The process may not open more files for clients.
    Files,
    /// The export already has this many connections, its maximum.
    Quota(usize),
    /// There is no memory for a further connection.
    Memory,
}

impl NoPlace {
    fn message(self) -> String {
        match self {
            Self::Full(limit) => {
                format!("all {limit} connections that this server allows are in use, or kept for other exports")
            }
            Self::Files => "the server's limit of open files leaves no room for another connection".to_owned(),
            Self::Quota(most) => format!("all {most} connections that this export may have are in use"),
            Self::Memory => "the server's memory limit leaves no room for another connection".to_owned(),
        }
    }
}

/// Negotiates over `transport` until the client has chosen an export, waiting for the client as
/// long as `deadline` allows.
pub(crate) fn negotiate<T: Transport>(
    transport: &T,
    exports: &Exports,
    memory: &Arc<Memory>,
    deadline: Deadline,
) -> Result<Session, Ended> {
    let mut negotiation = Negotiation::new(exports.clone(), Arc::clone(memory), Security::Plain);
    loop {
        while !negotiation.unsent().is_empty() {
            deadline.send_all(transport, negotiation.unsent())?;
            let sent_bytes = negotiation.unsent().len();
            negotiation.sent(sent_bytes);
        }
        if let Some(result) = negotiation.result() {
            return result;
        }
        match deadline.recv(transport, negotiation.room())? {
            0 => return Err(Ended::Io(io::ErrorKind::UnexpectedEof.into())),
            received => negotiation.received(received, &|_| Ok(())),
        }
    }
}

/// One client's negotiation, which performs no I/O:
///
/// ```text
/// repeat: send unsent(), then call sent()
///         if there is a result(), the negotiation has ended
///         receive into room(), then call received()
/// ```
///
/// It reads no byte after the option that ends it or starts TLS, so later plain text, of the client
/// or of an attacker in between, is never taken for encrypted data. An option of more than
/// [`MAX_OPTION_BYTES`] is refused and ends the connection, so neither memory nor time depends on
/// the length that a peer claims.
pub(crate) struct Negotiation {
    exports: Exports,
    memory: Arc<Memory>,
    security: Security,
    no_zeroes: bool,
    headers: Headers,
    /// The selected contexts and their export.
    selected: Option<(Arc<Export>, Vec<Context>)>,
    /// Replies of which `sent_bytes` have been sent.
    replies: Vec<u8>,
    sent_bytes: usize,
    /// While LIST is answered, the number of the export after which it continues.
    listing: Option<Option<u64>>,
    next: Next,
    /// The message that is being received, and how much of it has arrived.
    message: Vec<u8>,
    received_bytes: usize,
    /// Memory of a long option.
    taken: Option<Taken>,
    /// The outcome, which holds once the remaining replies have been sent.
    ended: Option<Result<Session, Ended>>,
}

/// The message that comes next.
#[derive(Clone, Copy)]
enum Next {
    Flags,
    Header,
    Data(OptionHeader),
}

impl Negotiation {
    pub(crate) fn new(exports: Exports, memory: Arc<Memory>, security: Security) -> Self {
        let mut greeting = vec![0; GREETING_BYTES];
        greeting[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
        greeting[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        greeting[16..].copy_from_slice(&(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
        Self {
            exports,
            memory,
            security,
            no_zeroes: false,
            headers: Headers::default(),
            selected: None,
            replies: greeting,
            sent_bytes: 0,
            listing: None,
            next: Next::Flags,
            message: Vec::new(),
            received_bytes: 0,
            taken: None,
            ended: None,
        }
    }

    /// Returns what another server needs to continue; `None` if TLS has begun, or if the negotiation has
    /// ended.
    pub(crate) fn state(&self) -> Option<NewcomerState> {
        let tls = match self.security {
            Security::Plain => TlsState::Never,
            Security::Offered => TlsState::May,
            Security::Required => TlsState::Must,
            Security::Starts | Security::Tls => return None,
        };
        let next = match self.next {
            Next::Flags => NextState::Flags,
            Next::Header => NextState::Header,
            Next::Data(OptionHeader { option, len_bytes }) => NextState::Data { option, len_bytes },
        };
        let selected = self.selected.as_ref();
        self.ended.is_none().then(|| NewcomerState {
            only: self.exports.only_one().map(|export| export.name().to_string()),
            tls,
            no_zeroes: self.no_zeroes,
            headers: self.headers,
            selected: selected.map(|(export, contexts)| (export.name().to_string(), contexts.clone())),
            listed: self.listing.flatten(),
            next,
            received: self.message.get(..self.received_bytes).unwrap_or_default().to_vec(),
            output: self.unsent().to_vec(),
        })
    }

    /// Continues a negotiation that another server has begun. The client sees `exports`.
    pub(crate) fn of_state(state: NewcomerState, exports: &Exports, memory: &Arc<Memory>) -> Result<Self, AdoptError> {
        let NewcomerState { only, tls, no_zeroes, headers, selected, listed, next, received, output } = state;
        let find = |name: String| exports.get(&name).ok_or(AdoptError::NoExport(name));
        let exports = only.map_or_else(|| Ok(exports.clone()), |name| find(name).map(Exports::only))?;
        let security = match tls {
            TlsState::Never => Security::Plain,
            TlsState::May => Security::Offered,
            TlsState::Must => Security::Required,
        };
        // A selected context may have been removed since; it then has no effect.
        let selected = selected.and_then(|(name, contexts)| Some((exports.find(name.as_bytes())?, contexts)));
        let mut taken = None;
        let next = match next {
            NextState::Flags => Next::Flags,
            NextState::Header => Next::Header,
            NextState::Data { len_bytes, .. } if len_bytes == 0 || len_bytes > MAX_OPTION_BYTES => {
                return Err(AdoptError::Invalid("an option is longer than possible"));
            }
            NextState::Data { option, len_bytes } => {
                if len_bytes > SHORT_OPTION_BYTES {
                    taken = Some(memory.lend(OPTION_COST * u64::from(len_bytes)).ok_or(AdoptError::Memory)?);
                }
                Next::Data(OptionHeader { option, len_bytes })
            }
        };
        let mut negotiation = Self {
            exports,
            memory: Arc::clone(memory),
            security,
            no_zeroes,
            headers,
            selected,
            replies: output,
            sent_bytes: 0,
            listing: listed.map(Some),
            next,
            message: Vec::new(),
            received_bytes: 0,
            taken,
            ended: None,
        };
        let room = negotiation.room();
        if received.len() >= room.len() {
            return Err(AdoptError::Invalid("the received part of a message is longer than possible"));
        }
        if let Some(start) = room.get_mut(..received.len()) {
            start.copy_from_slice(&received);
        }
        negotiation.received_bytes = received.len();
        if negotiation.listing.is_some() && negotiation.unsent().is_empty() {
            negotiation.sent(0);
        }
        Ok(negotiation)
    }

    /// Returns the resulting session, and the replies that were not sent.
    pub(crate) fn begun(&self) -> Option<(&Session, &[u8])> {
        let session = self.ended.as_ref()?.as_ref().ok()?;
        Some((session, self.unsent()))
    }

    /// Returns the bytes to be sent before anything is received.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.replies.get(self.sent_bytes..).unwrap_or_default()
    }

    /// Notes that bytes of [`unsent`](Self::unsent) have been sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        if self.unsent().is_empty() {
            // The memory of a long reply is released.
            (self.replies, self.sent_bytes) = (Vec::new(), 0);
            if let Some(after) = self.listing {
                self.list_more(after);
            }
        }
    }

    /// Returns whether TLS has begun, or is about to.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.security, Security::Starts | Security::Tls)
    }

    /// Returns whether TLS begins now: all replies have been sent, and what follows is encrypted.
    pub(crate) fn starts_tls(&self) -> bool {
        self.security == Security::Starts && self.unsent().is_empty()
    }

    /// Notes that TLS has begun.
    pub(crate) fn tls_started(&mut self) {
        self.security = Security::Tls;
    }

    /// Returns how the negotiation has ended, once all replies have been sent.
    pub(crate) fn result(&mut self) -> Option<Result<Session, Ended>> {
        if self.unsent().is_empty() { self.ended.take() } else { None }
    }

    /// Returns the part of the buffer for the next bytes that are received. It is never empty.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let message_bytes = match self.next {
            Next::Flags => 4,
            Next::Header => OPTION_HEADER_BYTES,
            Next::Data(header) => header.len_bytes as usize,
        };
        self.message.resize(message_bytes, 0);
        self.message.get_mut(self.received_bytes..).unwrap_or_default()
    }

    /// Records that bytes have been received into [`room`](Self::room), and answers complete
    /// options. Once the client has chosen an export, `begin` is called and may refuse.
    pub(crate) fn received(&mut self, bytes: usize, begin: &dyn Fn(&Export) -> Result<(), NoPlace>) {
        self.received_bytes += bytes;
        if self.received_bytes < self.message.len() {
            return;
        }
        self.received_bytes = 0;
        let message = std::mem::take(&mut self.message);
        match self.advance(&message, begin) {
            Ok(None) => {}
            Ok(Some(session)) => self.ended = Some(Ok(session)),
            Err(ended) => self.ended = Some(Err(ended)),
        }
    }

    fn advance(
        &mut self,
        message: &[u8],
        begin: &dyn Fn(&Export) -> Result<(), NoPlace>,
    ) -> Result<Option<Session>, Ended> {
        match self.next {
            Next::Flags => {
                let flags = message.first_chunk().map_or(0, |flags| u32::from_be_bytes(*flags));
                if flags & !u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) != 0 {
                    return Err(Ended::ClientFlags);
                }
                self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
                self.next = Next::Header;
                Ok(None)
            }
            Next::Header => {
                let header = OptionHeader::parse(message.first_chunk().unwrap_or(&[0; OPTION_HEADER_BYTES]))?;
                if header.len_bytes > MAX_OPTION_BYTES {
                    return self.refuse_size(header);
                }
                if header.len_bytes > SHORT_OPTION_BYTES {
                    self.taken = self.memory.lend(OPTION_COST * u64::from(header.len_bytes));
                    if self.taken.is_none() {
                        return self.refuse_size(header);
                    }
                }
                if header.len_bytes == 0 {
                    return self.answer(header.option, &[], begin);
                }
                self.next = Next::Data(header);
                Ok(None)
            }
            Next::Data(header) => {
                self.next = Next::Header;
                let session = self.answer(header.option, message, begin);
                self.taken = None;
                session
            }
        }
    }

    fn refuse_size(&mut self, header: OptionHeader) -> Result<Option<Session>, Ended> {
        let known =
            matches!(header.option, option::EXPORT_NAME..=option::LIST | option::STARTTLS..=option::EXTENDED_HEADERS);
        if header.option != option::EXPORT_NAME {
            let kind = if known { reply::ERR_TOO_BIG } else { reply::ERR_UNSUP };
            self.reply(
                header.option,
                kind,
                b"the option is larger than 65536 bytes, or the server has no memory for it",
            );
        }
        Err(Ended::OptionTooBig(header.len_bytes))
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        let len_bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.replies.extend_from_slice(&OptionReplyHeader { option, kind, len_bytes }.encode());
        self.replies.extend_from_slice(data);
    }

    /// Answers one option; returns `Some` when transmission begins.
    fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        begin: &dyn Fn(&Export) -> Result<(), NoPlace>,
    ) -> Result<Option<Session>, Ended> {
        if self.security == Security::Required && !matches!(option, option::STARTTLS | option::ABORT) {
            if option == option::EXPORT_NAME {
                return Err(Ended::TlsRequired);
            }
            self.reply(option, reply::ERR_TLS_REQD, b"this server requires TLS");
            return Ok(None);
        }
        match option {
            option::STARTTLS if self.security != Security::Plain => self.start_tls(data),
            option::EXPORT_NAME => return self.export_name(data, begin).map(Some),
            option::ABORT => {
                self.reply(option, reply::ACK, b"");
                return Err(Ended::Aborted);
            }
            option::LIST => self.list(data),
            option::INFO | option::GO => return Ok(self.info(option, data, begin)),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS if !data.is_empty() => {
                self.reply(option, reply::ERR_INVALID, b"this option takes no data");
            }
            option::STRUCTURED_REPLY if self.headers == Headers::Extended => {
                self.reply(option, reply::ERR_EXT_HEADER_REQD, b"extended headers have been agreed on");
            }
            option::STRUCTURED_REPLY => {
                self.headers = Headers::Structured;
                self.reply(option, reply::ACK, b"");
            }
            option::EXTENDED_HEADERS => {
                self.headers = Headers::Extended;
                self.reply(option, reply::ACK, b"");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data),
            _ => self.reply(option, reply::ERR_UNSUP, b"this option is not supported"),
        }
        Ok(None)
    }

    fn start_tls(&mut self, data: &[u8]) {
        if !data.is_empty() {
            return self.reply(option::STARTTLS, reply::ERR_INVALID, b"this option takes no data");
        }
        if self.security == Security::Tls {
            return self.reply(option::STARTTLS, reply::ERR_INVALID, b"TLS is in use");
        }
        // Whatever was agreed on in plain text may come from an attacker.
        (self.headers, self.selected) = (Headers::default(), None);
        self.reply(option::STARTTLS, reply::ACK, b"");
        self.security = Security::Starts;
    }

    fn session(&self, export: &Arc<Export>, access: Arc<Access>) -> Session {
        let selected = self.selected.as_ref().filter(|(selected, _)| Arc::ptr_eq(selected, export));
        let contexts = selected.map(|(_, contexts)| contexts.clone()).unwrap_or_default();
        Session { access, headers: self.headers, contexts }
    }

    fn export_name(&mut self, name: &[u8], begin: &dyn Fn(&Export) -> Result<(), NoPlace>) -> Result<Session, Ended> {
        if self.headers == Headers::Extended {
            return Err(Ended::OldOption);
        }
        let export = self.exports.find(name).ok_or(Ended::NoSuchExport)?;
        let access = export.open().ok_or(Ended::NoSuchExport)?;
        let size_bytes = access.device().ok_or(Ended::NoSuchExport)?.size_bytes();
        if export.seat(&access).is_err() || begin(&export).is_err() {
            return Err(Ended::TooMany);
        }
        self.replies.extend_from_slice(&size_bytes.to_be_bytes());
        self.replies.extend_from_slice(&transmission_flags(&export, self.headers != Headers::Simple).to_be_bytes());
        if !self.no_zeroes {
            self.replies.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
        }
        Ok(self.session(&export, access))
    }

    fn list(&mut self, data: &[u8]) {
        if !data.is_empty() {
            return self.reply(option::LIST, reply::ERR_INVALID, b"this option takes no data");
        }
        self.list_more(None);
    }

    /// Replies with the exports that follow the number `after`, as many as fit into a piece.
    fn list_more(&mut self, after: Option<u64>) {
        let exports = self.exports.list_after(after, LIST_PIECE_EXPORTS);
        self.listing = None;
        for (number, export) in exports {
            self.reply(option::LIST, reply::SERVER, &encode_server_reply(export.name().as_bytes()));
            self.listing = Some(Some(number));
            if self.replies.len() >= LIST_PIECE_BYTES {
                return;
            }
        }
        if self.listing.is_none() {
            self.reply(option::LIST, reply::ACK, b"");
        }
    }

    fn info(&mut self, option: u32, data: &[u8], begin: &dyn Fn(&Export) -> Result<(), NoPlace>) -> Option<Session> {
        let Ok(query) = InfoQuery::parse(data) else {
            self.reply(option, reply::ERR_INVALID, b"the option's lengths contradict each other");
            return None;
        };
        let export = self.exports.find(query.name);
        let Some((export, access, device)) = export.and_then(|export| {
            let access = export.open()?;
            let device = access.device()?;
            Some((export, access, device))
        }) else {
            self.reply(option, reply::ERR_UNKNOWN, b"no export has this name");
            return None;
        };
        if option == option::GO
            && let Err(no_place) = export.seat(&access).map_err(NoPlace::Quota).and_then(|()| begin(&export))
        {
            self.reply(option, reply::ERR_POLICY, no_place.message().as_bytes());
            return None;
        }
        let size_bytes = device.size_bytes();
        let flags = transmission_flags(&export, self.headers != Headers::Simple);
        self.reply(option, reply::INFO, &InfoReply::Export { size_bytes, flags }.encode());
        if query.kinds.contains(&info::NAME) {
            self.reply(option, reply::INFO, &InfoReply::Name(export.name().as_bytes()).encode());
        }
        if query.kinds.contains(&info::BLOCK_SIZE) {
            let sizes = InfoReply::BlockSize {
                min_bytes: MIN_BLOCK_BYTES,
                preferred_bytes: PREFERRED_BLOCK_BYTES,
                max_bytes: ADVERTISED_PAYLOAD_BYTES,
            };
            self.reply(option, reply::INFO, &sizes.encode());
        }
        self.reply(option, reply::ACK, b"");
        (option == option::GO).then(|| self.session(&export, access))
    }

    fn contexts(&mut self, option: u32, data: &[u8]) {
        let select = option == option::SET_META_CONTEXT;
        if select {
            self.selected = None;
        }
        if self.headers == Headers::Simple {
            return self.reply(option, reply::ERR_INVALID, b"negotiate structured replies first");
        }
        let Ok(query) = ContextQuery::parse(data) else {
            return self.reply(option, reply::ERR_INVALID, b"the option's lengths contradict each other");
        };
        let Some(export) = self.exports.find(query.name) else {
            return self.reply(option, reply::ERR_UNKNOWN, b"no export has this name");
        };
        let knows_changes = export.knows_changes();
        // Wildcards and the empty list are valid only for listing; a selection must name its
        // contexts.
        let is_asked = |context: Context| {
            query.queries.contains(&context.name())
                || !select && (query.queries.is_empty() || query.queries.contains(&context.wildcard()))
        };
        let is_known = |context: Context| context != Context::Changed || knows_changes;
        let found: Vec<_> =
            Context::ALL.into_iter().filter(|&context| is_known(context) && is_asked(context)).collect();
        for context in &found {
            let id = if select { context.id() } else { 0 };
            self.reply(option, reply::META_CONTEXT, &[&id.to_be_bytes(), context.name()].concat());
        }
        if select {
            self.selected = Some((export, found));
        }
        self.reply(option, reply::ACK, b"");
    }
}

/// Returns the export's transmission flags for a client that did or did not negotiate
/// `structured` replies.
fn transmission_flags(export: &Export, structured: bool) -> u16 {
    let mut flags = transmission::HAS_FLAGS
        | transmission::SEND_FLUSH
        | transmission::SEND_FUA
        | transmission::CAN_MULTI_CONN
        | transmission::SEND_CACHE;
    flags |= if export.is_read_only() {
        transmission::READ_ONLY
    } else {
        transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES | transmission::SEND_FAST_ZERO
    };
    if structured {
        flags |= transmission::SEND_DF;
    }
    flags
}
