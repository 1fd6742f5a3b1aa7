//! Runs the parts of a plan, which take turns, each as a separate process, and records every figure
//! immediately.
//!
//! ```text
//! for each turn, for each part:
//!     leave the part out if it lacks a peer, or would end after the limit
//!     start it; take its lines, until it ends, the limit is reached, or the run is to stop
//!     write the page
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};

use super::plan::{Plan, PlannedBench, Scratch};
use crate::line::Line;
use crate::record::{ABOUT, Record};
use crate::words::minutes;

/// How often a part, the limit and signals are checked.
const LOOK: Duration = Duration::from_millis(100);

/// How long to wait for a part's output after it exited: its children may hold its pipes open.
const AFTER_END: Duration = Duration::from_secs(2);

/// Lines of a part's standard error that are kept to explain a failure.
const LAST_LINES: usize = 20;

/// Failed turns after which a part is left out.
const TRIES: usize = 2;

/// A run: its results so far and where they go.
pub(super) struct Run<'a> {
    pub(super) record: Record,
    lines: File,
    program: PathBuf,
    scratch: &'a Scratch,
    stop: Arc<AtomicBool>,
    began: Instant,
    /// Duration of each part's last turn.
    took_s: BTreeMap<String, f64>,
}

/// A line written by a part.
enum Output {
    Figure(String),
    Said(String),
}

/// Why a part ended.
#[derive(Clone, Copy, PartialEq)]
enum Ended {
    Itself,
    Limit,
    Stop,
}

