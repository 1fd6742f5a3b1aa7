//! A `pagefold serve` that a test starts and stops.

use std::{
    env,
    ffi::OsString,
    fs,
    io::Read,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::skip_for_good;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Returns the program under test: the one that was built with the tests, or that of `PAGEFOLD_PROGRAM`.
pub(crate) fn program() -> OsString {
    env::var_os("PAGEFOLD_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_pagefold").into())
}

/// Returns a command that runs the program under test.
pub(crate) fn pagefold() -> Command {
    Command::new(program())
}

/// Returns a command that runs the program under test with a shell's `ulimit LIMIT`.
pub(crate) fn under(limit: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")]).arg(program());
    command
}

/// A running server, killed when this value is dropped, unless it was stopped before.
pub(crate) struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    /// Starts `pagefold serve ARGS` in a new directory and waits until it listens.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(pagefold(), args)
    }

    /// The same with a shell's `ulimit LIMIT`.
    pub(crate) fn start_under(limit: &str, args: &[&str]) -> Self {
        Self::start_with(under(limit), args)
    }

    /// The same with a control socket outside the directory.
    pub(crate) fn start_at(args: &[&str], control: &str) -> Self {
        Self::start_until(pagefold(), args, Some(control.into()))
    }

    fn start_with(command: Command, args: &[&str]) -> Self {
        Self::start_until(command, args, None)
    }

    fn start_until(mut command: Command, args: &[&str], control: Option<PathBuf>) -> Self {
        let folder = TempDir::new().expect("a folder");
        command.arg("serve").args(args).arg("--dir").arg(folder.path());
        let child = command.stderr(Stdio::piped()).spawn().expect("pagefold starts");
        let mut server = Self { child, folder };
        let control = control.unwrap_or_else(|| server.control());
        connects(&control, &mut server.child);
        if args.contains(&"--files") {
            // It answers once the files are mounted; before, the directory is an ordinary one.
            run(&mut server.ask(&["disks"]));
        }
        server
    }

    /// Waits until this server has exited, starts another in the same directory, and returns the
    /// exit status of the first.
    pub(crate) fn start_again(&mut self, args: &[&str]) -> ExitStatus {
        let ended = self.wait();
        let mut command = pagefold();
        command.arg("serve").args(args).arg("--dir").arg(self.folder.path()).stderr(Stdio::piped());
        self.child = command.spawn().expect("pagefold starts");
        connects(&self.control(), &mut self.child);
        ended
    }

    /// Lets a new process with these arguments take the server over. Returns what the first process has
    /// reported; it must have ended well.
    pub(crate) fn take_over(&mut self, args: &[&str]) -> String {
        let mut command = pagefold();
        command.args(["serve", "--take-over"]).args(args);
        self.take_over_with(command)
    }

    /// The same with a command without a location.
    pub(crate) fn take_over_with(&mut self, mut command: Command) -> String {
        command.arg("--dir").arg(self.folder.path()).stderr(Stdio::piped());
        let mut next = command.spawn().expect("pagefold starts");
        // It sends all that is stored.
        let deadline = Instant::now() + Duration::from_secs(300);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            if let Some(status) = next.try_wait().expect("a child") {
                let mut text = String::new();
                next.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
                panic!("it did not take over: {status}: {text}");
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(2));
        };
        assert!(status.success(), "{status}");
        let said = self.messages();
        self.child = next;
        said
    }

    /// Returns the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        send(signal, &self.child);
    }

    /// Kills the server without warning.
    pub(crate) fn kill(&self) {
        send(Signal::KILL, &self.child);
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd.sock")
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// Returns `pagefold ARGS`, directed at this server.
    pub(crate) fn ask(&self, args: &[&str]) -> Command {
        let mut command = pagefold();
        command.args(args).arg("--dir").arg(self.folder());
        command
    }

    /// Reads a file of the running server in `/proc`.
    pub(crate) fn proc(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).expect("a running server")
    }

    /// Returns a directory that is removed with the server.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the URI of an export.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Returns the value of an export's metric in `stat --json`.
    pub(crate) fn figure(&self, export: &str, metric: &str) -> u64 {
        let output = run(&mut self.ask(&["stat", "--json", export]));
        let lines = output.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let mut found = lines.filter(|line| line["case"] == export && line["metric"] == metric);
        found.next().unwrap_or_else(|| panic!("no {metric} in {output}"))["value"].as_u64().expect("a number")
    }

    /// Returns the value of the server's metric in `stat --json`.
    pub(crate) fn total(&self, metric: &str) -> u64 {
        let output = run(&mut self.ask(&["stat", "--json"]));
        let lines = output.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let mut found = lines.filter(|line| line["bench"] == "server" && line["metric"] == metric);
        found.next().unwrap_or_else(|| panic!("no {metric} in {output}"))["value"].as_u64().expect("a number")
    }

    /// Returns the process's memory that does not belong to files.
    pub(crate) fn anonymous_bytes(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux 4.5 or later");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// Sends a signal; returns the server's exit status and standard error.
    pub(crate) fn end(mut self, signal: Signal) -> (ExitStatus, String) {
        send(signal, &self.child);
        let status = self.wait();
        assert!(!self.socket().exists() && !self.control().exists(), "a socket was left behind");
        (status, self.messages())
    }

    /// Waits until the server has exited.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    pub(crate) fn messages(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut text).expect("text");
        }
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `child` accepts connections on a socket, whose file appears a moment before.
pub(crate) fn connects(socket: &Path, child: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while UnixStream::connect(socket).is_err() {
        if let Some(status) = child.try_wait().expect("a child") {
            let mut text = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                stderr.read_to_string(&mut text).expect("text");
            }
            panic!("it ended: {status}: {text}");
        }
        assert!(Instant::now() < deadline, "no server listens on {}", socket.display());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a child that must exit.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        assert!(Instant::now() < deadline, "it does not end; its threads: {}", threads_of(child.id()));
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the names of a process's threads, each with the system call and the place in the kernel where it
/// waits, if the kernel shows them.
fn threads_of(pid: u32) -> String {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let shown = threads.map(|thread| {
        let of = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default().trim().to_owned();
        format!("{} ({}; {})", of("comm"), of("syscall"), of("wchan"))
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// A child that is killed when this value is dropped: if it survived a failed test, it would hold
/// the output of all tests open.
pub(crate) struct Ended(pub(crate) Child);

impl Ended {
    /// Waits for the child's end and returns its standard error, which must be a pipe.
    pub(crate) fn messages(mut self) -> String {
        let mut text = String::new();
        self.0.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
        wait(&mut self.0);
        text
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns whether a child would ignore the signal because this process does. A shell ignores
/// SIGINT in programs that it starts with `&`.
pub(crate) fn is_ignored(test: &str, signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("a process's status");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("what it ignores");
    let ignored = u64::from_str_radix(ignored.trim(), 16).expect("a mask");
    let is_ignored = ignored >> (signal.as_raw() - 1) & 1 == 1;
    if is_ignored {
        skip_for_good(test, &format!("{signal:?} is ignored here"));
    }
    is_ignored
}

/// Sends a signal to a child that has not been waited for. The program `kill` is missing on a small
/// Debian.
pub(crate) fn send(signal: Signal, child: &Child) {
    kill_process(Pid::from_child(child), signal).expect("the child is there");
}

/// Runs a command that must succeed and returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, all_text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail with a one-line message, and returns that line.
pub(crate) fn run_to_fail(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(!output.status.success(), "{command:?} succeeded\n{}", all_text(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn all_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Writes `mib` MiB of this machine's program code to a file, interspersed with holes and noise.
pub(crate) fn make_image(path: &Path, mib: usize) {
    let source = fs::read(program()).expect("the program under test");
    let mut image = vec![0; mib << 20];
    let mut state = 1u64;
    for (number, chunk) in image.chunks_mut(1 << 18).enumerate() {
        match number % 4 {
            0 => {}
            1 => chunk.fill_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            }),
            _ => {
                let start = (number << 18) % (source.len() - chunk.len());
                chunk.copy_from_slice(&source[start..start + chunk.len()]);
            }
        }
    }
    fs::write(path, image).expect("room for an image");
}
