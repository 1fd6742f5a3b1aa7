//! `pagefold disks`: lists a server's disks.

use std::io::{self, Write};

use anyhow::ensure;
use pagefold_control::{Command, DiskKind, DiskRecord, Failure, Listing, split_snapshot_name};

use crate::{image::show, output::output, peer::Peer, size};

/// List disks, bases and snapshots
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold disks
  pagefold disks job-1
  pagefold disks --json | jq -r .uris[0]

CHANGED counts the pages that a disk wrote itself, without those that it shares with the disk it \
was forked from. RAM is the memory that they take. Both include pages that only the disk's \
snapshots or forks still use.")]
pub(crate) struct Args {
    /// Show only these disks and their snapshots, with all details and their URIs
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    peer: Peer,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { names, peer, json } = args;
    let mut listing: Listing = peer.connect()?.call(&Command::List {})?;
    if !names.is_empty() {
        for name in names {
            ensure!(listing.disks.iter().any(|disk| disk.name == *name), Failure::no_such_disk(name));
        }
        listing.disks.retain(|disk| names.iter().any(|name| is_of(&disk.name, name)));
    }
    let mut out = output();
    match (json, names.is_empty()) {
        (true, _) => {
            for disk in &listing.disks {
                writeln!(out, "{}", serde_json::to_string(disk)?)?;
            }
        }
        (false, true) => table(&mut out, &listing.disks)?,
        (false, false) => {
            for disk in &listing.disks {
                writeln!(out, "{}", show(words(disk).as_bytes()))?;
            }
        }
    }
    Ok(out.flush()?)
}

/// Returns whether `name` is the disk or one of its snapshots.
fn is_of(name: &str, disk: &str) -> bool {
    name == disk || split_snapshot_name(name).is_some_and(|(of, _)| of == disk)
}

/// Writes one line per disk, 80 columns wide if names are short.
fn table(out: &mut dyn Write, disks: &[DiskRecord]) -> io::Result<()> {
    if disks.is_empty() {
        return Ok(());
    }
    let shown = |name: &str| if name.is_empty() { "''".to_owned() } else { show(name.as_bytes()) };
    let names: Vec<_> = disks.iter().map(|disk| shown(&disk.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).clamp(8, 20);
    writeln!(
        out,
        "{:<width$}  {:>8}  {:>8}  {:>8}  {:>6}  {:>7}  FROM",
        "NAME", "SIZE", "CHANGED", "RAM", "AGE", "CLIENTS"
    )?;
    for (name, disk) in names.iter().zip(disks) {
        let (changed, own) = match disk.kind {
            DiskKind::Base => ("-".to_owned(), "-".to_owned()),
            _ => (size::show(disk.changed_bytes), size::show(disk.own_bytes)),
        };
        let from = disk.from.as_deref().or(disk.path.as_deref()).unwrap_or("-");
        let (size, age, clients) = (size::show(disk.size_bytes), age(disk.age_seconds), disk.clients);
        let line = format!("{name:<width$}  {size:>8}  {changed:>8}  {own:>8}  {age:>6}  {clients:>7}  ");
        writeln!(out, "{line}{}", shown(from))?;
    }
    Ok(())
}

/// Formats a duration in the largest unit of which there are at least two.
fn age(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    unit.map_or_else(|| format!("{seconds} s"), |(unit, name)| format!("{} {name}", seconds / unit))
}

fn words(disk: &DiskRecord) -> String {
    let mut words = format!("'{}'  {}", disk.name, size::show(disk.size_bytes));
    if let Some(limit) = disk.limit_bytes {
        words += &format!(", limit {}", size::show(limit));
    }
    if disk.read_only {
        words += ", read-only";
    }
    if let Some(from) = &disk.from {
        words += &format!(", forked from '{from}'");
    }
    if let Some(path) = &disk.path {
        let how = if disk.kind == DiskKind::Base { "of" } else { "over" };
        words += &format!(", {how} {path}");
    }
    if disk.kind != DiskKind::Base {
        words += &format!(", {} changed in {}", size::show(disk.changed_bytes), size::show(disk.own_bytes));
    }
    words += &format!(", made {} ago", age(disk.age_seconds));
    for (count, one, many) in [(disk.snapshots, "snapshot", "snapshots"), (disk.clients, "client", "clients")] {
        match count {
            0 => {}
            1 => words += &format!(", 1 {one}"),
            count => words += &format!(", {count} {many}"),
        }
    }
    for uri in &disk.uris {
        words += &format!("  '{uri}'");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_a_terminal() {
        let disk = |name: &str, from: Option<&str>| DiskRecord {
            name: name.to_owned(),
            size_bytes: 1023 << 40,
            limit_bytes: None,
            read_only: false,
            kind: DiskKind::Ram,
            path: None,
            from: from.map(str::to_owned),
            age_seconds: 999 * 86_400,
            changed_bytes: 1000 << 20,
            own_bytes: 100 << 10,
            snapshots: 0,
            clients: 99,
            max_connections: None,
            bytes_per_second: None,
            socket: None,
            uris: Vec::new(),
        };
        let mut out = Vec::new();
        table(&mut out, &[disk("debian", None), disk("job-1@before-upgrade", Some("job-1"))]).expect("memory");
        let text = String::from_utf8(out).expect("text");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert_eq!(text.lines().count(), 3);
        assert!(is_of("a", "a") && is_of("a@b", "a") && !is_of("ab", "a") && !is_of("a", "a@b"));
    }
}
