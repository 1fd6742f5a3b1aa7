//! Devices of the kernel's ublk driver, which the server serves.
//!
//! ```text
//! this process                        the server
//! create the device, open its file
//! pass the file, and the disk's name
//!                                     a thread for each queue waits for requests
//! start the device
//! ```
//!
//! So only this process needs root. Some kernels hang or fault when a device is created, so a
//! second process creates it, and the first one gives up if the second does not end.

use std::{
    ffi::OsString,
    fs,
    io::{self, ErrorKind},
    os::{
        fd::AsFd,
        unix::{fs::MetadataExt, process::ExitStatusExt},
    },
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail, ensure};
use pagefold_control::{Command as Request, DeviceFault, DiskKind, DiskRecord, NewDevice};
use pagefold_ublk::{Control, Device, Layout, New, Params, State, devices};
use rustix::process::{Pid, Signal, kill_process};

use super::{args::AttachArgs, ending::end_waiting};
use crate::{image::ImagePath, peer::Peer};

/// Requests in flight of a queue.
const DEPTH: u16 = 64;

/// How long the kernel may take to create a device.
const GUARD: Duration = Duration::from_secs(30);

/// How long the kernel may take to notice that a server has ended.
const NOTICE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// The upper 16 bits of our devices' tags. The lower bits are a hash of the disk's address and, for
/// a base in a local file, of the file's identity.
const OURS: u64 = 0x5046;

fn open() -> anyhow::Result<Control> {
    Control::open().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            anyhow!("the kernel has no ublk devices: try 'modprobe ublk_drv'")
        }
        _ => anyhow!("the kernel's ublk driver cannot be used: {error}"),
    })
}

/// Makes a device, unless one was stuck before. Returns its number.
pub(super) fn attach(args: &AttachArgs, disk: &DiskRecord) -> anyhow::Result<u32> {
    // Opening the driver only asks for its features.
    drop(open()?);
    let mut server = args.peer.connect()?;
    let DeviceFault { why } = server.call(&Request::DeviceFault { why: None })?;
    if let Some(why) = why {
        bail!("{why}, and the server has not been restarted since");
    }
    let mut second = Command::new("/proc/self/exe");
    second.args(std::env::args_os().skip(1)).arg("--create-ublk");
    let why = match guarded(second, GUARD).context("cannot start the process that creates the device")? {
        Ended::Done(output) if output.status.success() => {
            let number = String::from_utf8_lossy(&output.stdout);
            return number.trim().parse().context("the process that creates the device did not report its number");
        }
        Ended::Done(output) if output.status.code().is_some() => {
            let message = String::from_utf8_lossy(&output.stderr);
            let message = message.trim();
            bail!("{}", message.strip_prefix("pagefold: ").unwrap_or(message));
        }
        Ended::Done(output) => {
            format!("the kernel ended the creation of a device by signal {}", output.status.signal().unwrap_or(0))
        }
        Ended::Late => format!("the kernel did not create a device in {} s", GUARD.as_secs()),
    };
    let _: DeviceFault = server.call(&Request::DeviceFault { why: Some(why.clone()) })?;
    bail!("{why}; disk '{}'", disk.name)
}

enum Ended {
    Done(Output),
    /// The second process did not end in time, and may never end.
    Late,
}

/// Runs a program that may not end.
fn guarded(mut command: Command, time: Duration) -> io::Result<Ended> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    // The thread is left behind if the child does not end even then.
    thread::Builder::new().spawn(move || drop(sender.send(child.wait_with_output())))?;
    match receiver.recv_timeout(time) {
        Ok(output) => output.map(Ended::Done),
        Err(_) => {
            // The process may have ended this moment.
            let _ = kill_process(pid, Signal::KILL);
            Ok(Ended::Late)
        }
    }
}

/// Makes a device, or recovers one of a server that has ended. Returns its number.
pub(super) fn create(args: &AttachArgs, disk: &DiskRecord) -> anyhow::Result<u32> {
    let mut control = open()?;
    // The next server has bases too. Other disks are lost with their server.
    let recovers = disk.kind == DiskKind::Base;
    let tag = tag(disk);
    let mut left = None;
    for number in devices()? {
        let Some(device) = ended(&mut control, number, tag)? else { continue };
        match device.state {
            // Another command may have removed it already. It is removed without waiting for its
            // users, which an older driver cannot do.
            State::Dead => drop(control.delete_later(number)),
            State::Quiesced if recovers && device.tag == tag && size_bytes(number)? == disk.size_bytes => {
                left = Some(device);
            }
            _ => {}
        }
    }
    let (device, is_new) = match left {
        Some(device) => {
            begin_recovery(&mut control, device.number)?;
            (device, false)
        }
        None => {
            let layout = Layout { queues: args.connections(), depth: DEPTH };
            let device = control.add(New { layout, recovers, tag }).context("the kernel refuses a ublk device")?;
            (device, true)
        }
    };
    let started = start(&mut control, &args.peer, disk, &device, is_new);
    if started.is_err() && is_new {
        // The first error has more information.
        let _ = control.delete(device.number);
    }
    started.map(|()| device.number)
}

