//! `pagefold drop`: removes disks from a running server.

use pagefold_control::{Command, DiskKind, Dropped};

use super::Asked;
use crate::size;

/// Remove disks and their contents
#[derive(clap::Args)]
#[command(
    visible_aliases = ["rm", "remove", "delete"],
    after_help = "Examples:
  pagefold drop scratch job-1
  pagefold drop job-1@before
  pagefold drop --snapshots job-2

A disk with clients is refused without --force. With it, the server answers requests in flight, \
then ends the connections. Forks of \
a dropped disk keep their contents and the memory that they share with it. The file of a base \
stays open until its last fork is dropped."
)]
pub(crate) struct Args {
    /// Disks, bases, or snapshots as DISK@SNAPSHOT
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// Also drop the disks' snapshots; without this option a disk with snapshots is refused
    #[arg(long)]
    snapshots: bool,

    /// Drop them although they have clients: their requests fail
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { names, snapshots, force, asked } = args;
    let mut caller = asked.connect()?;
    for name in names {
        let command = Command::Drop { name: name.clone(), snapshots: *snapshots, force: *force };
        let dropped: Dropped = caller.call(&command)?;
        caller.print(&dropped, || words(&dropped))?;
    }
    Ok(())
}

fn words(Dropped { disk, file_users }: &Dropped) -> String {
    let with = match disk.snapshots {
        0 => String::new(),
        1 => " with its snapshot".to_owned(),
        count => format!(" with its {count} snapshots"),
    };
    let still = match (disk.kind, file_users) {
        (DiskKind::Base, 1) => "; 1 disk still reads its file".to_owned(),
        (DiskKind::Base, 2..) => format!("; {file_users} disks still read its file"),
        _ => String::new(),
    };
    format!("dropped '{}'{with}, {}{still}", disk.name, size::written(disk.size_bytes))
}
