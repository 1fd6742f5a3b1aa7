//! A closed or full standard error does not change the exit status; a closed or full standard
//! output is a failure.

use std::{
    fs::{self, OpenOptions},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::server::{Server, pagefold, program, run};

/// What standard error is.
#[derive(Clone, Copy, Debug)]
enum Stderr {
    Read,
    ClosedPipe,
    Full,
    Closed,
    /// Standard output too.
    BothClosedPipes,
}

impl Stderr {
    /// Runs `pagefold ARGS` and returns its exit status; a signal has none.
    fn status(self, args: &[String]) -> Option<i32> {
        let closed = || {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            Stdio::from(writer)
        };
        let mut command = pagefold();
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        match self {
            Self::Read => command.stderr(Stdio::null()),
            Self::ClosedPipe => command.stderr(closed()),
            Self::Full => command.stderr(OpenOptions::new().write(true).open("/dev/full").expect("/dev/full")),
            Self::Closed => {
                command = Command::new("sh");
                command.args(["-c", "exec \"$0\" \"$@\" 2>&-", env!("CARGO_BIN_EXE_pagefold")]).args(args);
                command.stdin(Stdio::null()).stdout(Stdio::null())
            }
            Self::BothClosedPipes => command.stdout(closed()).stderr(closed()),
        };
        command.status().expect("a start").code()
    }
}

/// Returns the names of all subcommands, from the help.
fn subcommands() -> Vec<String> {
    let help = run(pagefold().arg("--help"));
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Returns a tree, its image, another image with other contents, and a damaged image.
fn files(folder: &TempDir) -> [String; 4] {
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/text"), "text".repeat(5000)).expect("a file");
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image.erofs")]));
    fs::write(at("tree/text"), "next".repeat(5000)).expect("a file");
    let mut bytes = fs::read(at("image.erofs")).expect("the image");
    // Past the superblock: the checksum no longer matches, and inodes are damaged.
    bytes[1024 + 128..].iter_mut().step_by(3).for_each(|byte| *byte ^= 0x55);
    fs::write(at("damaged.erofs"), bytes).expect("room");
    fs::write(at("disk.img"), vec![1; 1 << 20]).expect("room");
    [at("tree"), at("image.erofs"), at("damaged.erofs"), at("disk.img")]
}

/// Runs commands that cover every subcommand, in the same state each time, and returns each with
/// what `run` does with its arguments.
fn all_commands<T>(
    folder: &TempDir,
    [tree, image, damaged, disk]: &[String; 4],
    run: impl Fn(&[String]) -> T,
) -> Vec<(String, T)> {
    let out = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let (packed, frozen, changes) = (out("x.erofs"), out("f.erofs"), out("changes"));
    let (restored, cache) = (out("restored"), out("cache"));
    let of_files: &[&[&str]] = &[
        &["pack", tree, "-o", &packed],
        &["pack", "/nonexistent", "-o", &packed],
        &["ls", image],
        &["ls", damaged],
        &["cat", &format!("{image}:/text")],
        &["info", image],
        &["info", tree],
        &["check", image],
        &["check", damaged],
        &["check", image, "--against", tree],
        &["extract", image, "-C", &restored],
        &["extract", damaged, "-C", &restored],
        &["mount", "/nonexistent", tree],
        &["advise", disk],
        &["doctor", "--dir", &restored],
        &["push", image, "https://host/x"],
        &["index", "/nonexistent"],
        &["fetch", image],
        &["cache", "--chunk-cache", &cache],
        &["completions", "bash"],
        &["man"],
        &["ls", "--json", image],
        &["top", "--interval", "0"],
        &["--help"],
        &["--version"],
        &["ls", "--help"],
        &["no-such-command"],
        &["pack", "--no-such-option"],
        &["serve", "--size", "1M", "--run", "exit 3"],
        &["serve", "--size", "7", "--dir", tree],
        &["serve", "--size", "1M", "--check-config"],
        &["serve", "--config", "/nonexistent"],
    ];
    let of_servers: &[&[&str]] = &[
        &["add", "a", "--size", "1M"],
        &["add", "a", "--size", "1M"],
        &["fork", "a", "b"],
        &["snapshot", "a", "s"],
        &["rollback", "a", "s"],
        &["rollback", "a", "none"],
        &["disks"],
        &["disks", "--json"],
        &["uri", "a"],
        &["uri", "none"],
        &["attach", "none"],
        &["detach", "a"],
        &["stat"],
        &["stat", "--json"],
        &["diff", "a"],
        &["diff", "a", "--to", &changes],
        &["resize", "a", "2M"],
        &["resize", "a", "1M"],
        &["rename", "b", "c"],
        &["reset", "a"],
        &["limit", "a", "1M"],
        &["quota", "a", "--connections", "9"],
        &["compact"],
        &["freeze", "a", "-o", &frozen],
        &["freeze", "none", "-o", &frozen],
        &["drop", "c"],
        &["drop", "c"],
        &["stop"],
        &["stop"],
    ];
    let used: Vec<&str> = of_files.iter().chain(of_servers).map(|args| args[0]).collect();
    for name in subcommands() {
        assert!(name == "help" || used.contains(&&*name), "'{name}' is not tried");
    }
    let server = Server::start(&[]);
    let place = ["--dir", server.folder().to_str().expect("a plain path")];
    let _ = fs::remove_dir_all(&restored);
    let _ = fs::remove_file(&changes);
    let all = of_files.iter().map(|args| (args, &[][..])).chain(of_servers.iter().map(|args| (args, &place[..])));
    all.map(|(args, place)| {
        let whole: Vec<String> = args.iter().chain(place).map(|arg| (*arg).to_owned()).collect();
        (args.join(" "), run(&whole))
    })
    .collect()
}

/// Every subcommand succeeds and fails with the same status as when its messages are read.
#[test]
fn standard_error_that_is_closed_or_full_changes_no_status() {
    let folder = TempDir::new().expect("a folder");
    let files = files(&folder);
    let statuses = |stderr: Stderr| all_commands(&folder, &files, |args| stderr.status(args));
    let expected = statuses(Stderr::Read);
    assert!(expected.iter().all(|(_, status)| status.is_some_and(|status| status < 100)), "{expected:?}");
    for stderr in [Stderr::ClosedPipe, Stderr::Full, Stderr::Closed, Stderr::BothClosedPipes] {
        assert_eq!(statuses(stderr), expected, "{stderr:?}");
    }
}

/// A command that has something to write fails if standard output does not take it.
#[test]
fn standard_output_that_is_closed_or_full_is_a_failure() {
    let folder = TempDir::new().expect("a folder");
    let files = files(&folder);
    let server = Server::start(&["--name", "disk", "--size", "1M"]);
    let read = all_commands(&folder, &files, |args| {
        let output = pagefold().args(args).stdin(Stdio::null()).output().expect("a start");
        (output.status.code(), output.stdout.is_empty())
    });
    let expected: Vec<_> = read
        .into_iter()
        .map(|(args, (status, is_silent))| (args, if is_silent { status } else { Some(status.unwrap_or(1).max(1)) }))
        .collect();
    let place = server.folder().to_str().expect("a plain path");
    let of_data: &[&[&str]] = &[
        &["pack", &files[0], "-o", "-"],
        &["freeze", "disk", "--dir", place, "-o", "-", "--format", "raw"],
        &["diff", "disk", "--dir", place, "--to", "-"],
    ];
    for redirection in [">&-", ">/dev/full", "1</dev/null"] {
        let status = |args: &[String]| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("exec \"$0\" \"$@\" {redirection}")]).arg(program()).args(args);
            let output = command.stdin(Stdio::null()).output().expect("a shell");
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || !text.is_empty(), "{args:?} {redirection}: no message");
            output.status.code()
        };
        assert_eq!(all_commands(&folder, &files, status), expected, "{redirection}");
        for args in of_data {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            assert_eq!(status(&args), Some(1), "{args:?} {redirection}");
        }
        // Under this name, the system opens the file again, now for writing.
        if redirection != "1</dev/null" {
            let args = ["pack", &files[0], "-o", "/dev/stdout"].map(str::to_owned);
            assert_eq!(status(&args), Some(1), "{redirection}");
        }
    }
}

/// Who retries a command because its output was lost must know that it has had its effect.
#[test]
fn a_command_whose_result_is_lost_says_that_it_was_carried_out() {
    let server = Server::start(&["--size", "1M", "--name", "a"]);
    for (args, carried_out) in [(&["add", "b", "--size", "1M"][..], true), (&["drop", "a"], true), (&["disks"], false)]
    {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let ended = server.ask(args).stdout(full).stderr(Stdio::piped()).output().expect("it starts");
        let message = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{message}");
        assert!(message.contains("cannot write to standard output"), "{message}");
        assert_eq!(message.contains("the command was carried out"), carried_out, "{message}");
    }
    let disks = run(&mut server.ask(&["disks", "--json"]));
    assert!(disks.contains(r#""name":"b""#) && !disks.contains(r#""name":"a""#), "{disks}");
}
