//! `pagefold attach`, `detach`: disks as block devices of this machine's kernel.

mod args;
mod connection;
mod ending;
mod spare;
mod ublk;

use std::{
    fs,
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail, ensure};
use pagefold_attach::{loop_device, nbd};
use pagefold_control::{Command, DiskRecord, Failure, Listing};

pub(crate) use self::args::AttachArgs;
use self::{
    args::Way,
    connection::{OURS, address, connect_nbd, open_nbd},
    ending::{disconnect, end_waiting, unless_stuck},
};
use crate::{output::output, peer::Peer, report::print};

/// How long a server may take to see that a device was removed.
const NOTICE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// Remove block devices that 'pagefold attach' made
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold detach job-1
  pagefold detach /dev/nbd0

A loop device in use, such as by a mounted file system, is removed when that use ends. Until then, its writes \
no longer wait for room. Requests of an NBD device in use fail immediately.")]
pub(crate) struct DetachArgs {
    /// Disks, or paths of devices: these need no server
    #[arg(required = true, value_name = "NAME|DEVICE")]
    names: Vec<String>,

    #[command(flatten)]
    peer: Peer,
}

/// A device that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    way: Way,
    number: u32,
}

impl Device {
    fn path(self) -> PathBuf {
        match self.way {
            Way::Ublk => pagefold_ublk::path(self.number),
            Way::Nbd => nbd::path(self.number),
            Way::Loop => loop_device::path(self.number),
        }
    }
}

pub(crate) fn attach(args: &AttachArgs) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "only root can make block devices");
    if args.create_ublk {
        // The first process has the lock. This one, which may never end, must not share it.
        let (disk, _) = find(&args.peer, &args.name)?;
        let number = ublk::create(args, &disk)?;
        let mut out = output();
        writeln!(out, "{number}")?;
        return Ok(out.flush()?);
    }
    if let Some(count) = args.spare {
        let (disk, _) = find(&args.peer, &args.name)?;
        return spare::connect(args, &disk, count);
    }
    // The server says that it is not there, and waits for one that starts.
    drop(args.peer.connect()?);
    // Until this command has finished, no other one finds the disk without a device.
    let _attaching = args.peer.attaching()?;
    let (disk, all) = find(&args.peer, &args.name)?;
    if let Some((device, owner)) = devices_of(&disk, &all)?.first() {
        let (name, path) = (&disk.name, device.path());
        match owner {
            Owner::Disk => bail!("'{name}' is attached as {}: detach it first", path.display()),
            Owner::Earlier => bail!("{} is left from an earlier disk '{name}': detach it first", path.display()),
        }
    }
    if args.via.is_none_or(|via| via == Way::Nbd)
        && let Some(device) = spare::take(args, &disk)?
    {
        print(&format!("attached '{}' by nbd, with a device that was connected in advance", disk.name));
        let mut out = output();
        writeln!(out, "{}", device.display())?;
        return Ok(out.flush()?);
    }
    let (device, refused) = take_first(args, &disk)?;
    let how = if refused.is_empty() { String::new() } else { format!("; not by {refused}") };
    let way = device.way.name();
    print(&format!("attached '{}' by {way}{how}", disk.name));
    let mut out = output();
    writeln!(out, "{}", device.path().display())?;
    Ok(out.flush()?)
}

impl Way {
    fn attach(self, args: &AttachArgs, disk: &DiskRecord) -> anyhow::Result<Device> {
        match self {
            Self::Ublk => Ok(Device { way: self, number: ublk::attach(args, disk)? }),
            Self::Nbd => attach_nbd(args, disk),
            Self::Loop => attach_loop(args, disk),
        }
    }
}

/// Takes the first way that is possible. Also returns why others are not.
fn take_first(args: &AttachArgs, disk: &DiskRecord) -> anyhow::Result<(Device, String)> {
    if let Some(way) = args.via {
        return Ok((way.attach(args, disk)?, String::new()));
    }
    let mut refused = Vec::new();
    for way in [Way::Ublk, Way::Nbd, Way::Loop] {
        match way.attach(args, disk) {
            Ok(device) => return Ok((device, refused.join("; not by "))),
            Err(why) if way == Way::Ublk && stays_served(args, disk)? => {
                bail!("{why:#}; '{}' may still become a ublk device: detach it first", disk.name);
            }
            Err(why) => refused.push(format!("{}: {why:#}", way.name())),
        }
    }
    Err(anyhow!(refused.join("; ")))
}

