//! The end of a server, triggered by a signal, a command or the end of a child process.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use pagefold_control::{BusyDisk, DiskKind};
use pagefold_serve::ServerHandle;

use super::notify::notify;
use crate::log::Log;

/// A second signal counts only after this time: a terminal and a parent process may both send the
/// first one.
const SAME_SIGNAL: Duration = Duration::from_millis(300);

/// How long a server is quiet about the requests that it waits for.
const QUIET: Duration = Duration::from_secs(1);

pub(crate) struct Ending {
    begun: OnceLock<Instant>,
    forced: AtomicBool,
    server: ServerHandle,
    log: Log,
}

impl Ending {
    pub(crate) fn new(server: ServerHandle, log: Log) -> Self {
        Self { begun: OnceLock::new(), forced: AtomicBool::new(false), server, log }
    }

    /// Stops the server and notifies the service manager, once. `why` is logged.
    pub(crate) fn begin(&self, why: &str) {
        if self.begun.set(Instant::now()).is_ok() {
            self.log.info(&format!("{why}, stopping"));
            notify("STOPPING=1");
            self.server.stop();
        }
    }

    /// Stops the server. If it is stopping already, it no longer waits for requests.
    pub(crate) fn signal(&self, name: &str) {
        match self.begun.get() {
            None => self.begin(&format!("received {name}")),
            Some(begun) if begun.elapsed() >= SAME_SIGNAL => self.force(&format!("received {name} again")),
            Some(_) => {}
        }
    }

    /// Ends the server without waiting for requests. `why` is logged.
    pub(crate) fn force(&self, why: &str) {
        self.begin(why);
        if !self.forced.swap(true, Ordering::SeqCst) {
            self.log.warn(&format!("{why}: ending without waiting for requests"));
            self.server.abandon();
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun.get().is_some()
    }

    pub(crate) fn is_forced(&self) -> bool {
        self.forced.load(Ordering::SeqCst)
    }

    /// Returns whether the server has been stopping for so long that its user should learn why.
    pub(crate) fn is_slow(&self) -> bool {
        self.begun.get().is_some_and(|begun| begun.elapsed() >= QUIET) && !self.is_forced()
    }
}

/// Returns what a server that stops waits for, in words.
pub(crate) fn waits_for(busy: &[BusyDisk]) -> String {
    let each = busy.iter().map(|BusyDisk { name, kind, path, requests }| {
        let requests = if *requests == 1 { "1 request".to_owned() } else { format!("{requests} requests") };
        let (kind, of) = match kind {
            DiskKind::Base => ("base", ""),
            DiskKind::Snapshot => ("snapshot", "over "),
            _ => ("disk", "over "),
        };
        let path = path.as_ref().map_or_else(String::new, |path| format!(" ({of}{path})"));
        format!("{requests} of {kind} '{name}'{path}")
    });
    format!("waiting for {}", each.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_has_names() {
        let busy = |name: &str, kind, path: Option<&str>, requests| BusyDisk {
            name: name.to_owned(),
            kind,
            path: path.map(str::to_owned),
            requests,
        };
        let all = [
            busy("debian", DiskKind::Base, Some("/d.img"), 1),
            busy("job-1", DiskKind::Ram, Some("/d.img"), 2),
            busy("scratch", DiskKind::Ram, None, 1),
        ];
        assert_eq!(
            waits_for(&all),
            "waiting for 1 request of base 'debian' (/d.img), 2 requests of disk 'job-1' (over /d.img), \
             1 request of disk 'scratch'"
        );
    }
}
