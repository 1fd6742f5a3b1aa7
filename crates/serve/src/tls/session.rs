//! The state of TLS on one connection. It performs no I/O.

use std::io;

use rustls::{
    server::{ServerConnectionData, UnbufferedServerConnection},
    unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError},
};

/// Plaintext of the largest record.
pub(super) const RECORD_DATA_BYTES: usize = 16 << 10;
/// Upper bound of what encryption adds to a record: its header, and the nonce and the tag of the
/// cipher.
const RECORD_OVERHEAD_BYTES: usize = 64;
/// Room for a change of keys before a record.
const CONTROL_BYTES: usize = 128;

/// A TLS connection whose records the caller receives and sends.
pub(super) struct Session {
    connection: UnbufferedServerConnection,
    phase: Phase,
    /// The client sends nothing more.
    ended: bool,
    /// Messages of TLS itself, encrypted already, that precede everything that is encrypted later.
    control: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Handshake,
    Traffic,
    /// Nothing can be received or sent any more, except for an alert.
    Failed,
}

/// The numbers of bytes that encryption has taken and written.
pub(super) struct Sealed {
    pub(super) data_bytes: usize,
    pub(super) record_bytes: usize,
}

impl Session {
    pub(super) fn new(connection: UnbufferedServerConnection) -> Self {
        Self { connection, phase: Phase::Handshake, ended: false, control: Vec::new() }
    }

    pub(super) fn is_in_handshake(&self) -> bool {
        self.phase == Phase::Handshake
    }

    /// Returns whether the client has closed its side.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns whether messages of TLS itself are to be sent.
    pub(super) fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// Decrypts records in place and passes their data to `data`. Returns how many bytes are done
    /// with. The others must be passed again, with what follows them.
    ///
    /// During the handshake, `records` is everything that was received. After it, it is one whole
    /// record: a handshake message that continues in the next record would keep this one, and
    /// [`seal`](Self::seal), which has no records, could not continue. No client sends such messages.
    pub(super) fn open(&mut self, records: &mut [u8], data: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        if self.phase == Phase::Failed {
            return Err(failed("TLS has failed"));
        }
        let was_traffic = self.phase == Phase::Traffic;
        let result = self.process(records, data);
        let is_whole = |done: usize| done == records.len() || self.ended;
        match result {
            Ok(done) if !was_traffic || is_whole(done) => Ok(done),
            Ok(_) => Err(self.fail("a message of TLS itself continues in another record")),
            Err(error) => {
                self.take_alert();
                Err(self.fail(error))
            }
        }
    }

    /// Ends the use of the session with an error.
    pub(super) fn fail(&mut self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
        self.phase = Phase::Failed;
        failed(error)
    }

