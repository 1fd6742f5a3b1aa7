//! What a report runs, `data/plan.txt`: other benches of this program as parts, each with its
//! expected time.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// A bench with its options.
#[derive(Clone, Debug)]
pub(super) struct PlannedBench {
    pub(super) name: String,
    /// Command line of this program.
    pub(super) args: Vec<String>,
    /// Expected duration of a turn on two CPUs, used until this run has measured it.
    pub(super) seconds: f64,
    /// Peers without which there is nothing to measure.
    pub(super) needs: Vec<String>,
}

/// The parts of a report, which take turns.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) parts: Vec<PlannedBench>,
    pub(super) turns: u32,
    /// Time limit. A part that would end later is not started, and a part that runs longer is
    /// ended.
    pub(super) limit_s: f64,
}

/// Where parts keep files.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    pub(super) disk: PathBuf,
    /// The folder for files that should be in memory, if possible.
    pub(super) memory: PathBuf,
}

impl Scratch {
    /// Returns a command line that a reader can run: temporary folders, which are removed after the
    /// run, are replaced by their parents.
    pub(super) fn without_names(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for folder in [&self.disk, &self.memory] {
            if let (Some(name), Some(parent)) = (folder.to_str(), folder.parent().and_then(Path::to_str)) {
                line = line.replace(&format!("{name} "), &format!("{parent} "));
            }
        }
        line
    }
}

/// The data that the user named.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    /// Files whose pages are stored and compressed.
    pub(super) files: Vec<PathBuf>,
    /// Files and directories that become images.
    pub(super) images: Vec<PathBuf>,
    /// Directories that become the base of forks.
    pub(super) directories: Vec<PathBuf>,
}

/// 5 and 45 minutes, less the time for the last page and for a part that ends late.
const QUICK_LIMIT_S: f64 = 285.0;
const FULL_LIMIT_S: f64 = 2640.0;

impl Plan {
    pub(super) fn new(
        quick: bool,
        named: &Named,
        has: &dyn Fn(&str) -> bool,
        scratch: &Scratch,
    ) -> anyhow::Result<Self> {
        let mut parts = Vec::new();
        let rows = include_str!("../data/plan.txt").lines().filter(|row| !row.starts_with('#'));
        for row in rows {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [name, quick_s, full_s, more, needs, quick_line, full_line] = cells[..] else { bail!("plan: {row}") };
            let (line, seconds) = if quick { (quick_line, quick_s) } else { (full_line, full_s) };
            if line.is_empty() {
                continue;
            }
            let part = PlannedBench {
                name: name.to_owned(),
                args: line.split_whitespace().map(str::to_owned).collect(),
                seconds: seconds.parse().with_context(|| format!("plan: {row}"))?,
                needs: needs.split_whitespace().map(str::to_owned).collect(),
            };
            let more: Vec<&str> = more.split_whitespace().collect();
            parts.extend(with_options(part, &more, named, has, scratch));
        }
        let (turns, limit_s) = if quick { (3, QUICK_LIMIT_S) } else { (5, FULL_LIMIT_S) };
        Ok(Self { parts, turns, limit_s })
    }
}

/// Appends options; returns a part for each image.
fn with_options(
    mut part: PlannedBench,
    more: &[&str],
    named: &Named,
    has: &dyn Fn(&str) -> bool,
    scratch: &Scratch,
) -> Vec<PlannedBench> {
    let [disk, memory] = [&scratch.disk, &scratch.memory].map(|path| path.display().to_string());
    let data = |part: &mut PlannedBench, paths: &[PathBuf]| {
        let flag = (!paths.is_empty()).then(|| "--data".to_owned());
        part.args.extend(flag.into_iter().chain(paths.iter().map(|path| path.display().to_string())));
    };
    let own = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    for option in more {
        match *option {
            "pages" => data(&mut part, &named.files),
            "directories" => data(&mut part, &named.directories),
            "folders" => part.args.extend(own(&["--scratch", &disk, "--tmpfs", &memory])),
            "zram" if !has("zram") => part.args.push("--no-zram".to_owned()),
            "images" => part.args.extend(own(&["--extract-to", &memory])),
            _ => {}
        }
    }
    if !more.contains(&"images") || named.images.is_empty() {
        return vec![part];
    }
    let of = |path: &PathBuf| {
        let mut part = PlannedBench { name: format!("{} {}", part.name, path.display()), ..part.clone() };
        data(&mut part, std::slice::from_ref(path));
        part
    };
    named.images.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names_of_their_own_and_one_turn_leaves_room_for_a_second() {
        let scratch = Scratch { disk: "/d".into(), memory: "/m".into() };
        for quick in [true, false] {
            let plan = Plan::new(quick, &Named::default(), &|_| true, &scratch).unwrap();
            let mut names: Vec<&str> = plan.parts.iter().map(|part| part.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), plan.parts.len());
            let turn: f64 = plan.parts.iter().map(|part| part.seconds).sum();
            assert!(turn < plan.limit_s / if quick { 1.4 } else { 3.0 }, "{turn}");
        }
    }
}
