//! Memory of a pool's disks, as the pool counts it and as the system counts it for the process, and
//! how much remains after the disks are dropped.

use std::{thread, time::Duration};

use pagefold_report::Output;
use pagefold_store::Pool;

use crate::machine::anonymous_bytes;

/// Share of the dropped disks' memory that may remain, and the memory that the C library may keep
/// of its heap in addition, see [`keep_no_large_blocks`](crate::product::keep_no_large_blocks).
const LEFT_SHARE: f64 = 0.02;
const KEPT_BYTES: f64 = (4 << 20) as f64;

/// How long a pool stays idle before memory that it has not returned counts.
const QUIET: Duration = Duration::from_millis(500);

/// Memory that a pool spends, and memory that the process has.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    spent_bytes: u64,
    resident_bytes: u64,
}

impl Memory {
    pub(crate) fn of(pool: &Pool) -> anyhow::Result<Self> {
        Ok(Self { spent_bytes: pool.stats().spent_bytes, resident_bytes: anonymous_bytes()? })
    }

    /// Returns the memory after the pool has returned what it can.
    fn settled(pool: &Pool) -> anyhow::Result<Self> {
        pool.compact();
        thread::sleep(QUIET);
        Self::of(pool)
    }

    /// Returns the increase of both since `before`.
    pub(crate) fn since(self, before: Self) -> [(&'static str, f64); 2] {
        [
            ("spent", self.spent_bytes as f64 - before.spent_bytes as f64),
            ("resident", self.resident_bytes as f64 - before.resident_bytes as f64),
        ]
    }

    /// Judges whether the process has as much memory as `before`, now that the disks made since
    /// then are dropped, and reports how much more the pool spends.
    pub(crate) fn judge_after(output: &mut Output, case: &str, pool: &Pool, before: Self) -> anyhow::Result<()> {
        let after = Self::settled(pool)?;
        output.put(case, "spent_left_bytes", after.spent_bytes as f64 - before.spent_bytes as f64, "bytes");
        let ratio = after.resident_bytes as f64 / before.resident_bytes as f64;
        output.put(case, "resident_after_drop_over_before", ratio, "x");
        Ok(())
    }

    /// Judges how much memory dropped disks have not returned. `before` is the memory before they
    /// were made, `self` the memory with them.
    pub(crate) fn judge_left(self, output: &mut Output, case: &str, pool: &Pool, before: Self) -> anyhow::Result<()> {
        let after = Self::settled(pool)?;
        for ((name, left), (_, taken)) in after.since(before).into_iter().zip(self.since(before)) {
            output.put(case, &format!("{name}_left_bytes"), left, "bytes");
            let allowed = taken * LEFT_SHARE + if name == "resident" { KEPT_BYTES } else { 0.0 };
            output.put(case, &format!("{name}_left_over_allowed"), left / allowed, "x");
        }
        Ok(())
    }
}
