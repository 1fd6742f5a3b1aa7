//! Two answers of the server, and the rates between them.

use std::{collections::HashMap, time::Instant};

use pagefold_control::{DiskKind, Figures, Stat};

use crate::stat::get;

/// An answer of the server, and its time.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) stat: Stat,
}

/// Operations with columns of their own are the first two.
const OPERATIONS: [&str; 6] = ["read", "write", "discard", "write_zeroes", "flush", "other"];

/// The requests of clients per second, and their times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) requests: f64,
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
    pub(super) errors: f64,
    /// Means in nanoseconds; `None` if none was measured.
    pub(super) read_ns: Option<f64>,
    pub(super) write_ns: Option<f64>,
}

/// The figures shown of a disk, or of all of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) size_bytes: u64,
    pub(super) stored_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) waiting: u64,
    pub(super) rates: Rates,
}

impl Row {
    /// Returns how many bytes of pages a byte of memory holds.
    pub(super) fn ratio(&self) -> Option<f64> {
        (self.memory_bytes > 0 && self.stored_bytes > 0).then(|| self.stored_bytes as f64 / self.memory_bytes as f64)
    }
}

/// The figures shown of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) uptime_seconds: u64,
    pub(super) codec: String,
    pub(super) connections: u64,
    pub(super) limit_bytes: Option<u64>,
    pub(super) all: Row,
    pub(super) disks: Vec<Row>,
}

/// Returns the rates between two answers. The name may belong to another disk than before; a figure
/// that became smaller counts as 0.
fn rates(before: &Figures, now: &Figures, seconds: f64) -> Rates {
    let more = |name: String| get(now, &name).saturating_sub(get(before, &name)) as f64;
    let rate = |operation: &str, figure: &str| {
        if seconds > 0.0 { more(format!("{operation}_{figure}")) / seconds } else { 0.0 }
    };
    let mean = |operation: &str| {
        let timed = more(format!("{operation}_timed"));
        (timed > 0.0).then(|| more(format!("{operation}_timed_ns")) / timed)
    };
    Rates {
        requests: OPERATIONS.iter().map(|operation| rate(operation, "requests")).sum(),
        reads: rate("read", "requests"),
        writes: rate("write", "requests"),
        read_bytes: rate("read", "bytes"),
        written_bytes: rate("write", "bytes"),
        errors: OPERATIONS.iter().map(|operation| rate(operation, "errors")).sum(),
        read_ns: mean("read"),
        write_ns: mean("write"),
    }
}

/// Returns the figures to show for the time between two answers.
pub(super) fn figures(before: &Sample, now: &Sample) -> Shown {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let earlier: HashMap<_, _> = before.stat.disks.iter().map(|disk| (&disk.name, &disk.figures)).collect();
    let none = Figures::new();
    let disks = now.stat.disks.iter().map(|disk| Row {
        name: disk.name.clone(),
        kind: match disk.kind {
            DiskKind::Base => "base",
            DiskKind::Snapshot => "snapshot",
            _ => "disk",
        },
        size_bytes: disk.size_bytes,
        stored_bytes: get(&disk.figures, "orig_data_size"),
        memory_bytes: get(&disk.figures, "spent_bytes"),
        waiting: get(&disk.figures, "waiting_requests"),
        rates: earlier.get(&disk.name).map_or_else(Rates::default, |before| rates(before, &disk.figures, seconds)),
    });
    let (server, old) = (&now.stat.server, &before.stat.server);
    let old = if server.pid == old.pid { &old.figures } else { &none };
    let spent_bytes = get(&server.figures, "spent_bytes").saturating_sub(get(&server.figures, "clean_bytes"));
    let disks: Vec<_> = disks.collect();
    Shown {
        version: server.version.clone(),
        pid: server.pid,
        uptime_seconds: server.uptime_seconds,
        codec: server.codec.clone(),
        connections: get(&server.figures, "connections"),
        limit_bytes: server.limit_bytes,
        all: Row {
            name: String::new(),
            kind: "all",
            size_bytes: disks.iter().map(|disk| disk.size_bytes).sum(),
            stored_bytes: get(&server.figures, "orig_data_size"),
            memory_bytes: spent_bytes,
            waiting: get(&server.figures, "waiting_requests"),
            rates: rates(old, &server.figures, seconds),
        },
        disks,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn sample(at: Instant, reads: u64) -> Sample {
        let figures = json!({"orig_data_size": 4096, "spent_bytes": 1024, "read_requests": reads,
            "read_bytes": reads * 4096, "read_errors": 1, "read_timed": reads / 16, "read_timed_ns": reads * 1000,
            "connections": 3});
        let stat = json!({
            "server": {"version": "1.0.0", "pid": 7, "uptime_seconds": 60, "codec": "fold", "disks": 2,
                "limit_bytes": 1 << 20, "figures": figures},
            "disks": [
                {"name": "a", "size_bytes": 8192, "limit_bytes": null, "kind": "ram", "figures": figures},
                {"name": "b", "size_bytes": 8192, "limit_bytes": null, "kind": "base", "figures": {}},
            ],
        });
        Sample { at, stat: serde_json::from_value(stat).expect("figures") }
    }

    #[test]
    fn rates_are_differences() {
        let start = Instant::now();
        let shown = figures(&sample(start, 160), &sample(start + Duration::from_secs(4), 320));
        let Rates { requests, reads, read_bytes, errors, read_ns, write_ns, .. } = shown.disks[0].rates;
        assert_eq!((requests, reads, read_bytes, errors), (40.0, 40.0, 163_840.0, 0.0));
        assert_eq!((read_ns, write_ns), (Some(16_000.0), None));
        assert_eq!(shown.disks[0].ratio(), Some(4.0));
        assert_eq!((shown.disks[1].kind, shown.disks[1].ratio()), ("base", None));
        assert_eq!(shown.all.rates, shown.disks[0].rates);
        // There is no earlier answer at the start, or for a disk that replaces another.
        assert_eq!(figures(&sample(start, 16), &sample(start, 32)).all.rates.reads, 0.0);
        assert_eq!(figures(&sample(start, 32), &sample(start + Duration::from_secs(1), 16)).all.rates.reads, 0.0);
    }
}
