//! Replaces `tls` where TLS is not compiled in: without certificates, no client begins it.

use std::{io, sync::Arc, time::Duration};

use pagefold_executor::Memory;

use crate::transport::Socket;

#[derive(Debug)]
pub(crate) enum Certificates {}

impl Certificates {
    pub(crate) fn layer(&self, _: &Arc<Memory>, _: Duration) -> io::Result<Option<Layer>> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Layer {}

impl Layer {
    pub(crate) fn is_in_handshake(&self) -> bool {
        match *self {}
    }

    pub(crate) fn work_bytes(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn try_recv(&self, _: &Socket, _: &mut [u8]) -> io::Result<Option<usize>> {
        match *self {}
    }

    pub(crate) fn try_send(&self, _: &Socket, _: &[u8]) -> io::Result<Option<usize>> {
        match *self {}
    }

    pub(crate) fn try_flush(&self, _: &Socket) -> io::Result<bool> {
        match *self {}
    }

    pub(crate) fn recv(&self, _: &Socket, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn send(&self, _: &Socket, _: &[u8], _: Duration) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn close(&self, _: &Socket) {
        match *self {}
    }

    pub(crate) fn holds_data(&self) -> bool {
        match *self {}
    }

    pub(crate) fn rest(&self) {
        match *self {}
    }
}
