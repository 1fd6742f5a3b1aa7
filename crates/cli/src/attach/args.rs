//! The arguments of `pagefold attach`.

use std::thread;

use clap::ValueEnum;

use crate::peer::Peer;

/// The default maximum number of a device's connections.
const MOST_CONNECTIONS: usize = 4;

/// Make a disk a block device of this machine
#[derive(clap::Args)]
#[command(after_help = "Examples:
  device=$(pagefold attach job-1)
  mount \"$device\" /mnt
  umount /mnt && pagefold detach job-1
  pagefold attach --spare 8 debian && pagefold fork debian job-2 && pagefold attach job-2

Prints the device's path, and on standard error the way that was taken and why. Needs root.
ublk: /dev/ublkbN, served by the server; needs Linux 6.5 with the module ublk_drv.
nbd: /dev/nbdN, over connections to the server's Unix socket; needs the kernel's module nbd.
loop: /dev/loopN, over the disk's file; needs a server with --files.
The device stays until 'pagefold detach', also if the server ends: its requests then fail. Those of a \
base's ublk device wait until the base is attached again.")]
pub(crate) struct AttachArgs {
    /// A disk, base, or snapshot as DISK@SNAPSHOT
    pub(super) name: String,

    /// The only way to take [default: the first of ublk, nbd and loop that is possible]
    #[arg(long, value_name = "WAY")]
    pub(super) via: Option<Way>,

    /// Number of connections to the server (nbd) or queues (ublk) [default: one per processor, at most 4]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) connections: Option<u16>,

    /// Seconds after which a request that is not answered fails; 0 means never (nbd)
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(super) timeout: u32,

    /// Attach nothing, but connect NBD devices in advance, until COUNT are ready for disks of this
    /// disk's size. 'attach' of such a disk, as of a fork, takes one of them
    #[arg(long, value_name = "COUNT", conflicts_with = "via", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) spare: Option<u16>,

    /// Only create the device, and print its number
    #[arg(long, hide = true)]
    pub(super) create_ublk: bool,

    #[command(flatten)]
    pub(super) peer: Peer,
}

impl AttachArgs {
    /// Returns the number of connections or queues.
    pub(super) fn connections(&self) -> u16 {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        self.connections.unwrap_or(processors.min(MOST_CONNECTIONS) as u16)
    }
}

/// A kind of block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Way {
    /// A device of the kernel's ublk driver
    Ublk,
    /// A device of the kernel's NBD client
    Nbd,
    /// A loop device over the disk's file
    Loop,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
            Self::Loop => "loop",
        }
    }
}