/// After the creation of a device has failed, returns whether the server still serves the disk as
/// one. The server needs a moment to notice that a device was removed, and the kernel may still
/// finish one.
fn stays_served(args: &AttachArgs, disk: &DiskRecord) -> anyhow::Result<bool> {
    let start = Instant::now();
    loop {
        let Listing { disks, .. } = args.peer.connect()?.call(&Command::List {})?;
        if !disks.iter().any(|known| known.id == disk.id && known.device.is_some()) {
            return Ok(false);
        }
        if start.elapsed() >= NOTICE {
            return Ok(true);
        }
        thread::sleep(PAUSE);
    }
}

pub(crate) fn detach(args: &DetachArgs) -> anyhow::Result<()> {
    for name in &args.names {
        let (devices, file) = if name.starts_with('/') {
            (vec![device_at(Path::new(name))?], None)
        } else {
            let (disk, all) = find(&args.peer, name)?;
            let file = disk.file.clone();
            // While all threads of the file system wait for room, the file below a device cannot be
            // looked up.
            let free = || {
                let below = file.as_deref().map(Path::new).filter(|file| is_below_loop(file));
                below.into_iter().for_each(|file| end_waiting(&args.peer, file, None));
            };
            let devices = unless_stuck(move || devices_of(&disk, &all), free)?;
            ensure!(!devices.is_empty(), "'{name}' is not attached");
            (devices.into_iter().map(|(device, _)| device).collect(), file)
        };
        for device in devices {
            let done = match device.way {
                Way::Ublk => ublk::detach(device.number, &args.peer),
                Way::Nbd => disconnect(device.number, &args.peer),
                Way::Loop => detach_loop(device.number, file.as_deref(), &args.peer),
            };
            done.with_context(|| format!("cannot detach {}", device.path().display()))?;
        }
    }
    Ok(())
}

/// Returns whether a loop device was made of a file with this path.
fn is_below_loop(file: &Path) -> bool {
    loop_device::devices().is_ok_and(|devices| devices.iter().any(|device| device.file == file))
}

/// Detaches a loop device over `file` or, without it, over the path that the kernel reports for its
/// file.
fn detach_loop(number: u32, file: Option<&str>, peer: &Peer) -> anyhow::Result<()> {
    let called = || Some(loop_device::devices().ok()?.into_iter().find(|device| device.number == number)?.file);
    let file = file.map(PathBuf::from).or_else(called);
    // The last writes of the device's last user may find no room.
    file.iter().for_each(|file| end_waiting(peer, file, None));
    Ok(loop_device::detach(number)?)
}

/// Returns a disk of a server, and all of them.
fn find(peer: &Peer, name: &str) -> anyhow::Result<(DiskRecord, Vec<DiskRecord>)> {
    let Listing { disks, .. } = peer.connect()?.call(&Command::List {})?;
    let known = || Failure::no_disk_among(name, disks.iter().map(|disk| disk.name.as_str()));
    let found = disks.iter().find(|disk| disk.name == name).cloned().ok_or_else(known)?;
    Ok((found, disks))
}

/// The disk to which a device belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// This disk, under whatever name it was attached.
    Disk,
    /// A former disk with the same address.
    Earlier,
}

/// Returns the devices of `disk`, one of `all`.
fn devices_of(disk: &DiskRecord, all: &[DiskRecord]) -> anyhow::Result<Vec<(Device, Owner)>> {
    let served = served_device(disk)?;
    let mut found: Vec<_> = served.into_iter().map(|device| (device, Owner::Disk)).collect();
    for nbd::Device { number, identifier } in nbd::devices()? {
        let owner = nbd_owner(&identifier, disk, all);
        found.extend(owner.map(|owner| (Device { way: Way::Nbd, number }, owner)));
    }
    let Some(file) = disk.file.as_deref().map(Path::new) else { return Ok(found) };
    let id_of = |file: &Path| fs::metadata(file).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let own = id_of(file);
    for loop_device::Device { number, file: path } in loop_device::devices()? {
        // The device may just have gone.
        let below = loop_device::file_of(number).ok().map(|below| (below.file_system, below.inode));
        let is_known = || all.iter().filter_map(|disk| disk.file.as_deref()).any(|file| id_of(file.as_ref()) == below);
        let owner = match below {
            Some(_) if below == own => Some(Owner::Disk),
            _ => (path == file && !is_known()).then_some(Owner::Earlier),
        };
        found.extend(owner.map(|owner| (Device { way: Way::Loop, number }, owner)));
    }
    Ok(found)
}

