//! The handshake: greeting, options, and the choice of an export.

use std::{io, sync::Arc};

use pagefold_disk::BlockDevice;

use crate::{
    Export, Exports,
    export::Access,
    memory::Memory,
    protocol::{
        Context, ContextQuery, EXPORT_NAME_ZEROES, GREETING_BYTES, Headers, INIT_MAGIC, InfoQuery, InfoReply,
        MAX_OPTION_BYTES, MIN_BLOCK_BYTES, Malformed, OPTION_HEADER_BYTES, OPTION_MAGIC, OptionHeader,
        OptionReplyHeader, PREFERRED_BLOCK_BYTES, TOLD_PAYLOAD_BYTES, encode_server_reply, handshake, info, option,
        reply,
    },
    request::ReadBroke,
    transport::{Deadline, Transport},
};

/// Longer options are accounted for separately; shorter ones fit into a connection's minimum
/// memory.
const SHORT_OPTION_BYTES: u32 = 4 << 10;

/// Replies to LIST are sent whenever this many bytes have accumulated.
const LIST_PIECE_BYTES: usize = 16 << 10;

/// The result of the negotiation.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) access: Arc<Access>,
    pub(crate) headers: Headers,
    /// The contexts for which the client may request block status.
    pub(crate) contexts: Vec<Context>,
}

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
    #[error("a payload of {0} bytes exceeds the maximum")]
    PayloadTooBig(u64),
    #[error(transparent)]
    ReadBroke(#[from] ReadBroke),
}

