//! A session over a device that another process has mounted.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use fuser::{Config, Filesystem, Session};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::fstat,
    io::write,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};

use crate::replace::replace;

/// The device through which FUSE file systems are mounted.
const DEVICE: &str = "/dev/fuse";

/// The code of the request that begins a session.
const INIT: u32 = 26;
/// The protocol version in that request: the last one without further fields.
const VERSION: [u32; 2] = [7, 31];
/// The length of that request's header, and of the whole request.
const HEADER_BYTES: u32 = 40;
const INIT_BYTES: u32 = HEADER_BYTES + 16;

/// Begins a session with a file system whose session with the kernel has already begun. Requests
/// are not read yet.
pub(crate) fn continued<F: Filesystem>(filesystem: F, device: &OwnedFd, config: Config) -> io::Result<Session<F>> {
    check(device)?;
    // fuser expects the request that begins a session. The kernel sent its own at the mount, so
    // this one comes from a socket.
    let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    write(&other, &init())?;
    let session = Session::from_fd(filesystem, own, config.acl, config)?;
    replace(session.as_fd(), device)?;
    Ok(session)
}

/// Returns whether the kernel's connection behind a device has ended.
pub(crate) fn is_gone(device: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&device, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

fn check(device: &OwnedFd) -> io::Result<()> {
    if fstat(device)?.st_rdev != fs::metadata(DEVICE)?.rdev() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is not one of /dev/fuse"));
    }
    if is_gone(device) { Err(io::Error::new(io::ErrorKind::NotConnected, "it was unmounted")) } else { Ok(()) }
}

/// Returns a request that begins a session: length, code and number; no file, user, group or
/// process; then the version, and no features.
fn init() -> Vec<u8> {
    let (number, none) = (1_u64, 0_u64);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let begin = [words(&[INIT_BYTES, INIT]), number.to_ne_bytes().to_vec(), none.to_ne_bytes().to_vec()];
    [begin.concat(), words(&[0; 4]), words(&VERSION), words(&[0; 2])].concat()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    struct Nothing;

    impl Filesystem for Nothing {}

    #[test]
    fn another_file_is_no_device() {
        for path in ["/dev/null", "/proc/self/exe"] {
            let file = File::open(path).expect("a file");
            assert!(continued(Nothing, &file.into(), Config::default()).is_err(), "{path}");
        }
    }

    /// A device that belongs to no mount.
    #[test]
    fn a_device_without_a_mount_has_ended() {
        let Ok(device) = File::options().read(true).write(true).open(DEVICE) else { return };
        assert!(is_gone(&device));
        assert!(continued(Nothing, &device.into(), Config::default()).is_err());
    }

    #[test]
    fn a_session_begins_without_the_kernel() {
        let (own, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
        assert_eq!(write(&other, &init()).expect("room"), INIT_BYTES as usize);
        Session::from_fd(Nothing, own, fuser::SessionACL::Owner, Config::default()).expect("a session");
    }
}
