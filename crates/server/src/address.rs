//! Where a server listens, as clients reach it.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
};

use pagefold_serve::{Server, tcp_uri, tls_uri, unix_uri, vsock_uri};

/// An address on which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The absolute path of a Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// The address as it was given.
        address: SocketAddr,
        /// The address for clients: for a wildcard, an address of this machine.
        reachable: SocketAddr,
        /// Whether clients can use TLS.
        tls: bool,
    },
    /// A vsock port, for virtual machines on this host or for this machine's host.
    Vsock {
        /// The context id under which clients reach this machine.
        cid: u32,
        /// The port.
        port: u32,
        /// Whether clients can use TLS.
        tls: bool,
    },
}

impl Address {
    /// Returns the addresses of a server.
    pub(crate) fn all(server: &Server, tls: bool) -> Vec<Self> {
        let unix = server.unix_paths().map(|path| Self::Unix(absolute(&path)));
        let tcp = server.tcp_addresses().map(|address| Self::tcp(address, tls));
        let vsock = server.vsock_addresses().map(|(cid, port)| Self::Vsock { cid, port, tls });
        unix.chain(tcp).chain(vsock).collect()
    }

    fn tcp(address: SocketAddr, tls: bool) -> Self {
        let mut reachable = address;
        if address.ip().is_unspecified() {
            reachable.set_ip(own_address(address.is_ipv6()));
        }
        Self::Tcp { address, reachable, tls }
    }

    /// Returns the NBD URI of an export. On TCP and vsock, the URI asks for TLS if clients can use
    /// it.
    pub fn uri(&self, export: &str) -> String {
        match self {
            Self::Unix(path) => unix_uri(path, export),
            Self::Tcp { reachable, tls: true, .. } => tls_uri(*reachable, export),
            Self::Tcp { reachable, .. } => tcp_uri(*reachable, export),
            Self::Vsock { cid, port, tls } => vsock_uri(*cid, *port, export, *tls),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp { address, .. } => address.fmt(f),
            Self::Vsock { cid, port, .. } => write!(f, "vsock {cid}:{port}"),
        }
    }
}

/// Returns the address from which this machine would send to others, or loopback. Nothing is sent.
fn own_address(ipv6: bool) -> IpAddr {
    // Documentation addresses, which are routed like any other.
    let (any, other): (IpAddr, IpAddr) = if ipv6 {
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
    } else {
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into())
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((other, 9)).and(socket.local_addr()));
    let loopback = if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    found.map(|found| found.ip()).ok().filter(|found| !found.is_unspecified()).unwrap_or(loopback)
}

/// Returns the absolute form of a path, which stays valid if the process changes its directory.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