fn start(control: &mut Control, peer: &Peer, disk: &DiskRecord, device: &Device, is_new: bool) -> anyhow::Result<()> {
    let (number, Layout { queues, depth }) = (device.number, device.layout);
    let refused = || format!("the kernel refuses ublk device {number}");
    if is_new {
        let params = Params { size_bytes: disk.size_bytes, read_only: disk.read_only };
        control.set_params(number, params).with_context(refused)?;
    }
    let file = device.open().with_context(|| format!("/dev/ublkc{number}"))?;
    let new = NewDevice { name: disk.name.clone(), number, queues, depth };
    let served: DiskRecord = peer.connect()?.call_with(&Request::ServeDevice(new), Some(file.as_fd()))?;
    ensure!(served.size_bytes == disk.size_bytes, "the disk has just been changed; try again");
    if is_new { control.start(number) } else { control.end_recovery(number) }.with_context(refused)
}

/// Begins the recovery of a device whose server has ended.
fn begin_recovery(control: &mut Control, number: u32) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        match control.begin_recovery(number) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && start.elapsed() < NOTICE => thread::sleep(PAUSE),
            // The recovery has begun: after an earlier attempt that failed, the device waits for a server.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(()),
            result => return result.with_context(|| format!("the kernel does not let ublk device {number} recover")),
        }
    }
}

/// Returns a device that we made and that no server serves. If it is the disk's, waits, because the
/// kernel may not have noticed yet that its server has ended.
fn ended(control: &mut Control, number: u32, tag: u64) -> anyhow::Result<Option<Device>> {
    let start = Instant::now();
    loop {
        let Some(device) = ours(control, number)? else { return Ok(None) };
        match device.state {
            State::Live if device.tag == tag && start.elapsed() < NOTICE => thread::sleep(PAUSE),
            State::Live | State::New => return Ok(None),
            _ => return Ok(Some(device)),
        }
    }
}

/// Returns a device if we made it.
fn ours(control: &mut Control, number: u32) -> io::Result<Option<Device>> {
    match control.info(number) {
        Ok(device) => Ok(Some(device).filter(|device| device.tag >> 48 == OURS)),
        // The device has just been removed.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a device that we made.
pub(super) fn detach(number: u32, peer: &Peer) -> anyhow::Result<()> {
    let mut control = open()?;
    let shown = pagefold_ublk::path(number);
    ours(&mut control, number)?.with_context(|| format!("{}: no device that pagefold has made", shown.display()))?;
    // The kernel waits for requests of the device, and its last writes may find no room.
    end_waiting(peer, &shown, None);
    control.stop(number)?;
    Ok(control.delete(number)?)
}

fn size_bytes(number: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/sys/block/ublkb{number}/size"))?;
    Ok(text.trim().parse::<u64>()?.saturating_mul(512))
}

/// Returns the tag by which a disk's device is found.
fn tag(disk: &DiskRecord) -> u64 {
    let address = disk.uris.first().map_or("", String::as_str);
    let text = format!("{address} {}", image_of(disk).unwrap_or_default());
    // FNV-1a.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    OURS << 48 | hash >> 16
}

/// Returns the identity of a base's file, which changes when the file is replaced: a device must
/// not continue with other data.
fn image_of(disk: &DiskRecord) -> Option<String> {
    let image = ImagePath::from(OsString::from(disk.path.as_deref()?)).image;
    let metadata = fs::metadata(image).ok()?;
    let (modified, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
    Some(format!("{}:{} {} {modified}.{nanoseconds}", metadata.dev(), metadata.ino(), metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_base_whose_file_was_replaced_has_another_tag() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("base.erofs");
        let record = serde_json::json!({
            "name": "base", "id": "1", "size_bytes": 512, "limit_bytes": null, "read_only": true, "clients": 0,
            "uris": ["nbd+unix:///base?socket=/s"], "path": image,
        });
        let base: DiskRecord = serde_json::from_value(record).expect("a record");
        fs::write(&image, "one").expect("a file");
        let first = tag(&base);
        assert_eq!((first, first >> 48), (tag(&base), OURS));
        let next = folder.path().join("next");
        fs::write(&next, "two").expect("a file");
        fs::rename(&next, &image).expect("a file");
        assert_ne!(tag(&base), first);
    }

    #[test]
    fn a_program_that_does_not_end_is_given_up() {
        let Ok(Ended::Late) = guarded(shell("sleep 600"), Duration::from_millis(20)) else {
            panic!("it has ended");
        };
        let Ok(Ended::Done(output)) = guarded(shell("echo 3; echo no >&2; exit 4"), GUARD) else {
            panic!("it has not ended");
        };
        assert_eq!((output.status.code(), &*output.stdout, &*output.stderr), (Some(4), &b"3\n"[..], &b"no\n"[..]));
        let Ok(Ended::Done(output)) = guarded(shell("kill -9 $$"), GUARD) else { panic!("it has not ended") };
        assert_eq!((output.status.code(), output.status.signal()), (None, Some(9)));
    }
}
