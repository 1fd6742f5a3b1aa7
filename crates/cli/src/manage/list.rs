//! `pagefold disks`: lists a server's disks.

use std::io::Write;

use anyhow::ensure;
use pagefold_control::{Command, DiskKind, DiskRecord, Failure, Listing, split_snapshot_name};

use super::{
    table::{self, Column, USUAL, age},
    tree,
};
use crate::{
    output::output,
    peer::Peer,
    report::print,
    size,
    text::{plain, plain_json},
};

/// List disks, bases and snapshots
#[derive(clap::Args)]
#[command(
    visible_aliases = ["list", "ps"],
    after_help = "Examples:
  pagefold disks
  pagefold disks job-1
  pagefold disks --sort ram --columns name,ram,ratio,age
  pagefold disks --json | jq -r .uris[0]

The table is a tree: forks and snapshots are below the disk that they come from. CHANGED counts \
the pages that a disk wrote itself, without those that it shares with the disk it was forked from. \
RAM is the memory that they take. Both include pages that only the disk's \
snapshots or forks still use. RATIO is CHANGED divided by RAM."
)]
pub(crate) struct Args {
    /// Show only these disks and their snapshots, with all details and their URIs
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Show these columns
    #[arg(short = 'o', long, value_name = "COLUMN,…", value_delimiter = ',', conflicts_with_all = ["names", "json"])]
    columns: Vec<Column>,

    /// Sort by this column instead of showing a tree: texts from A to Z, figures from the largest
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["names", "json"])]
    sort: Option<Column>,

    #[command(flatten)]
    peer: Peer,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { names, columns, sort, peer, json } = args;
    let mut listing: Listing = peer.connect()?.call(&Command::List {})?;
    if !json {
        tree::name_origins(&mut listing.disks);
    }
    if !names.is_empty() {
        for name in names {
            let known = || listing.disks.iter().map(|disk| disk.name.as_str());
            ensure!(known().any(|known| known == name), Failure::no_disk_among(name, known()));
        }
        listing.disks.retain(|disk| names.iter().any(|name| is_of(&disk.name, name)));
    }
    let mut out = output();
    match (json, names.is_empty()) {
        (true, _) => {
            for disk in &listing.disks {
                writeln!(out, "{}", plain_json(&serde_json::to_string(disk)?))?;
            }
        }
        (false, true) if listing.disks.is_empty() => print("no disks; 'pagefold add NAME --size SIZE' adds one"),
        (false, true) => {
            let columns = if columns.is_empty() { &USUAL } else { columns.as_slice() };
            table::write(&mut out, &listing.disks, columns, *sort)?;
        }
        (false, false) => {
            for disk in &listing.disks {
                writeln!(out, "{}", plain(&words(disk)))?;
            }
        }
    }
    Ok(out.flush()?)
}

/// Returns whether `name` is the disk or one of its snapshots.
fn is_of(name: &str, disk: &str) -> bool {
    name == disk || split_snapshot_name(name).is_some_and(|(of, _)| of == disk)
}

fn words(disk: &DiskRecord) -> String {
    let mut words = format!("'{}'  {}", disk.name, size::written(disk.size_bytes));
    if let Some(limit) = disk.limit_bytes {
        words += &format!(", limit {}", size::written(limit));
    }
    match disk.max_connections {
        None => {}
        Some(1) => words += ", at most 1 connection",
        Some(most) => words += &format!(", at most {most} connections"),
    }
    if let Some(rate) = disk.bytes_per_second {
        words += &format!(", at most {}/s", size::written(rate));
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
    fn snapshots_belong_to_their_disk() {
        assert!(is_of("a", "a") && is_of("a@b", "a") && !is_of("ab", "a") && !is_of("a", "a@b"));
    }
}