    fn process(&mut self, records: &mut [u8], data: &mut dyn FnMut(&[u8])) -> Result<usize, rustls::Error> {
        let mut done = 0;
        loop {
            let rest = records.get_mut(done..).unwrap_or_default();
            let status = self.connection.process_tls_records(rest);
            let mut goes_on = true;
            match status.state? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        data(record.payload);
                        done += record.discard;
                    }
                }
                ConnectionState::EncodeTlsData(encode) => keep(&mut self.control, encode)?,
                ConnectionState::TransmitTlsData(transmit) => transmit.done(),
                ConnectionState::PeerClosed => self.ended = true,
                ConnectionState::WriteTraffic(_) => {
                    self.phase = Phase::Traffic;
                    goes_on = false;
                }
                ConnectionState::BlockedHandshake | ConnectionState::Closed => goes_on = false,
                // Early data are not offered.
                _ => return Err(rustls::Error::General("unexpected state".to_owned())),
            }
            done += status.discard;
            if !goes_on {
                return Ok(done);
            }
        }
    }

    /// Keeps the alert that says why processing failed.
    fn take_alert(&mut self) {
        while self.connection.wants_write() {
            let Ok(ConnectionState::EncodeTlsData(encode)) = self.connection.process_tls_records(&mut []).state else {
                return;
            };
            if keep(&mut self.control, encode).is_err() {
                return;
            }
        }
    }

    /// Writes messages of TLS itself to `out`, and then encrypts as much of `bytes` as fits.
    pub(super) fn seal(&mut self, bytes: &[u8], out: &mut [u8]) -> io::Result<Sealed> {
        let mut record_bytes = self.take_control(out);
        if bytes.is_empty() || self.has_control() {
            return Ok(Sealed { data_bytes: 0, record_bytes });
        }
        if self.phase != Phase::Traffic {
            return Err(failed("TLS does not carry data now"));
        }
        let rest = out.get_mut(record_bytes..).unwrap_or_default();
        let bytes = bytes.get(..data_bytes_in(rest.len())).unwrap_or(bytes);
        if bytes.is_empty() {
            return Ok(Sealed { data_bytes: 0, record_bytes });
        }
        loop {
            match self.connection.process_tls_records(&mut []).state.map_err(failed)? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    record_bytes += traffic.encrypt(bytes, rest).map_err(|error| match error {
                        EncryptError::InsufficientSize(_) => failed("a record is larger than expected"),
                        EncryptError::EncryptExhausted => failed("the keys of this connection are used up"),
                    })?;
                    return Ok(Sealed { data_bytes: bytes.len(), record_bytes });
                }
                ConnectionState::EncodeTlsData(encode) => {
                    keep(&mut self.control, encode).map_err(failed)?;
                    return Ok(Sealed { data_bytes: 0, record_bytes });
                }
                ConnectionState::TransmitTlsData(transmit) => transmit.done(),
                ConnectionState::PeerClosed => self.ended = true,
                _ => return Err(failed("TLS does not carry data now")),
            }
        }
    }

    fn take_control(&mut self, out: &mut [u8]) -> usize {
        let count = self.control.len().min(out.len());
        if let (Some(out), Some(control)) = (out.get_mut(..count), self.control.get(..count)) {
            out.copy_from_slice(control);
        }
        self.control.drain(..count);
        if self.control.is_empty() {
            // A long certificate chain leaves no memory behind.
            self.control = Vec::new();
        }
        count
    }

    /// Writes the last message to `out`, unless the session has not begun or has written it already.
    /// Returns its length.
    pub(super) fn close(&mut self, out: &mut [u8]) -> usize {
        let control_bytes = self.take_control(out);
        if std::mem::replace(&mut self.phase, Phase::Failed) != Phase::Traffic || self.has_control() {
            return control_bytes;
        }
        loop {
            match self.connection.process_tls_records(&mut []).state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let rest = out.get_mut(control_bytes..).unwrap_or_default();
                    return control_bytes + traffic.queue_close_notify(rest).unwrap_or(0);
                }
                Ok(ConnectionState::PeerClosed) => self.ended = true,
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                _ => return control_bytes,
            }
        }
    }
}

/// Appends a message to `control`.
fn keep(control: &mut Vec<u8>, mut encode: EncodeTlsData<'_, ServerConnectionData>) -> Result<(), rustls::Error> {
    let unexpected = || rustls::Error::General("a message cannot be encoded".to_owned());
    let Err(EncodeError::InsufficientSize(size)) = encode.encode(&mut []) else { return Err(unexpected()) };
    let start = control.len();
    control.resize(start + size.required_size, 0);
    let written = encode.encode(control.get_mut(start..).unwrap_or_default()).map_err(|_| unexpected())?;
    control.truncate(start + written);
    Ok(())
}

/// Returns how many bytes of data fit into `room_bytes` of records.
fn data_bytes_in(room_bytes: usize) -> usize {
    let room_bytes = room_bytes.saturating_sub(CONTROL_BYTES);
    let record_bytes = RECORD_DATA_BYTES + RECORD_OVERHEAD_BYTES;
    let last_bytes = (room_bytes % record_bytes).saturating_sub(RECORD_OVERHEAD_BYTES);
    room_bytes / record_bytes * RECORD_DATA_BYTES + last_bytes
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