impl<'a> Run<'a> {
    /// Makes a run of `program` whose lines go to `path`, which is truncated. The run ends early
    /// once `stop` is set.
    pub(super) fn new(
        program: &Path,
        path: &Path,
        scratch: &'a Scratch,
        stop: Arc<AtomicBool>,
    ) -> anyhow::Result<Self> {
        let lines = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            record: Record::default(),
            lines,
            program: program.to_owned(),
            scratch,
            stop,
            began: Instant::now(),
            took_s: BTreeMap::new(),
        })
    }

    /// Records a line and writes it to the file immediately.
    pub(super) fn keep(&mut self, line: Line) -> anyhow::Result<()> {
        writeln!(self.lines, "{}", line.json()).context("cannot write the JSON lines")?;
        self.record.add(line);
        Ok(())
    }

    /// Runs the plan. Calls `page` with the results so far after each part, and `clean` after a
    /// part that was killed. Failures of parts are in the record; an error concerns this program's
    /// own files.
    pub(super) fn follow(
        &mut self,
        plan: &Plan,
        missing: &dyn Fn(&str) -> Option<String>,
        page: &mut dyn FnMut(&Record) -> anyhow::Result<()>,
        clean: &mut dyn FnMut(),
    ) -> anyhow::Result<()> {
        let mut out: Vec<&str> = Vec::new();
        for turn in 1..=plan.turns {
            for (at, part) in plan.parts.iter().enumerate() {
                if out.contains(&part.name.as_str()) {
                    continue;
                }
                if let Some(missing) = part.needs.iter().find_map(|need| missing(need)) {
                    self.keep(Line::new([ABOUT, &part.name, &missing, "left_out", ""], 0.0))?;
                    out.push(&part.name);
                    continue;
                }
                let left_s = plan.limit_s - self.began.elapsed().as_secs_f64();
                if self.expected_s(plan, part) > left_s {
                    if turn == 1 {
                        let reason = format!("the time of the run ({:.0} s) is up", plan.limit_s);
                        self.keep(Line::new([ABOUT, &part.name, &reason, "left_out", ""], 0.0))?;
                    }
                    continue;
                }
                let note = format!("[{}/{}, turn {turn} of {}] {}", at + 1, plan.parts.len(), plan.turns, part.name);
                let left = self.left_s(plan, &out, turn, at);
                let ended = self.part(part, turn, left_s, &note, left)?;
                if ended != Ended::Itself {
                    clean();
                }
                if ended == Ended::Stop {
                    let reason = format!("ended by a signal in turn {turn} of {}, in {}", plan.turns, part.name);
                    self.keep(Line::new([ABOUT, "", &reason, "cut_short", ""], 0.0))?;
                }
                page(&self.record)?;
                if ended == Ended::Stop {
                    return Ok(());
                }
                let failures = self.record.turns.iter().filter(|turn| turn.part == part.name && turn.failure.is_some());
                if failures.count() == TRIES {
                    // The other parts make better use of its time.
                    out.push(&part.name);
                }
            }
        }
        page(&self.record)
    }

    /// Returns the expected duration of a part: that of its last turn, or the plan's at this
    /// machine's pace.
    fn expected_s(&self, plan: &Plan, part: &PlannedBench) -> f64 {
        if let Some(&took) = self.took_s.get(&part.name) {
            return took;
        }
        let planned: f64 =
            plan.parts.iter().filter(|part| self.took_s.contains_key(&part.name)).map(|part| part.seconds).sum();
        let took: f64 = self.took_s.values().sum();
        let pace = if planned > 0.0 { (took / planned).clamp(0.25, 4.0) } else { 1.0 };
        part.seconds * pace
    }

    /// Returns the expected duration of the rest of the run, beginning with a part of a turn.
    fn left_s(&self, plan: &Plan, out: &[&str], turn: u32, at: usize) -> f64 {
        let expected = |part: &PlannedBench| {
            if out.contains(&part.name.as_str()) { 0.0 } else { self.expected_s(plan, part) }
        };
        let this: f64 = plan.parts[at..].iter().map(expected).sum();
        let others: f64 = plan.parts.iter().map(expected).sum::<f64>() * f64::from(plan.turns - turn);
        (this + others).min(plan.limit_s - self.began.elapsed().as_secs_f64())
    }

    /// Runs one turn of one part, for at most `limit_s`.
    fn part(&mut self, part: &PlannedBench, turn: u32, limit_s: f64, note: &str, left_s: f64) -> anyhow::Result<Ended> {
        let command = self.scratch.without_names(&format!("pagefold-bench {} --json", part.args.join(" ")));
        self.keep(Line::new([ABOUT, &part.name, &command, "turn", ""], f64::from(turn)))?;
        let mut progress = Progress::new(note, left_s);
        let start = Instant::now();
        let child = Command::new(&self.program)
            .args(&part.args)
            .arg("--json")
            .env("TMPDIR", &self.scratch.disk)
            // A backtrace would hide the one line that explains a failure.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A separate process group: the terminal's ^C reaches only this program, and what a
            // part starts can be ended with it.
            .process_group(0)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                self.keep(Line::new([ABOUT, &part.name, &format!("cannot start: {error}"), "failed", ""], 0.0))?;
                return Ok(Ended::Itself);
            }
        };
        let output = outputs(&mut child);
        let mut last: VecDeque<String> = VecDeque::new();
        let (mut ended, mut status): (Ended, Option<(ExitStatus, Instant)>) = (Ended::Itself, None);
        loop {
            match output.recv_timeout(LOOK) {
                Ok(Output::Figure(text)) => match Line::parse(&text) {
                    Ok(line) if line.bench != ABOUT => self.keep(line)?,
                    // With --json, a bench prints only figures.
                    _ => last.push_back(format!("not a figure: {text}")),
                },
                Ok(Output::Said(text)) => {
                    if let Some(missing) = text.strip_prefix("SKIPPED: ") {
                        self.keep(Line::new([ABOUT, &part.name, missing, "missing", ""], 0.0))?;
                    } else if !text.trim().is_empty() {
                        last.push_back(text);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if status.is_some() => break,
                // The part has closed its output but still runs.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(LOOK),
            }
            last.drain(..last.len().saturating_sub(LAST_LINES));
            progress.show(start.elapsed().as_secs_f64());
            match status {
                Some((_, at)) if at.elapsed() > AFTER_END => break,
                Some(_) => {}
                None => {
                    if ended == Ended::Itself {
                        ended = self.why_end(start, limit_s);
                        if ended != Ended::Itself {
                            end_group(&child);
                        }
                    }
                    status = child.try_wait()?.map(|status| (status, Instant::now()));
                }
            }
        }
        // A part may leave servers behind.
        end_group(&child);
        progress.end();
        let seconds = start.elapsed().as_secs_f64();
        let status = status.map(|(status, _)| status);
        let failure = match ended {
            Ended::Limit => Some(format!("ended after {seconds:.0} s: the time of the run is up")),
            Ended::Stop => Some("ended by a signal".to_owned()),
            Ended::Itself if status.is_some_and(|status| status.success()) => None,
            Ended::Itself => Some(failure(status, &last)),
        };
        match failure {
            Some(why) => {
                eprintln!("{}: {why}", part.name);
                self.keep(Line::new([ABOUT, &part.name, &why, "failed", "s"], seconds))?;
            }
            None => {
                self.took_s.insert(part.name.clone(), seconds);
                self.keep(Line::new([ABOUT, &part.name, "pagefold-bench", "seconds", "s"], seconds))?;
            }
        }
        let killed = status.is_some_and(|status| status.signal().is_some());
        Ok(if ended == Ended::Itself && killed { Ended::Limit } else { ended })
    }

    fn why_end(&self, start: Instant, limit_s: f64) -> Ended {
        if self.stop.load(Relaxed) {
            Ended::Stop
        } else if start.elapsed().as_secs_f64() > limit_s {
            Ended::Limit
        } else {
            Ended::Itself
        }
    }
}

