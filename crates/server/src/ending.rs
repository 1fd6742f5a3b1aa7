//! The end of a server, triggered by a signal, a command or the end of a child process.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use pagefold_control::{BusyDisk, DiskKind};
use pagefold_serve::ServerHandle;

use crate::Observer;

/// A second signal counts only after this time: a terminal and a parent process may both send the
/// first one.
pub(crate) const SAME_SIGNAL: Duration = Duration::from_millis(300);

/// How long a server waits for requests before it reports them.
const QUIET: Duration = Duration::from_secs(1);

/// Called once when a server begins to stop.
pub(crate) type WhenStopping = Box<dyn Fn() + Send + Sync>;

/// Ends a server from any thread. All clones end the same server.
#[derive(Clone)]
pub struct Ending(Arc<EndingState>);

struct EndingState {
    begun: OnceLock<Instant>,
    forced: AtomicBool,
    server: ServerHandle,
    observer: Observer,
    when_stopping: Option<WhenStopping>,
}

impl Ending {
    pub(crate) fn new(server: ServerHandle, observer: Observer, when_stopping: Option<WhenStopping>) -> Self {
        let (begun, forced) = (OnceLock::new(), AtomicBool::new(false));
        Self(Arc::new(EndingState { begun, forced, server, observer, when_stopping }))
    }

    /// Makes the server stop, once requests in flight are done. The observer learns `why`.
    pub fn begin(&self, why: &str) {
        let EndingState { begun, server, observer, when_stopping, .. } = &*self.0;
        if begun.set(Instant::now()).is_ok() {
            observer.info(&format!("{why}, stopping"));
            if let Some(notify) = when_stopping {
                notify();
            }
            server.stop();
        }
    }

    /// Stops the server because of a signal. A second signal, unless it follows the first within 300
    /// ms, no longer waits for requests.
    pub fn signal(&self, name: &str) {
        match self.0.begun.get() {
            None => self.begin(&format!("received {name}")),
            Some(begun) if begun.elapsed() >= SAME_SIGNAL => self.force(&format!("received {name} again")),
            Some(_) => {}
        }
    }

    /// Ends the server without waiting for requests. The observer learns `why`.
    pub fn force(&self, why: &str) {
        self.begin(why);
        if !self.0.forced.swap(true, Ordering::SeqCst) {
            self.0.observer.warn(&format!("{why}: ending without waiting for requests"));
            self.0.server.abandon();
        }
    }

    /// Returns whether the server stops or has stopped.
    pub fn has_begun(&self) -> bool {
        self.0.begun.get().is_some()
    }

    /// Returns whether it does not wait for requests.
    pub fn is_forced(&self) -> bool {
        self.0.forced.load(Ordering::SeqCst)
    }

    /// Returns whether the server has been stopping for so long that its user should learn why.
    pub(crate) fn is_slow(&self) -> bool {
        self.0.begun.get().is_some_and(|begun| begun.elapsed() >= QUIET) && !self.is_forced()
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending").field("begun", &self.has_begun()).field("forced", &self.is_forced()).finish()
    }
}

/// Describes what a server waits for while it stops. Without a busy disk, only this is left.
pub fn waits_for(busy: &[BusyDisk]) -> String {
    if busy.is_empty() {
        return "waiting for a command in progress, or for requests of a disk that was removed".to_owned();
    }
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
    fn awaited_requests_are_named() {
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
        assert!(waits_for(&[]).contains("a disk that was removed"));
        assert_eq!(
            waits_for(&all),
            "waiting for 1 request of base 'debian' (/d.img), 2 requests of disk 'job-1' (over /d.img), \
             1 request of disk 'scratch'"
        );
    }
}
