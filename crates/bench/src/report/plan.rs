//! What a report runs: other benches of this program as parts, each with its expected time.

use std::path::{Path, PathBuf};

use super::peers::Peers;

/// A bench with its options.
#[derive(Clone, Debug)]
pub(super) struct PlannedBench {
    pub(super) name: String,
    /// Command line of this program.
    pub(super) args: Vec<String>,
    /// Expected duration of a turn on two CPUs, used until this run has measured it.
    pub(super) seconds: f64,
    /// Peers without which there is nothing to measure.
    pub(super) needs: &'static [&'static str],
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
    /// In memory if possible.
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

/// Codecs in the sources' tables and in the comparisons.
const CODECS: &str = "lz4,lz4dyn,fold,lzo,pleat,pleat-trained,liblz4,liblzo2,libzstd-1,libzstd-1-dict,snappy,zxc-3";
const MORE_CODECS: &str = ",842,deflate-1,lz4hc-9,zstd-1,libdeflate-1,zxc-1";

impl Plan {
    pub(super) fn new(quick: bool, named: &Named, peers: &Peers, scratch: &Scratch) -> Self {
        let mut plan = Parts { parts: Vec::new(), quick, named, scratch };
        plan.store(peers);
        plan.servers();
        plan.images();
        plan.codecs(peers);
        let (turns, limit_s) = if quick { (3, QUICK_LIMIT_S) } else { (5, FULL_LIMIT_S) };
        Self { parts: plan.parts, turns, limit_s }
    }
}

/// A plan under construction.
struct Parts<'a> {
    parts: Vec<PlannedBench>,
    quick: bool,
    named: &'a Named,
    scratch: &'a Scratch,
}

/// The command lines for a quick run and a full run.
struct Lines {
    quick: &'static str,
    full: &'static str,
}

