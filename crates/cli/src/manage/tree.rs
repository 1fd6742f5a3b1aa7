//! The order of disks as a tree: snapshots and forks below the disk that they come from.

use std::collections::HashMap;

use pagefold_control::{DiskRecord, split_snapshot_name};

/// A disk, and what is drawn before its name.
pub(super) struct Branch<'a> {
    pub(super) disk: &'a DiskRecord,
    pub(super) lines: String,
}

/// Returns where a disk is, by its identity.
fn numbers_by_id(disks: &[DiskRecord]) -> HashMap<&str, usize> {
    let known = disks.iter().enumerate().filter(|(_, disk)| !disk.id.is_empty());
    known.map(|(at, disk)| (disk.id.as_str(), at)).collect()
}

/// Gives each fork the name that its origin has now, or says that it is gone.
pub(super) fn name_origins(disks: &mut [DiskRecord]) {
    let ids = numbers_by_id(disks);
    let now = |disk: &DiskRecord| {
        let (id, from) = (disk.from_id.as_deref()?, disk.from.as_deref()?);
        Some(ids.get(id).map_or_else(|| format!("{from} (dropped)"), |&at| disks[at].name.clone()))
    };
    let names: Vec<_> = disks.iter().map(now).collect();
    for (disk, name) in disks.iter_mut().zip(names) {
        disk.from = name.or(disk.from.take());
    }
}

/// The number of levels that are drawn.
const MOST_LEVELS: usize = 16;

