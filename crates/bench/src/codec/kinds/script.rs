//! Recipes that are programs of their own: the bench starts one, reads the memory it is told to,
//! and takes the files it leaves.
//!
//! A script is called with a folder to leave files in, as its last argument. For a line `memory
//! KIND PID` on its output the bench reads that process's memory as KIND and then writes an empty
//! line to its input. A file or folder `KIND` that it leaves is that kind. A script that cannot do
//! its work says why on its error output and fails.

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

/// A script, and how it is started.
pub(super) struct Script {
    /// Program and arguments before the script's path.
    pub(super) command: &'static [&'static str],
    /// The script's file name, where its program minds it.
    pub(super) file: &'static str,
    pub(super) source: &'static str,
    /// Does it run in the Python environment of the folder of kinds?
    pub(super) in_environment: bool,
}

/// How long a script that was told to end may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Ends the script when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // What the script started ends with it, once its input has ended.
        drop(self.0.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        // It may have ended by itself; then there is nothing left to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Script {
    /// The pages of `kinds`, at most `limit_pages` of each.
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
