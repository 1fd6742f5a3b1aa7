//! The reply to the kernel once a change has ended.

use std::sync::Arc;

use fuser::{Errno, FileHandle, FopenFlags, ReplyEmpty, ReplyOpen, ReplyWrite};
use pagefold_disk::BlockDevice;
use pagefold_executor::{Client, Completion, Failed, Operation, Started};

use crate::open::{OpenFile, OpenFiles};

/// A reply that says only whether the request succeeded, with values that are known in advance.
pub(crate) enum Reply {
    Empty(ReplyEmpty),
    /// The bytes of a write.
    Written(ReplyWrite, u32),
    /// An open that truncated the file.
    Opened(ReplyOpen, FileHandle, FopenFlags, Arc<OpenFiles>),
}

impl Reply {
    pub(crate) fn send(self, result: Result<(), Errno>) {
        match (self, result) {
            (Self::Empty(reply), Ok(())) => reply.ok(),
            (Self::Empty(reply), Err(errno)) => reply.error(errno),
            (Self::Written(reply, bytes), Ok(())) => reply.written(bytes),
            (Self::Written(reply, _), Err(errno)) => reply.error(errno),
            (Self::Opened(reply, handle, flags, _), Ok(())) => reply.opened(handle, flags),
            (Self::Opened(reply, handle, _, files), Err(errno)) => {
                files.close(handle);
                reply.error(errno);
            }
        }
    }
}

/// Replies to a change of an open file.
pub(crate) struct Answer {
    file: Arc<OpenFile>,
    /// Whether the device is flushed before the reply.
    syncs: bool,
    started: Started,
    /// `None` once sent. If the device panics, the reply is dropped, which sends EIO.
    reply: Option<Reply>,
}

impl Answer {
    /// Begins a change of `len_bytes`.
    pub(crate) fn new(file: &Arc<OpenFile>, operation: Operation, len_bytes: u64, reply: Reply) -> Self {
        let started = file.client.access().activity.begin(operation, len_bytes);
        Self { file: Arc::clone(file), syncs: false, started, reply: Some(reply) }
    }

    /// Flushes the device after the change if `syncs`.
    pub(crate) fn synced(self, syncs: bool) -> Self {
        Self { syncs, ..self }
    }

    fn sync(&self) -> Result<(), Failed> {
        match self.file.client.device() {
            Some(device) if self.syncs => Ok(device.flush()?),
            _ => Ok(()),
        }
    }

    fn errno(&self, failed: &Failed) -> Errno {
        match failed {
            // The file has not ended, so the change ended because it may not wait for room.
            Failed::Ended if !self.file.has_ended() => Errno::ENOSPC,
            failed => Errno::from_i32(failed.errno()),
        }
    }
}

impl Completion for Answer {
    fn client(&self) -> &Arc<Client> {
        &self.file.client
    }

    fn done(&mut self, result: Result<(), Failed>) {
        let result = result.and_then(|()| self.sync());
        self.file.client.access().activity.end(self.started, result.is_ok());
        let result = result.map_err(|failed| self.errno(&failed));
        if let Some(reply) = self.reply.take() {
            reply.send(result);
        }
    }
}
