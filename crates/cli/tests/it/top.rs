//! `pagefold top` on a terminal.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    process::{Child, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::OFlags,
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize},
};

use crate::server::{Ended, Server, is_ignored, run_to_fail, send, wait};

/// Leaves the second screen.
const LEAVES: &str = "\u{1b}[?1049l";

/// A terminal without a person.
struct Terminal {
    /// What a person sees and types.
    person: File,
    /// What programs have open.
    programs: File,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn open() -> Self {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&person).expect("a terminal");
        unlockpt(&person).expect("a terminal");
        let name = ptsname(&person, Vec::new()).expect("a name").into_string().expect("UTF-8");
        let flags = OFlags::NOCTTY.bits().cast_signed();
        let programs = OpenOptions::new().read(true).write(true).custom_flags(flags).open(name).expect("a terminal");
        let person = File::from(person);
        let (mut reader, shown) = (person.try_clone().expect("a descriptor"), Arc::new(Mutex::new(String::new())));
        let into = Arc::clone(&shown);
        thread::spawn(move || {
            let mut buf = [0; 4096];
            // Ends with an error when the last program has closed it.
            while let Ok(len @ 1..) = reader.read(&mut buf) {
                into.lock().expect("no panic").push_str(&String::from_utf8_lossy(&buf[..len]));
            }
        });
        let terminal = Self { person, programs, shown };
        terminal.resize(160, 24);
        terminal
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.person, size).expect("a size");
    }

    fn state(&self) -> Termios {
        tcgetattr(&self.programs).expect("a terminal")
    }

    /// Waits until this is shown, and forgets what was shown.
    fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut shown = self.shown.lock().expect("no panic");
            if shown.contains(text) {
                return shown.clear();
            }
            assert!(Instant::now() < deadline, "'{text}' is not in {shown:?}");
            drop(shown);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts `pagefold top` here.
    fn start(&self, server: &Server, term: &str) -> Ended {
        let stdio = || Stdio::from(OwnedFd::from(self.programs.try_clone().expect("a descriptor")));
        let mut command = server.ask(&["top", "--interval", "1"]);
        command.env("TERM", term).stdin(stdio()).stdout(stdio()).stderr(stdio());
        Ended(command.spawn().expect("pagefold starts"))
    }
}

#[test]
fn the_terminal_is_as_before_however_it_ends() {
    let test = "the_terminal_is_as_before_however_it_ends";
    let server = Server::start(&["--size", "1G", "--name", "first"]);
    let terminal = Terminal::open();
    let before = terminal.state();
    assert!(before.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO));
    let ends_with = |end: &dyn Fn(&mut Child)| -> ExitStatus {
        let mut top = terminal.start(&server, "xterm");
        terminal.wait_for("pause");
        assert!(!terminal.state().local_modes.contains(LocalModes::ICANON), "it reads keys");
        end(&mut top.0);
        let status = wait(&mut top.0);
        terminal.wait_for(LEAVES);
        let after = terminal.state();
        assert_eq!((after.local_modes, after.input_modes), (before.local_modes, before.input_modes));
        status
    };
    let press = |keys: &str| (&terminal.person).write_all(keys.as_bytes()).expect("a terminal");
    assert!(ends_with(&|_| press("q")).success());
    assert!(ends_with(&|_| press("\u{3}")).success());
    assert!(ends_with(&|top| send(Signal::TERM, top)).success());
    if !is_ignored(test, Signal::INT) {
        assert!(ends_with(&|top| send(Signal::INT, top)).success());
    }
}

#[test]
fn it_follows_keys_sizes_and_the_server() {
    let mut server = Server::start(&["--export", "name=first,size=1G", "--export", "name=second,size=2G"]);
    let terminal = Terminal::open();
    let mut top = terminal.start(&server, "xterm");
    terminal.wait_for("second");
    // All is drawn again, with fewer columns.
    terminal.resize(100, 12);
    terminal.wait_for("first");
    (&terminal.person).write_all(b" ").expect("a terminal");
    terminal.wait_for("PAUSED");
    (&terminal.person).write_all(b" ").expect("a terminal");
    // Without its server it ends, and says so on the first screen.
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert!(!wait(&mut top.0).success());
    terminal.wait_for("pagefold: ");
    assert!(terminal.state().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO));
}

#[test]
fn without_a_terminal_top_suggests_stat() {
    let server = Server::start(&["--size", "1M"]);
    let message = run_to_fail(server.ask(&["top"]).stdin(Stdio::null()));
    assert!(message.contains("top needs a terminal") && message.contains("pagefold stat"), "{message}");
    let terminal = Terminal::open();
    for term in ["dumb", ""] {
        let mut top = terminal.start(&server, term);
        assert_eq!(wait(&mut top.0).code(), Some(2), "TERM={term}");
        terminal.wait_for("top needs a terminal");
    }
}