/// Returns in one line why a part failed.
fn failure(status: Option<ExitStatus>, last: &VecDeque<String>) -> String {
    let said = last.iter().rfind(|line| line.starts_with("Error: ")).or(last.back());
    let said = said.map(|line| line.trim_start_matches("Error: ").to_owned());
    match (status.and_then(|status| status.signal()), said) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(said)) => said,
        (None, None) => status.map_or_else(|| "failed".to_owned(), |status| status.to_string()),
    }
}

/// Kills all processes of a part.
fn end_group(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The group may have exited already.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Returns a channel with the lines that a process writes.
fn outputs(child: &mut Child) -> Receiver<Output> {
    let (sender, receiver) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        pass_on(stdout, sender.clone(), Output::Figure);
    }
    if let Some(stderr) = child.stderr.take() {
        pass_on(stderr, sender, Output::Said);
    }
    receiver
}

fn pass_on(from: impl Read + Send + 'static, to: Sender<Output>, of: fn(String) -> Output) {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if to.send(of(text)).is_err() {
                break;
            }
            line.clear();
        }
    });
}

/// Shows on the terminal what runs and how long the rest will take. Without a terminal, prints a
/// line for each part.
struct Progress<'a> {
    note: &'a str,
    left_s: f64,
    is_terminal: bool,
    shown_s: Option<u64>,
}

impl<'a> Progress<'a> {
    fn new(note: &'a str, left_s: f64) -> Self {
        let is_terminal = io::stderr().is_terminal();
        if !is_terminal {
            eprintln!("{note}; about {} left", minutes(left_s));
        }
        Self { note, left_s, is_terminal, shown_s: None }
    }

    fn show(&mut self, elapsed_s: f64) {
        let second = elapsed_s as u64;
        if self.is_terminal && self.shown_s.replace(second) != Some(second) {
            eprint!("\r\x1b[K{}; about {} left", self.note, minutes(self.left_s - elapsed_s));
        }
    }

