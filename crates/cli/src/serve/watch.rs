//! Lines about limits that are near.

use std::{
    collections::HashSet,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::disks::{Disks, Use};
use crate::{log::Log, size};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// What is told of, from this part of a limit on, in percent.
const NEAR_PERCENT: u64 = 90;

/// And what is told of again only after it was below this.
const FAR_PERCENT: u64 = 80;

/// Looks at the disks once a second until it is dropped.
pub(crate) struct Watch {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(disks: Arc<Disks>, log: Log) -> std::io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let look = move || {
            let mut near = Near::default();
            // Nothing is ever sent: the channel closes at the end.
            while ended.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
                near.look(disks.uses()).iter().for_each(|line| log.warn(line));
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
            // A panic there has been told.
            let _ = thread.join();
        }
    }
}

/// What was near its limit and was told of.
#[derive(Default)]
struct Near(HashSet<Option<String>>);

impl Near {
    /// The lines about what has come near its limit.
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
                let (spent, limit) = (size::show(spent_bytes), size::show(limit_bytes));
                lines.push(format!("{what} takes {spent} of its limit {limit}; {option} sets another"));
            }
            if reaches(if was_near { FAR_PERCENT } else { NEAR_PERCENT }) {
                near.insert(name);
            }
        }
        self.0 = near;
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_near_is_told_once() {
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