/// Negotiates with one client until it has chosen an export.
///
/// Reads no byte beyond the option that ends the negotiation. An option of more than
/// [`MAX_OPTION_BYTES`] is refused and ends the connection, so neither memory nor time depends on
/// the length that a peer claims. Once an export has been chosen, `begin` is called and may refuse.
pub(crate) fn negotiate<T: Transport>(
    transport: &T,
    exports: &Exports,
    memory: &Arc<Memory>,
    deadline: Deadline,
    begin: &dyn Fn(&Export) -> Result<(), usize>,
) -> Result<Session, Ended> {
    let mut greeting = [0; GREETING_BYTES];
    greeting[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
    greeting[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    greeting[16..].copy_from_slice(&(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
    deadline.send_all(transport, &greeting)?;

    let mut flags = [0; 4];
    deadline.recv_exact(transport, &mut flags)?;
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) != 0 {
        return Err(Ended::ClientFlags);
    }
    let mut negotiation = Negotiation {
        transport,
        exports,
        deadline,
        begin,
        no_zeroes: flags & u32::from(handshake::NO_ZEROES) != 0,
        headers: Headers::default(),
        selected: None,
        replies: Vec::new(),
    };
    loop {
        let mut header = [0; OPTION_HEADER_BYTES];
        deadline.recv_exact(transport, &mut header)?;
        let header = OptionHeader::parse(&header)?;
        if header.len_bytes > MAX_OPTION_BYTES {
            return negotiation.refuse_size(header);
        }
        // A parsed option takes up to eight times its length: four bytes encode an empty query, and
        // the list of queries grows.
        let taken = (header.len_bytes > SHORT_OPTION_BYTES).then(|| memory.take(8 * u64::from(header.len_bytes)));
        if matches!(taken, Some(None)) {
            return negotiation.refuse_size(header);
        }
        let mut data = vec![0; header.len_bytes as usize];
        deadline.recv_exact(transport, &mut data)?;
        let session = negotiation.answer(header.option, &data);
        deadline.send_all(transport, &negotiation.replies)?;
        negotiation.replies.clear();
        if let Some(session) = session? {
            return Ok(session);
        }
    }
}

struct Negotiation<'a, T> {
    transport: &'a T,
    exports: &'a Exports,
    deadline: Deadline,
    begin: &'a dyn Fn(&Export) -> Result<(), usize>,
    no_zeroes: bool,
    headers: Headers,
    /// The selected contexts and their export.
    selected: Option<(Arc<Export>, Vec<Context>)>,
    /// Replies to the current option, to be sent.
    replies: Vec<u8>,
}

impl<T: Transport> Negotiation<'_, T> {
    fn refuse_size(mut self, header: OptionHeader) -> Result<Session, Ended> {
        let known =
            matches!(header.option, option::EXPORT_NAME..=option::LIST | option::INFO..=option::EXTENDED_HEADERS);
        if header.option != option::EXPORT_NAME {
            let kind = if known { reply::ERR_TOO_BIG } else { reply::ERR_UNSUP };
            self.reply(
                header.option,
                kind,
                b"the option is larger than 65536 bytes, or the server has no memory for it",
            );
            self.deadline.send_all(self.transport, &self.replies)?;
        }
        Err(Ended::OptionTooBig(header.len_bytes))
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        let len_bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.replies.extend_from_slice(&OptionReplyHeader { option, kind, len_bytes }.encode());
        self.replies.extend_from_slice(data);
    }

    /// Answers one option; returns `Some` when transmission begins.
    fn answer(&mut self, option: u32, data: &[u8]) -> Result<Option<Session>, Ended> {
        match option {
            option::EXPORT_NAME => return self.export_name(data).map(Some),
            option::ABORT => {
                self.reply(option, reply::ACK, b"");
                return Err(Ended::Aborted);
            }
            option::LIST => self.list(data)?,
            option::INFO | option::GO => return Ok(self.info(option, data)),
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

    fn session(&self, export: &Arc<Export>, access: Arc<Access>) -> Session {
        let selected = self.selected.as_ref().filter(|(selected, _)| Arc::ptr_eq(selected, export));
        let contexts = selected.map(|(_, contexts)| contexts.clone()).unwrap_or_default();
        Session { access, headers: self.headers, contexts }
    }

    fn export_name(&mut self, name: &[u8]) -> Result<Session, Ended> {
        if self.headers == Headers::Extended {
            return Err(Ended::OldOption);
        }
        let export = self.exports.find(name).ok_or(Ended::NoSuchExport)?;
        let access = export.open().ok_or(Ended::NoSuchExport)?;
        let size_bytes = access.device().ok_or(Ended::NoSuchExport)?.size_bytes();
        if export.seat(&access).is_err() || (self.begin)(&export).is_err() {
            return Err(Ended::TooMany);
        }
        self.replies.extend_from_slice(&size_bytes.to_be_bytes());
        self.replies.extend_from_slice(&export.flags(self.headers != Headers::Simple).to_be_bytes());
        if !self.no_zeroes {
            self.replies.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
        }
        Ok(self.session(&export, access))
    }

    fn list(&mut self, data: &[u8]) -> Result<(), Ended> {
        if !data.is_empty() {
            self.reply(option::LIST, reply::ERR_INVALID, b"this option takes no data");
            return Ok(());
        }
        for export in self.exports.list() {
            self.reply(option::LIST, reply::SERVER, &encode_server_reply(export.name().as_bytes()));
            if self.replies.len() >= LIST_PIECE_BYTES {
                self.deadline.send_all(self.transport, &self.replies)?;
                self.replies.clear();
            }
        }
        self.reply(option::LIST, reply::ACK, b"");
        Ok(())
    }

    fn info(&mut self, option: u32, data: &[u8]) -> Option<Session> {
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
        if option == option::GO {
            let text = if let Err(most) = export.seat(&access) {
                format!("all {most} connections that this export may have are in use")
            } else if let Err(limit) = (self.begin)(&export) {
                format!("all {limit} connections that this server allows are in use, or kept for other exports")
            } else {
                String::new()
            };
            if !text.is_empty() {
                self.reply(option, reply::ERR_POLICY, text.as_bytes());
                return None;
            }
        }
        let size_bytes = device.size_bytes();
        let flags = export.flags(self.headers != Headers::Simple);
        self.reply(option, reply::INFO, &InfoReply::Export { size_bytes, flags }.encode());
        if query.kinds.contains(&info::NAME) {
            self.reply(option, reply::INFO, &InfoReply::Name(export.name().as_bytes()).encode());
        }
        if query.kinds.contains(&info::BLOCK_SIZE) {
            let sizes = InfoReply::BlockSize {
                min_bytes: MIN_BLOCK_BYTES,
                preferred_bytes: PREFERRED_BLOCK_BYTES,
                max_bytes: TOLD_PAYLOAD_BYTES,
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
