//! The machine that a run measures on.

use std::{env, fs, num::NonZero, thread};

/// Returns the number of CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Describes the machine.
pub(crate) fn description() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name));
        line.map(|(_, value)| value.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| env::consts::ARCH.to_owned());
    let uname = rustix::system::uname();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok())
        .unwrap_or(0);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let cpus = cpus();
    let plural = if cpus == 1 { "" } else { "s" };
    format!(
        "{cpus} CPU{plural} ({model}), {:.0} GiB of memory, {} {}, pagefold {}, load {load} at the start",
        kib as f64 / f64::from(1 << 20),
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy(),
        env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_named() {
        let machine = description();
        assert!(machine.contains("CPU") && machine.contains("GiB"), "{machine}");
    }
}