/// Returns every disk once, each before those that come from it, and otherwise in the given order.
/// A disk whose origin is not among them is a root.
pub(super) fn branches(disks: &[DiskRecord]) -> Vec<Branch<'_>> {
    let names: HashMap<&str, usize> = disks.iter().enumerate().map(|(at, disk)| (disk.name.as_str(), at)).collect();
    let ids = numbers_by_id(disks);
    let origin = |disk: &DiskRecord| {
        let of_name = |name: &str| names.get(name).copied();
        if let Some((own, _)) = split_snapshot_name(&disk.name) {
            return of_name(own);
        }
        let from = match &disk.from_id {
            Some(id) => ids.get(id.as_str()).copied(),
            None => disk.from.as_deref().and_then(of_name),
        };
        // A disk that was rolled back comes from its own snapshot; the snapshot stays below it.
        from.filter(|&from| split_snapshot_name(&disks[from].name).is_none_or(|(of, _)| of != disk.name))
    };
    let mut below: Vec<Vec<usize>> = disks.iter().map(|_| Vec::new()).collect();
    let mut roots = Vec::new();
    for (at, disk) in disks.iter().enumerate() {
        match origin(disk).filter(|&origin| origin != at) {
            Some(origin) => below[origin].push(at),
            None => roots.push(at),
        }
    }
    let mut seen = vec![false; disks.len()];
    let mut found = Vec::with_capacity(disks.len());
    // Records are taken at different times, so origins could form a circle; then its disks are
    // roots.
    for root in roots.into_iter().chain(0..disks.len()) {
        let mut stack = vec![(root, 0, String::new(), String::new())];
        while let Some((at, level, lines, rest)) = stack.pop() {
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            found.push(Branch { disk: &disks[at], lines });
            let children = &below[at];
            for (number, &child) in children.iter().enumerate().rev() {
                let is_last = number + 1 == children.len();
                let (corner, line) = match is_last {
                    // Lines would otherwise grow with the depth. The disk's origin is in its own column.
                    _ if level == MOST_LEVELS => ("… ", ""),
                    true => ("└ ", "  "),
                    false => ("├ ", "│ "),
                };
                let below = (level + 1).min(MOST_LEVELS);
                stack.push((child, below, format!("{rest}{corner}"), format!("{rest}{line}")));
            }
        }
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use pagefold_control::DiskKind;

    use super::*;

    /// Returns an empty disk.
    pub(in super::super) fn disk(name: &str, from: Option<&str>) -> DiskRecord {
        DiskRecord {
            name: name.to_owned(),
            id: String::new(),
            size_bytes: 0,
            limit_bytes: None,
            read_only: false,
            kind: DiskKind::Ram,
            path: None,
            devices: Vec::new(),
            identity: None,
            from: from.map(str::to_owned),
            from_id: None,
            age_seconds: 0,
            changed_bytes: 0,
            own_bytes: 0,
            snapshots: 0,
            clients: 0,
            max_connections: None,
            bytes_per_second: None,
            socket: None,
            file: None,
            device: None,
            uris: Vec::new(),
        }
    }

    fn drawn(disks: &[(&str, Option<&str>)]) -> Vec<String> {
        let disks: Vec<_> = disks.iter().map(|(name, from)| disk(name, *from)).collect();
        branches(&disks).iter().map(|branch| format!("{}{}", branch.lines, branch.disk.name)).collect()
    }

    #[test]
    fn forks_and_snapshots_are_below_their_disk() {
        let disks = [
            ("base", None),
            ("job-1", Some("base")),
            ("job-1@a", Some("job-1")),
            ("job-1@b", Some("job-1")),
            ("job-2", Some("job-1@a")),
            ("job-3", Some("base")),
            ("other", Some("gone")),
        ];
        let expected = ["base", "├ job-1", "│ ├ job-1@a", "│ │ └ job-2", "│ └ job-1@b", "└ job-3", "other"];
        assert_eq!(drawn(&disks), expected);
    }

    /// Its origin has another name now, or is gone, and a younger disk has the old name.
    #[test]
    fn a_fork_is_below_no_other_disk_of_its_origins_name() {
        let known = |name: &str, id: &str, from: Option<(&str, &str)>| DiskRecord {
            id: id.to_owned(),
            from_id: from.map(|(_, id)| id.to_owned()),
            ..disk(name, from.map(|(name, _)| name))
        };
        let mut disks = [
            known("x", "3", None),
            known("xx", "1", None),
            known("xx@s", "2", Some(("x", "1"))),
            known("y", "4", Some(("x", "1"))),
            known("z", "5", Some(("x", "0"))),
            known("zz", "6", Some(("w", "7"))),
        ];
        name_origins(&mut disks);
        let from: Vec<_> = disks.iter().map(|disk| disk.from.as_deref().unwrap_or("-")).collect();
        assert_eq!(from, ["-", "-", "xx", "xx", "x (dropped)", "w (dropped)"]);
        let drawn: Vec<_> = branches(&disks).iter().map(|at| format!("{}{}", at.lines, at.disk.name)).collect();
        assert_eq!(drawn, ["x", "xx", "├ xx@s", "└ y", "z", "zz"]);
    }

    #[test]
    fn a_disk_that_was_rolled_back_keeps_its_place() {
        assert_eq!(drawn(&[("a", Some("a@s")), ("a@s", Some("a"))]), ["a", "└ a@s"]);
    }

    #[test]
    fn lines_of_a_long_chain_are_short() {
        let names: Vec<String> = (0..10_000).map(|number| format!("n{number}")).collect();
        let below = |at: usize| at.checked_sub(1).map(|at| &*names[at]);
        let chain: Vec<_> = names.iter().enumerate().map(|(at, name)| (&**name, below(at))).collect();
        let drawn = drawn(&chain);
        assert_eq!((&*drawn[2], drawn.len()), ("  └ n2", 10_000));
        assert_eq!(drawn[16].trim_start(), "└ n16");
        for line in &drawn[17..] {
            assert!(line.starts_with(&format!("{}… n", "  ".repeat(16))), "{line}");
        }
    }

    #[test]
    fn circles_are_cut() {
        let mut drawn = drawn(&[("a", Some("b")), ("b", Some("a")), ("c", Some("c"))]);
        drawn.sort();
        assert_eq!(drawn, ["a", "c", "└ b"]);
    }
}
