//! A client's socket, with or without TLS.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use crate::{
    peer::Peer,
    tls::Layer,
    transport::{Socket, Transport},
};

/// A connected socket that may begin TLS.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    tls: Option<Box<Layer>>,
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, tls: None }
    }

    /// From now on, receives and sends only TLS records.
    pub(crate) fn start_tls(&mut self, layer: Layer) {
        self.tls = Some(Box::new(layer));
    }

    /// Returns whether TLS has begun.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether the next data belong to a TLS handshake.
    pub(crate) fn is_in_handshake(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_in_handshake())
    }

    /// Returns the memory that a connection needs to work, in addition to that of a plain one.
    pub(crate) fn more_work_bytes(&self) -> u64 {
        self.tls.as_ref().map_or(0, |tls| tls.work_bytes())
    }

    pub(crate) fn peer(&self) -> Peer {
        self.socket.peer()
    }

    /// Sends as much of `bytes` as there is room for without waiting; `None` if there is none. Part of
    /// it may have to be [flushed](Self::try_flush).
    pub(crate) fn try_send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match &self.tls {
            None => self.socket.try_send(bytes),
            Some(tls) => tls.try_send(&self.socket, bytes),
        }
    }

    /// Sends what is left of earlier calls without waiting. Returns whether nothing is left.
    pub(crate) fn try_flush(&self) -> io::Result<bool> {
        self.tls.as_ref().map_or(Ok(true), |tls| tls.try_flush(&self.socket))
    }

    /// Returns whether data have arrived that were not received.
    pub(crate) fn has_data(&self) -> bool {
        self.holds_data() || self.socket.has_data()
    }

    /// Stops receiving, except for data that have already arrived.
    pub(crate) fn shutdown_recv(&self) {
        self.socket.shutdown_recv();
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Transport for Stream {
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            None => self.socket.recv(buf),
            Some(tls) => tls.recv(&self.socket, buf),
        }
    }

    fn try_recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match &self.tls {
            None => self.socket.try_recv(buf),
            Some(tls) => tls.try_recv(&self.socket, buf),
        }
    }

    fn send(&self, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
        match &self.tls {
            None => self.socket.send(bytes, timeout),
            Some(tls) => tls.send(&self.socket, bytes, timeout),
        }
    }

    fn set_recv_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.socket.set_recv_timeout(timeout)
    }

    fn shutdown(&self) {
        if let Some(tls) = &self.tls {
            tls.close(&self.socket);
        }
        self.socket.shutdown();
    }

    fn has_ended(&self) -> bool {
        self.socket.has_ended()
    }

    fn holds_data(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.holds_data())
    }

    fn can_send_again(&self) -> bool {
        self.tls.is_none()
    }

    fn rest(&self) {
        if let Some(tls) = &self.tls {
            tls.rest();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(tls) = &self.tls {
            tls.close(&self.socket);
        }
    }
}
