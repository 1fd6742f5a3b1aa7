//! Lines on standard error, in a log file, or in the system log.

use std::{
    env,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, IsTerminal, Read, Write},
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixDatagram,
    },
    path::{Path, PathBuf},
    process,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::SystemTime,
};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::fstat,
};

use crate::text::{date, plain};

/// The socket of the system log (RFC 3164), which the journal provides too.
const SYSTEM_LOG: &str = "/dev/log";

/// The beginning of each line of a log file, with 0 for any digit.
const LINE: &[u8] = b"0000-00-00T00:00:00Z pagefold: ";

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Level {
    /// Failures
    Error,
    /// Problems that may lead to failures
    Warn,
    /// Completed operations
    Info,
    /// Received requests, and clients that connect and disconnect
    Debug,
}

impl From<pagefold_server::Level> for Level {
    fn from(level: pagefold_server::Level) -> Self {
        match level {
            pagefold_server::Level::Error => Self::Error,
            pagefold_server::Level::Warn => Self::Warn,
            pagefold_server::Level::Info => Self::Info,
            pagefold_server::Level::Debug => Self::Debug,
        }
    }
}

impl Level {
    /// Returns the priority of the system log and the journal.
    fn priority(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warn => 4,
            Self::Info => 6,
            Self::Debug => 7,
        }
    }
}

/// The destination of a long-running program's lines instead of standard error.
pub(crate) enum Sink {
    /// Lines are appended to this file.
    File(PathBuf, File),
    System(UnixDatagram),
}

impl Sink {
    /// Opens a log file, which is created if it does not exist.
    ///
    /// # Errors
    /// It cannot be opened, or it has content that is not a log.
    pub(crate) fn file(path: &Path) -> anyhow::Result<Self> {
        let failed = || format!("cannot open the log file {}", path.display());
        let path = std::path::absolute(path).with_context(failed)?;
        let kind = fs::metadata(&path).map(|found| (found.file_type(), is_standard(&found)));
        if let Ok((kind, is_standard)) = kind {
            // Opening a pipe would wait for its reader.
            ensure!(
                kind.is_file() || kind.is_block_device() || kind.is_char_device() || is_standard,
                "{} is not a file: name another file for the log",
                path.display()
            );
        }
        let file = OpenOptions::new().create(true).append(true).open(&path).with_context(failed)?;
        ensure!(
            takes_lines(&file, &path).with_context(failed)?,
            "{} is not a log of pagefold's, so nothing is appended to it: name another file for the log",
            path.display()
        );
        Ok(Self::File(path, file))
    }

    /// Returns whether the lines go to the file at `path`.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let Self::File(_, file) = self else { return false };
        let found = file.metadata().and_then(|file| Ok(is_same(&file, &fs::metadata(path)?)));
        found.is_ok_and(|is_same| is_same)
    }

    /// Opens the system log. Fails if there is none.
    pub(crate) fn system() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(SYSTEM_LOG)?;
        // Lines that the log does not accept are lost.
        socket.set_nonblocking(true)?;
        Ok(Self::System(socket))
    }

    /// Writes a line. Failures cannot be reported anywhere.
    pub(crate) fn line(&self, level: Level, text: &str) {
        let text = plain(text);
        let _ = match self {
            Self::File(_, file) => {
                let mut file = file;
                file.write_all(format!("{} pagefold: {text}\n", now()).as_bytes())
            }
            Self::System(socket) => {
                // Facility 3: daemon.
                let priority = 3 * 8 + level.priority();
                let message = format!("<{priority}>pagefold[{}]: {text}", process::id());
                let sent = socket.send(message.as_bytes());
                // The log may have been restarted.
                let again = |_| socket.connect(SYSTEM_LOG).and_then(|()| socket.send(message.as_bytes()));
                sent.or_else(again).map(drop)
            }
        };
    }
}

