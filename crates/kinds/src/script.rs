//! Recipes that are programs. The bench starts one, reads the memory that it names, and takes its
//! files.
//!
//! The script's last argument is a folder for its files. When the script prints a line
//! `memory KIND PID`, the bench reads that process's memory as KIND and then writes an empty line
//! to the script's input. A file or folder named `KIND` that the script leaves is that kind. If the
//! script cannot do its work, it writes the reason to standard error and fails.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::{found, memory, need::search_path};

/// A script and how to start it.
#[derive(Deserialize)]
pub(super) struct Script {
    /// Program and arguments before the script's path.
    command: Vec<String>,
    /// The script's file name, in case its interpreter depends on it.
    file: String,
    /// Files of the folder `recipes` that make up its text.
    sources: Vec<String>,
    /// Whether it runs in the Python environment of the folder of kinds.
    #[serde(default)]
    in_environment: bool,
}

/// Pairs each name with the text of a file.
macro_rules! sources {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../recipes/", $name)))),*] };
}

/// The files of the folder `recipes`.
const SOURCES: &[(&str, &str)] = sources!(
    "binary-debug.py" "binary-java.py" "binary-python.py" "database-lmdb.py" "database-mariadb.py"
    "database-postgres.py" "database-sysbench.py" "database.py" "heap-emacs.el" "heap-go.go" "heap-java.java"
    "heap-node.js" "heap-python.py" "heap-redis.py" "heap-ruby.rb" "mariadb.py" "media-drawing.py"
    "media-photo.py" "number-columns.py" "number-double.py" "number-integer.py" "number-single.py" "system-btrfs.py"
    "system-ext4.py" "system-guest.py" "system-xfs.py" "text-languages.py" "text-log-trace.py" "text-prose.py"
    "tree.py"
);

/// How long a script may take to end after its input was closed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running script, ended on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // When its input ends, the script exits and ends what it started.
        drop(self.0.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        // The script may have exited already; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Script {
    /// Returns its text.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let of = |name: &String| SOURCES.iter().find(|(known, _)| known == name).map(|(_, text)| *text);
        self.sources.iter().map(|name| of(name).with_context(|| format!("there is no {name}"))).collect()
    }

    /// Returns the pages of `kinds`, at most `limit_pages` of each.
    pub(super) fn run(
        &self,
        kinds: &[String],
        dir: Option<&Path>,
        limit_pages: usize,
    ) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
        let work = tempfile::tempdir()?;
        let (source, out) = (work.path().join(&self.file), work.path().join("out"));
        fs::write(&source, self.text()?)?;
        fs::create_dir(&out)?;
        let [program, arguments @ ..] = &self.command[..] else { bail!("no command") };
        let child = Command::new(program)
            .args(arguments)
            .arg(&source)
            .arg(&out)
            .env("PATH", search_path(dir.filter(|_| self.in_environment)))
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let mut running = Running(child);
        let output = running.0.stdout.take().context("no output")?;
        let mut read: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for line in BufReader::new(output).lines() {
            let line = line?;
            let [word, kind, pid] = line.split(' ').collect::<Vec<_>>()[..] else { bail!("'{line}' is not a request") };
            ensure!(word == "memory", "'{line}' is not a request");
            let pid = pid.parse().with_context(|| format!("'{pid}' is not a process"))?;
            read.insert(kind.to_owned(), memory::pages(pid, limit_pages)?);
            let input = running.0.stdin.as_mut().context("no input")?;
            input.write_all(b"\n").and_then(|()| input.flush())?;
        }
        let status = running.0.wait()?;
        ensure!(status.success(), "its script failed: {status}");
        kinds
            .iter()
            .map(|kind| {
                let pages = match read.remove(kind) {
                    Some(pages) => pages,
                    None => found::pages(&found::all_under(&out.join(kind)), limit_pages)?,
                };
                Ok((kind.clone(), pages))
            })
            .collect()
    }
}
