//! Connections that have not chosen an export, or whose clients have not received the answer yet.

use std::{cell::RefCell, io, os::fd::OwnedFd, sync::Arc};

use pagefold_executor::{Export, Exports, Taken};
use rustix::event::epoll::EventFlags;

use crate::{
    admission::{Control, Seat},
    adopt_error::AdoptError,
    handover::NewcomerState,
    negotiate::{Ended, Negotiation, Session},
    stream::Stream,
    transport::Transport,
};

/// Messages that one newcomer may send before others get their turn.
const MOST_STEPS: usize = 16;

/// A connection that negotiates.
pub(crate) struct Newcomer {
    pub(crate) stream: Arc<Stream>,
    pub(crate) negotiation: Negotiation,
    pub(crate) place: Place,
}

/// A newcomer's place among the connections.
pub(crate) enum Place {
    /// Its memory; `None` if the account had none left.
    None(Option<Taken>),
    Seat(Seat),
}

/// The event that a newcomer waits for.
pub(crate) enum Progress {
    Waits(EventFlags),
    /// A thread that computes its part of the TLS handshake.
    Handshake,
    Chosen(Session),
}

/// Whether a thread may compute a part of a TLS handshake, which takes up to some milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    Compute,
    HandOn,
}

impl Newcomer {
    /// Continues with a client of another server.
    pub(crate) fn adopt(
        number: u64,
        state: NewcomerState,
        fd: OwnedFd,
        control: &Control,
        exports: &Exports,
    ) -> Result<Self, AdoptError> {
        let memory = control.common.executor.memory();
        let negotiation = Negotiation::of_state(state, exports, memory)?;
        let stream = control.adopt_stream(number, fd)?;
        Ok(Self { stream, negotiation, place: Place::None(memory.take_idle()) })
    }

    /// Exchanges what is possible without waiting.
    pub(crate) fn progress(
        &mut self,
        number: u64,
        control: &Arc<Control>,
        exports: &Exports,
        handshake: Handshake,
    ) -> Result<Progress, Ended> {
        let Self { stream, negotiation, place, .. } = self;
        let place = RefCell::new(place);
        let mut has_more = true;
        for _ in 0..MOST_STEPS {
            while !negotiation.unsent().is_empty() {
                match stream.try_send(negotiation.unsent())? {
                    Some(bytes) => negotiation.sent(bytes),
                    None => return Ok(Progress::Waits(EventFlags::OUT)),
                }
            }
            if !stream.try_flush()? {
                return Ok(Progress::Waits(EventFlags::OUT));
            }
            if negotiation.starts_tls() {
                control.start_tls(stream)?;
                negotiation.tls_started();
                if !stream.has_data() {
                    return Ok(Progress::Waits(EventFlags::IN));
                }
            }
            if let Some(result) = negotiation.result() {
                return result.map(Progress::Chosen);
            }
            if handshake == Handshake::HandOn && stream.is_in_handshake() {
                return Ok(Progress::Handshake);
            }
            match stream.try_recv(negotiation.room())? {
                Some(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Some(bytes) => negotiation.received(bytes, &|export: &Export| {
                    let mut place = place.borrow_mut();
                    let Place::None(idle) = &mut **place else { return Ok(()) };
                    let seat = control.seat(number, stream, export, exports.count(), idle.take());
                    let (seat, result) = match seat {
                        Ok(seat) => (Place::Seat(seat), Ok(())),
                        Err((no_place, idle)) => (Place::None(idle), Err(no_place)),
                    };
                    **place = seat;
                    result
                }),
                None => {
                    has_more = false;
                    break;
                }
            }
        }
        let has_sent_all = negotiation.unsent().is_empty() && stream.try_flush()?;
        // More data may be in TLS's buffers already, so it continues as soon as others have had
        // their turn.
        let waits_for_data = has_sent_all && !has_more;
        Ok(Progress::Waits(if waits_for_data { EventFlags::IN } else { EventFlags::OUT }))
    }

    /// Returns whether closing this peer would free memory for others.
    pub(crate) fn has_memory(&self) -> bool {
        matches!(self.place, Place::None(Some(_)))
    }

    /// Returns whether this peer is counted.
    pub(crate) fn is_paid(&self) -> bool {
        !matches!(self.place, Place::None(None))
    }
}
