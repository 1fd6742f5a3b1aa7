//! A command that a server runs, and whose end is the server's end.

use std::{
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::{ending::Ending, set_huge_pages};

/// How long a command may take to end once it was told to.
const GRACE: Duration = Duration::from_secs(5);
/// Between two looks whether it has.
const PAUSE: Duration = Duration::from_millis(10);

/// A shell that runs a command.
pub(crate) struct Running(Child);

impl Running {
    /// Runs `command` with these variables in its environment. At its end, `ending` begins.
    pub(crate) fn start(command: &str, variables: &[(&str, String)], ending: Arc<Ending>) -> anyhow::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).envs(variables.iter().map(|(name, value)| (*name, value)));
        // They are for the server.
        for name in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
            shell.env_remove(name);
        }
        // They are not this command's to forgo.
        set_huge_pages(true);
        let child = shell.spawn();
        set_huge_pages(false);
        let child = child.context("cannot start sh for --run")?;
        let pid = Pid::from_child(&child);
        thread::Builder::new()
            .name("run".to_owned())
            .spawn(move || {
                // It is not reaped here: until then, nothing else can have its number.
                while let Err(rustix::io::Errno::INTR) =
                    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
                {}
                ending.begin();
            })
            .context("cannot start a thread")?;
        Ok(Self(child))
    }

    /// Ends the command if it runs, and returns the exit status that a shell would have for it.
    pub(crate) fn end(mut self) -> anyhow::Result<u8> {
        let start = Instant::now();
        let pid = Pid::from_child(&self.0);
        // Nothing happens to one that has ended and was not reaped.
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
