//! Handing a server over to another process, which continues with the same sockets, clients and disks.
//!
//! ```text
//! new process                                 running server
//! connects to the control socket
//! sends take-over with one end of a socket → checks what cannot be handed over; answers
//! its memory, if the server stores it →
//!                   ←     most of the pool        while it serves
//!                                             pauses: no command, then no request is in progress
//!                         record, descriptors,
//!                   ←     the rest of the pool
//! restores all of it, but does not serve yet READY → ← GO never serves again; exits serves
//! ```
//!
//! If anything fails before the server has sent GO, it continues as before. The new process serves
//! only after GO, or if it has sent READY and the kernel reports that the server's process is gone.
//! `docs/handover.md` says what is handed over.

mod bases;
mod brake;
mod channel;
mod give;
mod kept;
mod next;
mod patient;
mod pool_file;
mod record;
mod store;
mod take;

use std::time::Duration;

pub(crate) use self::{
    give::begin,
    kept::{begin as keep, discard, free, note, replace},
    store::leave,
    take::{Incoming, Received, receive, restore},
};

/// How long either side waits for the other's next message.
const STEP: Duration = Duration::from_secs(30);
