//! `pagefold rename`: a disk gets another name.

use pagefold_control::{Command, Renamed};

use super::Asked;

/// Give a running server's disk another name
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold rename scratch kept

Clients that are connected stay so; later ones need the new name.")]
pub(crate) struct Args {
    /// The name that the disk has
    old: String,

    /// The name that it gets
    new: String,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let command = Command::Rename { name: args.old.clone(), to: args.new.clone() };
    args.asked.perform(&command, |disk: &Renamed| {
        let uris: Vec<_> = disk.uris.iter().map(|uri| format!(" '{uri}'")).collect();
        format!("renamed '{}' to '{}':{}", disk.before, disk.name, uris.concat())
    })
}