/// Returns whether lines may be appended to an open file: it is empty, begins with a line of a log, or
/// is a terminal, or this process's standard output or error.
fn takes_lines(file: &File, path: &Path) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    let has_content = kind.is_block_device() || kind.is_file() && metadata.len() > 0;
    if !has_content || is_standard(&metadata) {
        return Ok(true);
    }
    let readable = File::open(path)?;
    let mut start = Vec::new();
    (&readable).take(LINE.len() as u64).read_to_end(&mut start)?;
    let is_line = start.len() == LINE.len()
        && start.iter().zip(LINE).all(|(byte, line)| match line {
            b'0' => byte.is_ascii_digit(),
            line => byte == line,
        });
    // The name may have got another file since.
    Ok(is_line && is_same(&metadata, &readable.metadata()?))
}

/// Returns whether this is the file of standard output or error, which the user chose.
fn is_standard(file: &Metadata) -> bool {
    let is_file = |stream: rustix::io::Result<rustix::fs::Stat>| {
        stream.is_ok_and(|stream| (stream.st_dev, stream.st_ino) == (file.dev(), file.ino()))
    };
    is_file(fstat(io::stderr())) || is_file(fstat(io::stdout()))
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Where a server's lines go.
struct Target {
    sink: Option<Sink>,
    stderr: bool,
    /// The number of lines lost because standard error was not read.
    lost: u64,
}

static TARGET: Mutex<Target> = Mutex::new(Target { sink: None, stderr: true, lost: 0 });

fn target() -> MutexGuard<'static, Target> {
    TARGET.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a server's lines of at least the severity `level`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    level: Level,
}

impl Log {
    pub(crate) fn new(level: Level) -> Self {
        Self { level }
    }

    /// Also writes the lines to `sink`.
    pub(crate) fn add(self, sink: Sink) {
        target().sink = Some(sink);
    }

    /// Returns whether lines go elsewhere than to standard error.
    pub(crate) fn has_sink(self) -> bool {
        target().sink.is_some()
    }

    /// Returns whether lines go to the file with these device and inode numbers: the log file, or
    /// what a shell has connected standard error to.
    pub(crate) fn is_written_to(self, file: (u64, u64)) -> bool {
        let target = target();
        let is_sink = match &target.sink {
            Some(Sink::File(_, log)) => log.metadata().is_ok_and(|log| (log.dev(), log.ino()) == file),
            Some(Sink::System(_)) | None => false,
        };
        let is_stderr = || rustix::fs::fstat(io::stderr()).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == file);
        is_sink || target.stderr && is_stderr()
    }

    /// Writes no more lines to standard error.
    pub(crate) fn leave_stderr(self) {
        target().stderr = false;
    }

    /// Opens the log file again, which may have been renamed. Returns a description of what was done.
    pub(crate) fn reopen(self) -> &'static str {
        let mut target = target();
        let Some(Sink::File(path, _)) = &target.sink else { return "there is no log file to open" };
        match Sink::file(path) {
            Ok(sink) => {
                target.sink = Some(sink);
                "opened the log file again"
            }
            Err(error) => {
                drop(target);
                self.error(&crate::text::message(&error));
                "lines still go to the earlier log file"
            }
        }
    }

    pub(crate) fn error(self, text: &str) {
        self.write(Level::Error, text);
    }

    pub(crate) fn warn(self, text: &str) {
        self.write(Level::Warn, text);
    }

    pub(crate) fn info(self, text: &str) {
        self.write(Level::Info, text);
    }

    pub(crate) fn write(self, level: Level, text: &str) {
        if level > self.level {
            return;
        }
        let mut target = target();
        if let Some(sink) = &target.sink {
            sink.line(level, text);
        }
        if target.stderr {
            target.write_stderr(level, text);
        }
    }
}

impl Target {
    /// Writes a line with the time. A pipe without a reader must not block a server.
    fn write_stderr(&mut self, level: Level, text: &str) {
        if !has_room() {
            self.lost += 1;
            return;
        }
        let now = stamp();
        if self.lost > 0 {
            let lost = format!("{} lines were lost because standard error was not read", self.lost);
            write_at(&now, Level::Warn, &lost);
            self.lost = 0;
            if !has_room() {
                self.lost += 1;
                return;
            }
        }
        write_at(&now, level, text);
    }
}

