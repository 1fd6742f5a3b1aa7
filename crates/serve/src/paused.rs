//! A server that pauses.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    admission::Control,
    handover::Handed,
    pause::{PauseError, Shared},
};

/// A server that pauses: no request is in progress, none begins, and nothing is accepted, received or
/// sent. When this is dropped, the server continues.
pub struct Paused {
    control: Arc<Control>,
    handed: Handed<Shared>,
}

impl Paused {
    pub(crate) fn begin(control: &Arc<Control>, patience: Duration, leaves_out: bool) -> Result<Self, PauseError> {
        // Before anything stops for the pause.
        let (_, tls) = control.seats();
        if tls > 0 && !leaves_out {
            return Err(PauseError::Tls(tls));
        }
        let handed = control.pause.begin(patience, leaves_out, &|pausing| set_pausing(control, pausing))?;
        Ok(Self { control: Arc::clone(control), handed })
    }

    /// Returns the server's sockets and the states of its clients.
    pub fn handed(&self) -> &Handed<Shared> {
        &self.handed
    }

    /// Ends the server without closing the connections of its clients: another server continues
    /// with what was [handed over](Self::handed).
    pub fn give_away(self) {
        self.control.sockets.leave_files();
        self.control.pause.give_away();
    }
}

/// Makes requests stop, or continue.
fn set_pausing(control: &Control, pausing: bool) {
    control.common.pausing.store(pausing, Ordering::SeqCst);
    control.wake();
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.control.pause.go_on(&|pausing| set_pausing(&self.control, pausing));
    }
}

impl fmt::Debug for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paused").field("clients", &self.handed.clients.len()).finish_non_exhaustive()
    }
}
