//! `pagefold rename`: renames a disk.

use pagefold_control::{Command, Renamed};

use super::Asked;

/// Rename a disk
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold rename scratch kept

Connected clients stay connected. New clients need the new name.")]
pub(crate) struct Args {
    /// Current name
    old: String,

    /// New name
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