/// Returns whether standard error accepts a line immediately.
fn has_room() -> bool {
    let stderr = io::stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // If the system does not say, write.
    poll(&mut polled, Some(&now)).map_or(true, |ready| ready > 0)
}

/// Returns the time in UTC.
fn now() -> String {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let date = date(time.as_secs().try_into().unwrap_or(i64::MAX), 0);
    date.split('.').next().unwrap_or_default().replace(' ', "T") + "Z"
}

/// Returns the prefix of a server's line on standard error: the time, except in the journal, which
/// adds it, and on a terminal, where lines appear immediately.
fn stamp() -> String {
    static IS_TERMINAL: OnceLock<bool> = OnceLock::new();
    let is_terminal = *IS_TERMINAL.get_or_init(|| io::stderr().is_terminal());
    if is_terminal || goes_to_journal() { String::new() } else { now() + " " }
}

/// Writes a line to standard error. Failures are ignored.
pub(crate) fn write(level: Level, text: &str) {
    write_at("", level, text);
}

fn write_at(stamp: &str, level: Level, text: &str) {
    // Names may contain control characters.
    let text = plain(text);
    let _ = if goes_to_journal() {
        writeln!(io::stderr(), "<{}>{text}", level.priority())
    } else {
        writeln!(io::stderr(), "{stamp}pagefold: {text}")
    };
}

/// Writes a line without the program's name to standard error: a result, or one of many lines about
/// the same file. Failures are ignored: a closed or full standard error does not change the exit status.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stderr(), "{}", plain(text));
}

/// Returns whether standard error is the journal's stream, which accepts priorities and adds the
/// program's name. `JOURNAL_STREAM` contains the stream's device and inode.
fn goes_to_journal() -> bool {
    static GOES: OnceLock<bool> = OnceLock::new();
    *GOES.get_or_init(|| {
        let stream = env::var("JOURNAL_STREAM").unwrap_or_default();
        let Ok(stderr) = fstat(io::stderr()) else { return false };
        stream == format!("{}:{}", stderr.st_dev, stderr.st_ino)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_are_appended_to_logs_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        for (content, is_log) in [
            ("", true),
            ("2026-01-31T23:59:59Z pagefold: listening\n", true),
            ("2026-01-31T23:59:59Z pagefold", false),
            ("2026-01-31 23:59:59Z pagefold: listening\n", false),
            ("size = \"1G\"\n", false),
            ("4194303\n", false),
            ("\n", false),
        ] {
            fs::write(&path, content).expect("a file");
            let opened = Sink::file(&path);
            assert_eq!(opened.is_ok(), is_log, "{content:?}");
            if let Err(error) = opened {
                let message = error.to_string();
                assert!(message.starts_with(&format!("{} is not a log", path.display())), "{message}");
            }
            assert_eq!(fs::read_to_string(&path).expect("the file"), content);
        }
        assert!(Sink::file(Path::new("/dev/null")).is_ok_and(|sink| sink.is_at(Path::new("/dev/null"))));
    }

    #[test]
    fn a_log_file_has_times_and_is_reopened() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("log"), folder.path().join("log.1"));
        let sink = Sink::file(&path).expect("a file");
        sink.line(Level::Info, "one\u{202e}");
        fs::rename(&path, &old).expect("a rename");
        sink.line(Level::Warn, "two");
        Sink::file(&path).expect("a file").line(Level::Info, "three");
        let text = fs::read_to_string(&old).expect("the file");
        let lines: Vec<_> = text.lines().map(|line| line.split_at(20)).collect();
        assert_eq!(
            lines.iter().map(|(_, text)| *text).collect::<Vec<_>>(),
            [" pagefold: one\\u{202e}", " pagefold: two"]
        );
        let is_time = |time: &str| {
            let digits = time.bytes().filter(u8::is_ascii_digit).count();
            digits == 14 && time.ends_with('Z') && time.as_bytes()[10] == b'T'
        };
        assert!(lines.iter().all(|(time, _)| is_time(time)), "{text}");
        assert!(fs::read_to_string(&path).expect("the file").ends_with("pagefold: three\n"));
    }
}
