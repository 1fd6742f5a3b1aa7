//! A command that a server runs; when it ends, the server stops.

use std::{
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use pagefold_server::Ending;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::huge_pages::set_huge_pages;

/// How long a command may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Interval between two checks whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// A shell that runs a command.
pub(crate) struct Running(Child);

impl Running {
    /// Runs `command` with these variables in its environment. When it ends, the server begins to
    /// stop.
    pub(crate) fn start(command: &str, variables: &[(&str, String)], ending: Ending) -> anyhow::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).envs(variables.iter().map(|(name, value)| (*name, value)));
        // These variables are for the server.
        for name in ["NOTIFY_SOCKET", "FDSTORE", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
            shell.env_remove(name);
        }
        // The server disables huge pages for itself, but not for this command.
        set_huge_pages(true);
        let child = shell.spawn();
        set_huge_pages(false);
        let child = child.context("cannot start sh for --run")?;
        let pid = Pid::from_child(&child);
        thread::Builder::new()
            .name("run".to_owned())
            .spawn(move || {
                // The process is not reaped here, so its id cannot be reused.
                while let Err(rustix::io::Errno::INTR) =
                    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
                {}
                ending.begin("the command of --run ended");
            })
            .context("cannot start a thread")?;
        Ok(Self(child))
    }

    /// Ends the command if it is running. Returns the exit status that a shell would report.
    pub(crate) fn end(mut self) -> anyhow::Result<u8> {
        let start = Instant::now();
        let pid = Pid::from_child(&self.0);
        // Signals have no effect on a process that has ended and was not reaped.
        let mut signals = [Signal::TERM, Signal::KILL].into_iter();
        let mut next = Duration::ZERO;
        loop {
            if let Some(status) = self.0.try_wait().context("cannot wait for the command of --run")? {
                return Ok(code(status));
            }
            if start.elapsed() >= next {
                if let Some(signal) = signals.next() {
                    let _ = kill_process(pid, signal);
                }
                next += GRACE;
            }
            thread::sleep(PAUSE);
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => u8::try_from(signal.unwrap_or(0)).unwrap_or(0).saturating_add(128),
    }
}