/// Returns the device that the server reports for a disk, if it is a ublk device or a spare device
/// of this server: another user's server may not name others. The device may be gone.
fn served_device(disk: &DiskRecord) -> anyhow::Result<Option<Device>> {
    let Some(path) = disk.device.as_deref().map(Path::new) else { return Ok(None) };
    if let Some(number) = ublk_number(path) {
        let is_there = pagefold_ublk::devices()?.contains(&number);
        return Ok(is_there.then_some(Device { way: Way::Ublk, number }));
    }
    let Ok((socket, ..)) = address(disk) else { return Ok(None) };
    let beginning = spare::beginning(&socket);
    let is_it = |device: &nbd::Device| nbd::path(device.number) == path && device.identifier.starts_with(&beginning);
    let found = nbd::devices()?.into_iter().find(is_it);
    Ok(found.map(|device| Device { way: Way::Nbd, number: device.number }))
}

/// Returns the disk of `all` to which an NBD device belongs, if any.
fn nbd_owner(identifier: &str, disk: &DiskRecord, all: &[DiskRecord]) -> Option<Owner> {
    let (id, process_and_uri) = identifier.strip_prefix(OURS)?.split_once(' ')?;
    let (_, uri) = process_and_uri.split_once(' ')?;
    match all.iter().find(|disk| disk.id == id) {
        Some(known) => (known.name == disk.name).then_some(Owner::Disk),
        None => disk.uris.iter().any(|own| own == uri).then_some(Owner::Earlier),
    }
}

/// Returns the number in the path of a ublk device.
fn ublk_number(path: &Path) -> Option<u32> {
    path.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}

/// Returns the device at a path, if it is one of ours.
fn device_at(path: &Path) -> anyhow::Result<Device> {
    if let Some(number) = ublk_number(path) {
        return Ok(Device { way: Way::Ublk, number });
    }
    let nbd = nbd::devices()?.into_iter().find(|device| nbd::path(device.number) == path);
    if let Some(device) = nbd {
        let shown = path.display();
        ensure!(device.identifier.starts_with(OURS), "{shown} is a device of another program: {}", device.identifier);
        return Ok(Device { way: Way::Nbd, number: device.number });
    }
    let found = loop_device::devices()?.into_iter().find(|device| loop_device::path(device.number) == path);
    let device = found.with_context(|| format!("{}: no device in use that could be detached", path.display()))?;
    if loop_device::is_foreign(device.number)? {
        let (shown, file) = (path.display(), device.file.display());
        bail!("{shown} is a device of another program, over {file}: 'losetup -d {shown}' detaches it");
    }
    Ok(Device { way: Way::Loop, number: device.number })
}

fn attach_nbd(args: &AttachArgs, disk: &DiskRecord) -> anyhow::Result<Device> {
    let (socket, export, uri) = address(disk)?;
    let nbd = open_nbd()?;
    let identifier = format!("{OURS}{} {} {uri}", disk.id, process::id());
    let number = connect_nbd(args, &nbd, &socket, &export, &identifier)?;
    Ok(Device { way: Way::Nbd, number })
}

fn attach_loop(args: &AttachArgs, disk: &DiskRecord) -> anyhow::Result<Device> {
    let file =
        disk.file.as_deref().context("the disk has no file: 'pagefold serve --files DIR' makes a file of each disk")?;
    // A server of another user may name any file.
    let user = args.peer.connect()?.server_user()?;
    let owner = (!user.is_root()).then_some(user.as_raw());
    let number = loop_device::attach(Path::new(file), disk.read_only, owner).with_context(|| file.to_owned())?;
    Ok(Device { way: Way::Loop, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_belongs_to_the_disk_that_it_was_made_of() {
        let named = |name: &str, id: &str| -> DiskRecord {
            let uri = format!("nbd+unix:///{name}?socket=/s");
            let record = serde_json::json!({
                "name": name, "id": id, "size_bytes": 512, "limit_bytes": null, "read_only": false, "clients": 0,
                "uris": [uri],
            });
            serde_json::from_value(record).expect("a record")
        };
        let owner = |identifier: &str, disk: usize, all: &[DiskRecord]| nbd_owner(identifier, &all[disk], all);
        let made = "pagefold f-1 77 nbd+unix:///a?socket=/s";
        let all = [named("a", "f-1"), named("b", "f-2")];
        assert_eq!((owner(made, 0, &all), owner(made, 1, &all)), (Some(Owner::Disk), None));
        // Disk 1 was renamed, and another disk has its former name.
        let all = [named("a", "f-3"), named("c", "f-1")];
        assert_eq!((owner(made, 0, &all), owner(made, 1, &all)), (None, Some(Owner::Disk)));
        // Disk 1 was dropped.
        let all = [named("a", "f-3"), named("b", "f-2")];
        assert_eq!((owner(made, 0, &all), owner(made, 1, &all)), (Some(Owner::Earlier), None));
        for other in ["", "qemu", "pagefold", "pagefold ", "pagefold f-1", "pagefold f-9 7 nbd+unix:///a?socket=/t"] {
            assert_eq!(owner(other, 0, &all), None, "{other}");
        }
    }
}
