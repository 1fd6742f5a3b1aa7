//! `/dev/nbdN`, by the kernel's generic netlink family `nbd`
//! (Linux, `include/uapi/linux/nbd-netlink.h`).

use std::{
    fmt, io,
    os::fd::{AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
};

use neli::{
    consts::{nl::NlmF, socket::NlFamily},
    err::RouterError,
    genl::{AttrTypeBuilder, Genlmsghdr, GenlmsghdrBuilder, Nlattr, NlattrBuilder},
    nl::NlPayload,
    router::synchronous::NlRouter,
    types::{Buffer, GenlBuffer},
    utils::Groups,
};

const FAMILY: &str = "nbd";
const VERSION: u8 = 1;

mod command {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const DISCONNECT: u8 = 2;
}

mod attr {
    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_SIZE_BYTES: u16 = 3;
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const SOCKETS: u16 = 7;
    pub(super) const BACKEND_IDENTIFIER: u16 = 10;
    /// In [`SOCKETS`], and in that [`SOCKET_FD`].
    pub(super) const SOCKET: u16 = 1;
    pub(super) const SOCKET_FD: u16 = 1;
}

/// The kernel's block size: what every partition table and file system can work with.
const BLOCK_BYTES: u64 = 512;

/// The longest identifier that the kernel takes and shows in one page of `/sys`.
pub const MAX_IDENTIFIER_BYTES: usize = 4000;

/// The options with which a device is connected.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// Connections to one export, negotiated up to transmission with simple replies. The kernel keeps
    /// them after the caller has closed its own descriptors.
    pub sockets: &'a [BorrowedFd<'a>],
    /// The export's size, a multiple of 512.
    pub size_bytes: u64,
    /// The export's transmission flags.
    pub flags: u16,
    /// Seconds after which an unanswered request and its connection fail; 0 means never.
    pub timeout_seconds: u64,
    /// Text by which the device can be found again; see [`devices`].
    pub identifier: &'a str,
}

/// A device in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number: `/dev/nbdN`.
    pub number: u32,
    /// The identifier that it was connected with.
    pub identifier: String,
}

/// The kernel's family, as this process reaches it.
pub struct Nbd {
    router: NlRouter,
    family: u16,
}

impl fmt::Debug for Nbd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nbd").field("family", &self.family).finish_non_exhaustive()
    }
}

/// Returns the path of a device.
pub fn path(number: u32) -> PathBuf {
    format!("/dev/nbd{number}").into()
}

/// Returns the devices in use that have an identifier (Linux 5.15), also those of other programs.
///
/// # Errors
/// `/sys` cannot be read.
pub fn devices() -> io::Result<Vec<Device>> {
    let of = |number| {
        let backend = super::attribute(Path::new(&format!("/sys/block/nbd{number}/backend")));
        Ok(backend?.map(|identifier| Device { number, identifier }))
    };
    super::numbers("nbd")?.into_iter().filter_map(|number| of(number).transpose()).collect()
}

/// Returns the size of a device.
///
/// # Errors
/// `/sys` cannot be read.
pub fn size_bytes(number: u32) -> io::Result<Option<u64>> {
    let sectors = super::attribute(Path::new(&format!("/sys/block/nbd{number}/size")))?;
    Ok(sectors.and_then(|sectors| sectors.parse::<u64>().ok()?.checked_mul(512)))
}

impl Nbd {
    /// Finds the family.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if the kernel does not have it, perhaps because its
    /// module is not loaded.
    pub fn open() -> io::Result<Self> {
        let (router, _) = NlRouter::connect(NlFamily::Generic, None, Groups::empty()).map_err(failed)?;
        let family = router.resolve_genl_family(FAMILY).map_err(refused)?;
        Ok(Self { router, family })
    }

    /// Connects a device that is free. Returns its number.
    ///
    /// # Errors
    /// The caller is not root ([`PermissionDenied`](io::ErrorKind::PermissionDenied)), no device is
    /// free, or the kernel refuses a value.
    pub fn connect(&self, connection: Connection<'_>) -> io::Result<u32> {
        let Connection { sockets, size_bytes, flags, timeout_seconds, identifier } = connection;
        let mut list = attribute(attr::SOCKETS, Vec::<u8>::new())?;
        for socket in sockets {
            let fd = attribute(attr::SOCKET_FD, socket.as_raw_fd().cast_unsigned())?;
            let one = attribute(attr::SOCKET, Vec::<u8>::new())?.nest(&fd).map_err(failed)?;
            list = list.nest(&one).map_err(failed)?;
        }
        let attributes = [
            attribute(attr::SIZE_BYTES, size_bytes)?,
            attribute(attr::BLOCK_SIZE_BYTES, BLOCK_BYTES)?,
            attribute(attr::SERVER_FLAGS, u64::from(flags))?,
            attribute(attr::TIMEOUT, timeout_seconds)?,
            attribute(attr::BACKEND_IDENTIFIER, identifier)?,
            list,
        ];
        // Without a timeout the kernel keeps its own.
        let given =
            attributes.into_iter().filter(|one| timeout_seconds > 0 || *one.nla_type().nla_type() != attr::TIMEOUT);
        let number = self.call(command::CONNECT, given.collect())?;
        number.ok_or_else(|| io::Error::other("the kernel did not name the device"))
    }

    /// Disconnects a device. Its requests in flight fail.
    ///
    /// # Errors
    /// The caller is not root, or there is no such device.
    pub fn disconnect(&self, number: u32) -> io::Result<()> {
        self.call(command::DISCONNECT, std::iter::once(attribute(attr::INDEX, number)?).collect()).map(drop)
    }

    /// Sends a command. Returns the number of a device if the kernel answers with one.
    fn call(&self, command: u8, attributes: GenlBuffer<u16, Buffer>) -> io::Result<Option<u32>> {
        let message = GenlmsghdrBuilder::default().cmd(command).version(VERSION).attrs(attributes);
        let payload = NlPayload::Payload(message.build().map_err(failed)?);
        let answers = self.router.send::<_, _, u16, Genlmsghdr<u8, u16>>(self.family, NlmF::ACK, payload);
        let mut number = None;
        for answer in answers.map_err(failed)? {
            let answer = answer.map_err(refused)?;
            if let NlPayload::Payload(message) = answer.nl_payload() {
                let found = message.attrs().get_attr_handle().get_attr_payload_as::<u32>(attr::INDEX);
                number = number.or(found.ok());
            }
        }
        Ok(number)
    }
}

fn attribute(kind: u16, value: impl neli::ToBytes + neli::Size) -> io::Result<Nlattr<u16, Buffer>> {
    let kind = AttrTypeBuilder::default().nla_type(kind).build().map_err(failed)?;
    NlattrBuilder::default().nla_type(kind).nla_payload(value).build().map_err(failed)
}

fn failed(error: impl fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Returns the kernel's error, if it is one.
fn refused<T: fmt::Debug, P: fmt::Debug>(error: RouterError<T, P>) -> io::Error
where
    RouterError<T, P>: fmt::Display,
{
    match error {
        RouterError::Nlmsgerr(refusal) => io::Error::from_raw_os_error(-refusal.error()),
        error => failed(error),
    }
}
