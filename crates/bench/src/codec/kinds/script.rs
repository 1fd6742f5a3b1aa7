//! Recipes that are programs: the bench starts one, reads the memory that it names, and takes the
//! files that it leaves.
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

use super::{
    found, memory,
    recipe::{Yield, search_path},
};

/// A script and how to start it.
pub(super) struct Script {
    /// Program and arguments before the script's path.
    pub(super) command: &'static [&'static str],
    /// The script's file name, in case its interpreter depends on it.
    pub(super) file: &'static str,
    pub(super) source: &'static str,
    /// Whether it runs in the Python environment of the folder of kinds.
    pub(super) in_environment: bool,
}

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
        // It may have exited already; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Script {
    /// Returns the pages of `kinds`, at most `limit_pages` of each.
    pub(super) fn run(
        &self,
        kinds: &[Yield],
        dir: Option<&Path>,
        limit_pages: usize,
    ) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
        let work = tempfile::tempdir()?;
        let (source, out) = (work.path().join(self.file), work.path().join("out"));
        fs::write(&source, self.source)?;
        fs::create_dir(&out)?;
        let [program, arguments @ ..] = self.command else { bail!("no command") };
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
                let pages = match read.remove(kind.name) {
                    Some(pages) => pages,
                    None => found::pages(&found::all_under(&out.join(kind.name)), limit_pages)?,
                };
                Ok((kind.name, pages))
            })
            .collect()
    }
}
