//! Signals that end the program, and signals that must not.

use std::{fs, io, sync::Arc};

use signal_hook::{
    consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ},
    flag,
    iterator::Signals,
};

/// Makes writes above the limit of file sizes (`ulimit -f`) fail instead of ending the program. The
/// signal keeps its default effect on programs that this one starts, since a handler does not outlive
/// `exec`.
pub(crate) fn survive_large_writes() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Catches SIGHUP, SIGINT, SIGQUIT and SIGTERM, except for signals that were ignored when the program
/// was started, for example by `nohup`. SIGUSR1, SIGUSR2 and SIGALRM, which mean nothing here, no
/// longer end the program.
pub(crate) fn catch() -> io::Result<Signals> {
    for signal in [SIGUSR1, SIGUSR2, SIGALRM] {
        flag::register(signal, Arc::default())?;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let ending = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    Signals::new(ending.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0))
}

/// Caught signals. Some may be looked at before they are handled.
pub(crate) struct Caught {
    signals: Signals,
    seen: Vec<i32>,
}

impl Caught {
    /// See [`catch`].
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { signals: catch()?, seen: Vec::new() })
    }

    /// Returns the name of a received signal that ends the program, if any, without handling it.
    pub(crate) fn ending(&mut self) -> Option<&'static str> {
        self.seen.extend(self.signals.pending());
        self.seen.iter().copied().map(name).find(|name| *name != "SIGHUP")
    }

    /// Returns all received signals, then waits for each next one.
    pub(crate) fn forever(&mut self) -> impl Iterator<Item = i32> + '_ {
        std::mem::take(&mut self.seen).into_iter().chain(self.signals.forever())
    }
}

/// Returns the name of a signal that is caught.
pub(crate) fn name(signal: i32) -> &'static str {
    match signal {
        SIGHUP => "SIGHUP",
        SIGINT => "SIGINT",
        SIGQUIT => "SIGQUIT",
        _ => "SIGTERM",
    }
}

#[cfg(test)]
mod tests {
    use signal_hook::low_level::raise;

    use super::*;

    /// A signal that arrives too late to prevent a take-over ends the server afterwards.
    #[test]
    fn a_signal_that_was_seen_is_handled_too() {
        // Under nohup, too, for which `catch` would leave SIGHUP out.
        let signals = Signals::new([SIGHUP, SIGTERM]).expect("signals are caught");
        let mut caught = Caught { signals, seen: Vec::new() };
        assert_eq!(caught.ending(), None);
        raise(SIGHUP).expect("a signal");
        assert_eq!(caught.ending(), None);
        raise(SIGTERM).expect("a signal");
        assert_eq!([(); 2].map(|()| caught.ending()), [Some("SIGTERM"); 2]);
        raise(SIGHUP).expect("a signal");
        assert_eq!(caught.forever().take(3).collect::<Vec<_>>(), [SIGHUP, SIGTERM, SIGHUP]);
    }
}
