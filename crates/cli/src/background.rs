//! A command that continues in the background. The first process starts this program a second time,
//! and ends when the second process is ready or has failed.
//!
//! The second process reports on its standard output that it is ready, and everything else on its
//! standard error, which the first process passes on. It then detaches from the terminal.

use std::{
    ffi::CStr,
    fs::OpenOptions,
    io::{self, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, ExitCode, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::Context;

/// Name of the second process in the process table; it would otherwise be `exe`.
const NAME: &CStr = c"pagefold";

/// Message of the second process once it is ready.
const READY: &[u8] = b"ready\n";

/// How long the first process waits for further messages once the second is ready or has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Interval between two checks whether the second process has ended.
const ADOPTION_PAUSE: Duration = Duration::from_millis(1);

/// Runs `pagefold SUBCOMMAND --announce ARGS`, where ARGS are those of this process, and waits until
/// it is ready or has failed. Returns the exit status of this process.
pub(crate) fn start(subcommand: &str) -> anyhow::Result<ExitCode> {
    let mut second = Command::new("/proc/self/exe")
        .arg0(NAME.to_str().unwrap_or_default())
        .args([subcommand, "--announce"])
        .args(std::env::args_os().skip(2))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| {
            let missing = ["/proc/self/exe", "/dev/null"].into_iter().find(|path| !Path::new(path).exists());
            let why = missing.map_or_else(String::new, |path| format!(": there is no {path} here"));
            format!("cannot start the background process{why}")
        })?;
    let (out, error) = (second.stdout.take(), second.stderr.take());
    let (sender, all_passed_on) = mpsc::channel::<()>();
    let pass_on = move || {
        // A closed standard error changes nothing.
        let _ = error.map(|mut error| io::copy(&mut error, &mut io::stderr()));
        drop(sender);
    };
    thread::Builder::new().spawn(pass_on).context("cannot start a thread")?;
    let mut said = Vec::new();
    let is_ready = out.is_some_and(|mut out| out.read_to_end(&mut said).is_ok()) && said == READY;
    // Nothing is sent: this returns when the messages end. It has a timeout because a program that
    // the second process has started may keep the pipe open.
    let _ = all_passed_on.recv_timeout(LAST_WORDS);
    if is_ready {
        return Ok(ExitCode::SUCCESS);
    }
    let status = second.wait().context("cannot wait for the background process")?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code @ 1..) => Ok(ExitCode::from(code)),
        // The third process has reported why it has ended.
        Some(0) => Ok(ExitCode::FAILURE),
        _ => {
            let how = status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"));
            anyhow::bail!("the background process ended: {how}")
        }
    }
}

/// Runs `pagefold SUBCOMMAND --orphan PID ARGS` in place of the second process, which is to end
/// now, so that the system adopts the third one. A service manager that is notified of a new main
/// process kills it, unless it has already adopted it.
pub(crate) fn start_orphan(subcommand: &str) -> anyhow::Result<ExitCode> {
    let mut third = Command::new("/proc/self/exe");
    third.arg0(NAME.to_str().unwrap_or_default()).args([subcommand, "--orphan", &std::process::id().to_string()]);
    third.args(std::env::args_os().skip(2)).spawn().context("cannot start the background process")?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the second process has ended.
pub(crate) fn wait_for_adoption(second: u32) {
    while rustix::process::getppid().is_some_and(|parent| parent.as_raw_pid().unsigned_abs() == second) {
        thread::sleep(ADOPTION_PAUSE);
    }
}

/// Called first in the second process.
pub(crate) fn name() -> anyhow::Result<()> {
    rustix::thread::set_name(NAME).context("cannot set the name of the process")
}

/// Reports that the second process is ready, and releases everything inherited from the first.
pub(crate) fn announce() -> anyhow::Result<()> {
    leave_terminal().context("cannot detach from the terminal")
}

/// Leaves the session of the first process, so that signals from its terminal do not reach this
/// one.
pub(crate) fn leave_session() -> anyhow::Result<()> {
    new_session().context("cannot begin a session")
}

fn new_session() -> io::Result<()> {
    match rustix::process::setsid() {
        // Fails if this process leads a session already.
        Err(_) if rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid()) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

fn leave_terminal() -> io::Result<()> {
    new_session()?;
    // Otherwise, the file system of the current directory could not be unmounted.
    rustix::process::chdir("/")?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let mut out = io::stdout().lock();
    let said = out.write_all(READY).and_then(|()| out.flush());
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // Fails only if the first process is gone.
    said
}
