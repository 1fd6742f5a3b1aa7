//! Log lines about limits that are nearly reached, about disks whose writes wait for room, and about
//! what a server that stops waits for.

use std::{
    collections::{BTreeMap, HashSet, btree_map::Entry},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pagefold_size as size;

use crate::{
    Server,
    disks::Use,
    ending::{Ending, waits_for},
};

/// Interval between two checks.
const PAUSE: Duration = Duration::from_secs(1);

/// A warning is logged once this percentage of a limit is used.
const NEAR_PERCENT: u64 = 90;

/// The warning is logged again only after usage has fallen below this percentage.
const FAR_PERCENT: u64 = 80;

/// Minimum interval between two lines that a disk waits: at its limit, it may wait and continue
/// many times a second.
const WAIT_PAUSE: Duration = Duration::from_secs(60);

/// Checks the disks once a second until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(server: Server, ending: Ending) -> std::io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let look = move || {
            let mut near = Near::default();
            let mut waits = Waits::default();
            let mut waited_for = None;
            let (disks, observer) = (&server.0.disks, &server.0.observer);
            // Nothing is sent; the channel closes when the watch ends.
            while ended.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
                near.look(disks.uses()).iter().for_each(|line| observer.warn(line));
                waits.look(disks.waiting(), Instant::now()).iter().for_each(|line| observer.warn(line));
                let waiting = ending.is_slow().then(|| waits_for(&disks.busy()));
                if let Some(what) = waiting.filter(|what| waited_for.as_ref() != Some(what)) {
                    let way_out = "a second signal, or 'pagefold stop --force', ends it without waiting";
                    observer.warn(&format!("{what}; {way_out}"));
                    waited_for = Some(what);
                }
            }
        };
        let thread = thread::Builder::new().name("limits".to_owned()).spawn(look)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

/// The limits that were nearly reached and have been reported.
#[derive(Default)]
struct Near(HashSet<Option<String>>);

impl Near {
    /// Returns the lines about limits that are now nearly reached.
    fn look(&mut self, uses: Vec<Use>) -> Vec<String> {
        let mut lines = Vec::new();
        let mut near = HashSet::new();
        for Use { name, spent_bytes, limit_bytes } in uses {
            let reaches = |percent: u64| u128::from(spent_bytes) * 100 >= u128::from(limit_bytes) * u128::from(percent);
            let was_near = self.0.contains(&name);
            if !was_near && reaches(NEAR_PERCENT) {
                let (what, option) = match &name {
                    Some(name) => (format!("disk '{name}'"), format!("pagefold limit '{name}' SIZE")),
                    None => ("the server".to_owned(), "pagefold limit SIZE".to_owned()),
                };
                let (spent, limit) = (size::show(spent_bytes), size::written(limit_bytes));
                lines.push(format!("{what} uses {spent} of its limit of {limit}; raise it with {option}"));
            }
            if reaches(if was_near { FAR_PERCENT } else { NEAR_PERCENT }) {
                near.insert(name);
            }
        }
        self.0 = near;
        lines
    }
}

/// Disks that have been reported as waiting or as continuing, and when.
#[derive(Default)]
struct Waits(BTreeMap<String, Reported>);

struct Reported {
    /// When it was last reported that the disk waits.
    at: Instant,
    /// Whether it was reported that the disk waits, but not yet that it continues.
    waits: bool,
}

impl Waits {
    /// Returns the lines about disks that wait or no longer wait, given the number of waiting
    /// requests of each.
    fn look(&mut self, waiting: Vec<(String, u64)>, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        let names: HashSet<&str> = waiting.iter().map(|(name, _)| name.as_str()).collect();
        for (name, reported) in &mut self.0 {
            if reported.waits && !names.contains(name.as_str()) {
                reported.waits = false;
                lines.push(format!("disk '{name}': writes no longer wait for room"));
            }
        }
        self.0.retain(|_, reported| reported.waits || now.duration_since(reported.at) < WAIT_PAUSE);
        for (name, _) in waiting {
            if let Entry::Vacant(entry) = self.0.entry(name) {
                let name = entry.key();
                lines.push(format!(
                    "disk '{name}': writes wait for room; 'pagefold limit' sets another limit for the server or the disk"
                ));
                entry.insert(Reported { at: now, waits: true });
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_waits_and_its_end_are_logged_once() {
        let start = Instant::now();
        let mut waits = Waits::default();
        let mut lines = |seconds, waiting: u64| {
            let waiting = (waiting > 0).then(|| ("a".to_owned(), waiting)).into_iter().collect();
            waits.look(waiting, start + Duration::from_secs(seconds)).concat()
        };
        assert_eq!(lines(0, 0), "");
        assert!(lines(1, 3).contains("disk 'a': writes wait"));
        assert_eq!(lines(2, 1), "");
        assert!(lines(3, 0).contains("no longer wait"));
        assert_eq!([lines(4, 1), lines(5, 0), lines(60, 1)].concat(), "", "logged less than a minute ago");
        assert!(lines(61, 1).contains("writes wait"));
        assert!(lines(200, 0).contains("no longer wait"));
    }

    #[test]
    fn a_limit_that_is_near_is_logged_once() {
        let mut near = Near::default();
        let mut lines = |spent_bytes| {
            let disk = Use { name: Some("a".to_owned()), spent_bytes, limit_bytes: 1000 };
            near.look(vec![disk, Use { name: None, spent_bytes: 0, limit_bytes: u64::MAX }]).len()
        };
        let steps = [(0, 0), (899, 0), (900, 1), (1000, 0), (850, 0), (900, 0), (799, 0), (899, 0), (950, 1)];
        for (spent_bytes, expected) in steps {
            assert_eq!(lines(spent_bytes), expected, "{spent_bytes}");
        }
    }
}