    fn end(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// Unmounts what a killed part left mounted in the run's folders.
pub(super) fn unmount_below(scratch: &Scratch) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let below: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1).map(PathBuf::from))
        .filter(|at| at.starts_with(&scratch.disk) || at.starts_with(&scratch.memory))
        .collect();
    // In reverse order of mounting. A lazy unmount works even if a process has a file open there.
    for at in below.iter().rev() {
        let unmounted = |command: &[&str]| {
            let status = Command::new(command[0]).args(&command[1..]).arg(at).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        if !unmounted(&["umount", "-l"]) && !unmounted(&["fusermount3", "-uz"]) {
            eprintln!("{} could not be unmounted", at.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs shell scripts as parts.
    struct Fixture {
        folder: tempfile::TempDir,
        scratch: Scratch,
        stop: Arc<AtomicBool>,
    }

    /// Returns a script that prints a figure of a case.
    fn figure(case: &str, value: f64) -> String {
        format!("echo '{}'", Line::new(["b", case, "pagefold", "m", "MB/s"], value).json())
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let scratch = Scratch { disk: folder.path().to_owned(), memory: folder.path().to_owned() };
            Self { folder, scratch, stop: Arc::default() }
        }

        fn plan(scripts: &[&str], turns: u32, limit_s: f64) -> Plan {
            let part = |(at, script): (usize, &&str)| PlannedBench {
                name: format!("part {at}"),
                args: vec!["-c".to_owned(), (*script).to_owned()],
                seconds: 0.1,
                needs: Vec::new(),
            };
            Plan { parts: scripts.iter().enumerate().map(part).collect(), turns, limit_s }
        }

        /// Returns the record read back from a run's file, and the number of pages written.
        fn run(&self, plan: &Plan, after_page: &mut dyn FnMut(&Record)) -> (Record, usize) {
            let path = self.folder.path().join("run.jsonl");
            let mut run = Run::new(Path::new("/bin/sh"), &path, &self.scratch, Arc::clone(&self.stop)).unwrap();
            let mut pages = 0;
            let mut page = |record: &Record| {
                pages += 1;
                after_page(record);
                Ok(())
            };
            run.follow(plan, &|_| None, &mut page, &mut || ()).unwrap();
            let read = Record::read(&path).unwrap();
            assert_eq!(read.turns, run.record.turns);
            assert_eq!(read.series.len(), run.record.series.len());
            (read, pages)
        }
    }

    #[test]
    fn parts_take_turns_and_every_figure_is_kept() {
        let fixture = Fixture::new();
        let scripts = [figure("a", 1.0), figure("c", 2.0)];
        let scripts: Vec<&str> = scripts.iter().map(String::as_str).collect();
        let (record, pages) = fixture.run(&Fixture::plan(&scripts, 2, 60.0), &mut |_| ());
        let order: Vec<(&str, u32)> = record.turns.iter().map(|turn| (turn.part.as_str(), turn.number)).collect();
        assert_eq!(order, [("part 0", 1), ("part 1", 1), ("part 0", 2), ("part 1", 2)]);
        assert!(record.series.values().all(|series| series.spread().turns == 2));
        assert!(record.turns.iter().all(|turn| turn.seconds.is_some() && turn.failure.is_none()));
        assert_eq!(pages, 5);
    }

    #[test]
    fn a_part_that_fails_or_is_killed_is_named_and_the_rest_goes_on() {
        let fixture = Fixture::new();
        let failing =
            format!("{}; echo 'SKIPPED: zram: no root' >&2; echo 'Error: no <disk>' >&2; exit 1", figure("a", 1.0));
        let last = figure("c", 2.0);
        let (record, _) = fixture
            .run(&Fixture::plan(&[&failing, "kill -9 $$", "echo nonsense; exit 3", &last], 3, 60.0), &mut |_| ());
        let failures: Vec<Option<&str>> = record.turns.iter().map(|turn| turn.failure.as_deref()).collect();
        // Parts that failed twice are not tried again.
        let turn = [Some("no <disk>"), Some("killed by signal 9"), Some("not a figure: nonsense"), None];
        assert_eq!(failures, [&turn[..], &turn[..], &[None]].concat());
        assert_eq!(record.turns[0].missing, ["zram: no root"]);
        assert_eq!(record.series.len(), 2);
    }

    #[test]
    fn a_part_over_the_limit_is_ended_with_all_it_started() {
        let fixture = Fixture::new();
        let marker = fixture.folder.path().join("late");
        let slow = format!("{}; (sleep 3; touch '{}') & sleep 60", figure("a", 1.0), marker.display());
        let start = Instant::now();
        let (record, _) = fixture.run(&Fixture::plan(&[&slow, "true"], 1, 1.0), &mut |_| ());
        assert!(start.elapsed() < Duration::from_secs(30));
        let failure = record.turns[0].failure.as_deref().unwrap();
        assert!(failure.contains("the time of the run is up"), "{failure}");
        assert_eq!(record.series.len(), 1);
        assert_eq!(record.left_out.len(), 1);
        thread::sleep(Duration::from_secs(3).saturating_sub(start.elapsed()) + Duration::from_millis(500));
        assert!(!marker.exists());
    }

    #[test]
    fn an_interrupted_run_keeps_its_results() {
        let fixture = Fixture::new();
        let scripts = [figure("a", 1.0), format!("{}; sleep 60", figure("c", 2.0)), figure("d", 3.0)];
        let scripts: Vec<&str> = scripts.iter().map(String::as_str).collect();
        let stop = Arc::clone(&fixture.stop);
        let mut seen = Vec::new();
        let (record, _) = fixture.run(&Fixture::plan(&scripts, 2, 100.0), &mut |record| {
            seen.push(record.series.len());
            let stop = Arc::clone(&stop);
            // A signal during the second part does the same.
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(500));
                stop.store(true, Relaxed);
            });
        });
        assert_eq!(seen, [1, 2]);
        assert_eq!(record.series.len(), 2);
        assert!(record.cut_short.unwrap().contains("part 1"));
        assert_eq!(record.turns[1].failure.as_deref(), Some("ended by a signal"));
    }

    #[test]
    fn a_part_without_its_peer_is_left_out_with_how_to_get_it() {
        let fixture = Fixture::new();
        let mut plan = Fixture::plan(&["true", "true"], 1, 60.0);
        plan.parts[0].needs = vec!["fio".to_owned()];
        let path = fixture.folder.path().join("run.jsonl");
        let mut run = Run::new(Path::new("/bin/sh"), &path, &fixture.scratch, Arc::default()).unwrap();
        run.follow(&plan, &|name| Some(format!("{name}: get it")), &mut |_| Ok(()), &mut || ()).unwrap();
        assert_eq!(run.record.left_out, [("part 0".to_owned(), "fio: get it".to_owned())]);
        assert_eq!(run.record.turns.len(), 1);
    }
}