impl Parts<'_> {
    fn add(
        &mut self,
        name: &str,
        lines: &Lines,
        seconds: (f64, f64),
        needs: &'static [&'static str],
    ) -> &mut PlannedBench {
        let line = if self.quick { lines.quick } else { lines.full };
        let seconds = if self.quick { seconds.0 } else { seconds.1 };
        let args = line.split_whitespace().map(str::to_owned).collect();
        self.parts.push(PlannedBench { name: name.to_owned(), args, seconds, needs });
        let at = self.parts.len() - 1;
        &mut self.parts[at]
    }

    /// Adds a part that writes pages: those of the files that the user named.
    fn add_pages(&mut self, name: &str, lines: &Lines, seconds: (f64, f64)) -> &mut PlannedBench {
        let files: Vec<String> = self.named.files.iter().map(|path| path.display().to_string()).collect();
        let part = self.add(name, lines, seconds, &[]);
        if !files.is_empty() {
            part.args.push("--data".to_owned());
            part.args.extend(files);
        }
        part
    }

    /// Adds the parts for the store in this process: compared with zram, and with the published
    /// locks, streams and allocators.
    fn store(&mut self, peers: &Peers) {
        let without_zram = |part: &mut PlannedBench| {
            if !peers.has("zram") {
                part.args.push("--no-zram".to_owned());
            }
        };
        let lines = Lines {
            quick: "device --mib 16 --threads 1,0 --request-kib 4 --rounds 1",
            full: "device --mib 32 --threads 1,0 --request-kib 4,128 --rounds 2",
        };
        without_zram(self.add_pages("device", &lines, (8.0, 40.0)));
        let lines = Lines {
            quick: "pool --parts memory --codecs lz4,lz4dyn,lzo,fold --mib 8",
            full: "pool --parts memory --codecs lz4,lz4dyn,lzo,fold,842,deflate-1,lz4hc-9 --mib 32",
        };
        without_zram(self.add_pages("pool memory", &lines, (9.0, 70.0)));
        let lines = Lines { quick: "pool --parts experiment", full: "pool --parts experiment" };
        without_zram(self.add("pool experiment", &lines, (4.0, 4.0), &[]));
        let lines = Lines {
            quick: "pool --parts speed --codecs lz4 --mib 8",
            full: "pool --parts speed --codecs lz4,fold --mib 32",
        };
        self.add_pages("pool speed", &lines, (10.0, 25.0));
        let lines = Lines { quick: "locks --mib 8 --loops 4 --rounds 1", full: "locks --mib 64 --loops 20 --rounds 1" };
        self.add_pages("locks", &lines, (9.0, 50.0));
        let lines = Lines { quick: "streams --jobs 1,2,4 --mib 8 --rounds 1", full: "streams --mib 8 --rounds 2" };
        self.add("streams", &lines, (1.0, 20.0), &[]);
        let lines = Lines {
            quick: "streams --codec lz4dyn --jobs 1,2,4 --mib 8 --rounds 1",
            full: "streams --codec lz4dyn --mib 8 --rounds 2",
        };
        self.add("streams lz4dyn", &lines, (1.0, 20.0), &[]);
        if !self.quick {
            let lines = Lines { quick: "", full: "disks --parts idle,many --rounds 1" };
            self.add_pages("disks", &lines, (0.0, 30.0));
        }
    }

    fn servers(&mut self) {
        let lines = Lines {
            quick: "nbd --shapes 1x16 --seconds 0.2 --warm-up 0.1 --rounds 1 --mib 128 --only 4k",
            full: "nbd --quick --rounds 1 --mib 256",
        };
        let [disk, memory] = [&self.scratch.disk, &self.scratch.memory].map(|path| path.display().to_string());
        let part = self.add_pages("nbd", &lines, (30.0, 150.0));
        part.args.extend(["--scratch".to_owned(), disk.clone(), "--tmpfs".to_owned(), memory.clone()]);
        let directories: Vec<String> = self.named.directories.iter().map(|path| path.display().to_string()).collect();
        let fork = |part: &mut PlannedBench| {
            if !directories.is_empty() {
                part.args.push("--data".to_owned());
                part.args.extend(directories.iter().cloned());
            }
            part.args.extend(["--scratch".to_owned(), disk.clone(), "--tmpfs".to_owned(), memory.clone()]);
        };
        let lines = Lines {
            quick: "fork --parts idle,socket,peers --forks 500 --mib 32",
            full: "fork --parts idle,socket,peers --forks 10000 --mib 256",
        };
        fork(self.add("fork", &lines, (18.0, 60.0), &["mkfs.ext4"]));
        let lines =
            Lines { quick: "fork --parts work --workers 3 --mib 32", full: "fork --parts work --workers 20 --mib 256" };
        fork(self.add("fork work", &lines, (11.0, 60.0), &["mkfs.ext4"]));
    }

    fn images(&mut self) {
        let lines = Lines {
            quick: "image --source-table --mib 32 --rounds 1",
            full: "image --source-table --mib 128 --rounds 2",
        };
        self.add("image source table", &lines, (4.0, 30.0), &[]);
        let lines = Lines {
            quick: "image --mib 8 --rounds 1 --case lz4@4K",
            full: "image --mib 48 --rounds 1 --case lz4@4K --case lz4@64K --case zstd,3@64K",
        };
        let extract_to = ["--extract-to".to_owned(), self.scratch.memory.display().to_string()];
        if self.named.images.is_empty() {
            self.add("image", &lines, (21.0, 110.0), &[]).args.extend(extract_to);
            return;
        }
        let images = self.named.images.clone();
        for path in images {
            let part = self.add(&format!("image {}", path.display()), &lines, (21.0, 110.0), &[]);
            part.args.extend(["--data".to_owned(), path.display().to_string()]);
            part.args.extend(extract_to.iter().cloned());
        }
    }

    fn codecs(&mut self, peers: &Peers) {
        let lines = Lines { quick: "codec --pages 256 --rounds 2", full: "codec --pages 1024 --rounds 3" };
        let mut codecs = CODECS.to_owned();
        if !self.quick {
            codecs.push_str(MORE_CODECS);
        }
        if !peers.has("liblzo2") {
            codecs = codecs.replace("liblzo2,", "");
        }
        self.add_pages("codec", &lines, (22.0, 110.0)).args.extend(["--codecs".to_owned(), codecs]);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn every_part_is_a_command_line_of_this_program() {
        let scratch = Scratch { disk: "/d".into(), memory: "/m".into() };
        let named = Named {
            files: vec!["a file".into(), "b".into()],
            images: vec!["a file".into(), "folder".into()],
            directories: vec!["folder".into()],
        };
        for quick in [true, false] {
            for named in [&Named::default(), &named] {
                let plan = Plan::new(quick, named, &Peers::find(), &scratch);
                for part in &plan.parts {
                    let line = ["pagefold-bench".to_owned()].into_iter().chain(part.args.iter().cloned());
                    let parsed = crate::Args::try_parse_from(line.chain(["--json".to_owned()]));
                    assert!(parsed.is_ok(), "{part:?}: {}", parsed.err().unwrap());
                    assert!(part.seconds > 0.0);
                }
                let mut names: Vec<&str> = plan.parts.iter().map(|part| part.name.as_str()).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), plan.parts.len());
            }
        }
    }

    #[test]
    fn one_turn_fits_the_time_with_room_for_a_second() {
        let scratch = Scratch { disk: "/d".into(), memory: "/m".into() };
        for quick in [true, false] {
            let plan = Plan::new(quick, &Named::default(), &Peers::find(), &scratch);
            let turn: f64 = plan.parts.iter().map(|part| part.seconds).sum();
            assert!(turn < plan.limit_s / if quick { 1.4 } else { 3.0 }, "{turn}");
        }
    }
}
