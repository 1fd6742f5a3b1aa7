//! `pagefold serve`: compressed RAM disks over NBD.

use std::{
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
    path::PathBuf,
    sync::Arc,
    thread,
};

use anyhow::{Context, anyhow};
use pagefold_codec::{NAMES, by_name};
use pagefold_disk::{BlockDevice, RamConfig, RamDisk};
use pagefold_serve::{Export, Limits, Refused, Server, unix_uri};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{misuse, signals, size, tell};

/// Files that a server has open besides those of the clients that it serves: clients that have chosen no export, sockets,
/// standard streams.
const OTHER_DESCRIPTORS: u64 = 128;

/// Serve disks whose contents live compressed in RAM, over NBD
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold serve --size 8G --unix /run/user/1000/disk.sock
  pagefold serve --size 8G --tcp 10809 --codec zstd-1 --memory-limit 2G
  pagefold serve --unix /run/pagefold.sock \\
    --export name=root,size=4G --export name=swap,size=8G,codec=zstd

Then, with any NBD client:
  nbdcopy rootfs.ext4 'nbd+unix:///?socket=/run/user/1000/disk.sock'
  qemu-system-x86_64 \\
    -drive 'file=nbd+unix:///?socket=/run/user/1000/disk.sock,format=raw'
  pagefold stat --unix /run/user/1000/disk.sock

Sizes: 512M, 8G and 8GiB are powers of 1024, 8GB is a power of 1000.
Under a service manager's socket activation (LISTEN_FDS) no address is needed.
SIGINT, SIGTERM and SIGHUP finish what is in flight, remove the Unix sockets and end with status 0. What the \
disks held is then gone: it lived in RAM.")]
pub(crate) struct Args {
    /// Size of the disk, a multiple of 512 bytes
    #[arg(long, value_parser = size::parse, required_unless_present = "export", conflicts_with = "export")]
    size: Option<u64>,

    /// Name of the disk's export
    #[arg(long, default_value = "", hide_default_value = true, conflicts_with = "export")]
    name: String,

    /// A disk, of several with this option repeated: name and size, and if need be codec, memory-limit, read-only
    #[arg(long, value_name = "name=NAME,size=SIZE,…", value_parser = parse_disk)]
    export: Vec<Disk>,

    /// Listen on a Unix socket at PATH
    #[arg(long, value_name = "PATH")]
    unix: Vec<PathBuf>,

    /// Listen on TCP, on loopback unless an address is given; NBD has no password, so elsewhere trust the network
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = parse_tcp)]
    tcp: Vec<SocketAddr>,

    #[arg(
        long,
        default_value = "fold",
        value_parser = parse_codec,
        help = format!("What compresses the pages: {}; pleat and those with -dict learn from the pages written", NAMES.join(", "))
    )]
    codec: String,

    /// The most memory that each disk may take, everything counted; writes over it fail with ENOSPC
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory_limit: Option<u64>,

    /// Refuse every change
    #[arg(long)]
    read_only: bool,

    /// The most clients at a time; one more is refused, and a line says so, until another leaves
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections, value_parser = parse_connections)]
    max_connections: usize,
}

/// A disk as `--export` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Disk {
    name: String,
    size: u64,
    codec: Option<String>,
    memory_limit: Option<u64>,
    read_only: bool,
}

fn parse_tcp(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let mut found = text.to_socket_addrs().map_err(|error| format!("write PORT or ADDRESS:PORT ({error})"))?;
    found.next().ok_or_else(|| format!("'{text}' has no address"))
}

fn parse_disk(text: &str) -> Result<Disk, String> {
    const KNOWN: [&str; 5] = ["name", "size", "codec", "memory-limit", "read-only"];
    let mut values: [Option<&str>; KNOWN.len()] = Default::default();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
        let index = KNOWN.iter().position(|known| *known == key);
        let index = index.ok_or_else(|| format!("unknown '{key}'; known are {}", KNOWN.join(", ")))?;
        let value = match (key, value) {
            ("read-only", None) => "",
            ("read-only", Some(_)) => return Err("'read-only' takes no value; leave it out for a disk to write".into()),
            (_, value) => value.ok_or_else(|| format!("'{key}' needs a value: {key}=…"))?,
        };
        if values[index].replace(value).is_some() {
            return Err(format!("'{key}' is given twice"));
        }
    }
    let [name, size_bytes, codec, memory_limit, read_only] = values;
    Ok(Disk {
        name: name.ok_or("it needs name=NAME")?.to_owned(),
        size: size::parse(size_bytes.ok_or("it needs size=SIZE")?)?,
        codec: codec.map(parse_codec).transpose()?,
        memory_limit: memory_limit.map(size::parse).transpose()?,
        read_only: read_only.is_some(),
    })
}

/// The name of a codec that there is.
fn parse_codec(name: &str) -> Result<String, String> {
    by_name(name).map(|_| name.to_owned()).map_err(|error| error.to_string())
}

fn parse_connections(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "not a number from 1 on".to_owned())
}

impl Args {
    fn disks(&self) -> Vec<Disk> {
        match self.size {
            Some(size) => vec![Disk { name: self.name.clone(), size, ..Disk::default() }],
            None => self.export.clone(),
        }
    }

    fn export(&self, disk: Disk) -> anyhow::Result<Export> {
        let Disk { name, size, codec, memory_limit, read_only } = disk;
        let codec = by_name(codec.as_deref().unwrap_or(&self.codec))?;
        let memory_limit = memory_limit.or(self.memory_limit).unwrap_or(u64::MAX);
        let ram = RamDisk::new(RamConfig { size_bytes: size, codec, memory_limit })
            .with_context(|| if name.is_empty() { "no disk".to_owned() } else { format!("no disk '{name}'") })?;
        let ram: Arc<dyn BlockDevice> = Arc::new(ram);
        Ok(if read_only || self.read_only { Export::read_only(name, ram) } else { Export::new(name, ram) })
    }
}

/// Lets the process open as many files as so many connections take, which is more than most systems allow a program that does
/// not ask; says so where it may not.
fn allow_descriptors(connections: usize) {
    let needed = (connections as u64).saturating_add(OTHER_DESCRIPTORS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return;
    }
    let allowed = maximum.map_or(needed, |maximum| maximum.min(needed));
    // Where this fails, the old limit stands.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum });
    if allowed < needed {
        tell(&format!(
            "{connections} connections may take {needed} open files, and the system allows {allowed}: raise that (ulimit -Hn, \
             LimitNOFILE=) or lower --max-connections"
        ));
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let activated = Server::is_activated();
    if args.unix.is_empty() && args.tcp.is_empty() && !activated {
        return Err(misuse(anyhow!("nowhere to listen: give --unix PATH or --tcp [ADDRESS:]PORT")));
    }
    let mut server = Server::builder().limits(Limits { connections: args.max_connections, ..Limits::default() });
    allow_descriptors(args.max_connections);
    pagefold_disk::keep_no_large_blocks();
    server = server.when_refused(|why| {
        tell(&match why {
            Refused::Full(limit) => {
                format!("a client was refused: all {limit} connections that --max-connections allows are in use")
            }
            Refused::Accept(error) => format!("clients wait until others leave, since none can be accepted: {error}"),
            Refused::Thread(error) => format!("a client was turned away, since no thread can be started: {error}"),
            why => format!("a client was refused: {why:?}"),
        });
    });
    for disk in args.disks() {
        server = server.export(args.export(disk).map_err(misuse)?);
    }
    for path in &args.unix {
        server = server.unix(path);
    }
    for &address in &args.tcp {
        server = server.tcp(address);
    }
    if activated {
        server = server.activation();
    }
    // Signals are caught from before the sockets exist, so that none is left behind.
    let mut signals = signals::catch().context("cannot catch signals")?;
    let server = server.bind()?;
    let handle = server.handle();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _ in signals.forever() {
                handle.stop();
            }
        })
        .context("cannot start a thread")?;
    for path in server.unix_paths() {
        tell(&format!("serving on {}", unix_uri(path, "")));
    }
    for address in server.tcp_addresses() {
        tell(&format!("serving on nbd://{address}"));
    }
    server.run()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_loopback_unless_told_otherwise() {
        for (text, address) in [
            ("10809", "127.0.0.1:10809"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:2", "[::1]:2"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ] {
            assert_eq!(parse_tcp(text).map(|found| found.to_string()), Ok(address.to_owned()));
        }
        for text in ["", "1.2.3.4", "70000", ":", "1.2.3.4:x"] {
            assert!(parse_tcp(text).is_err(), "{text}");
        }
    }

    #[test]
    fn disks_are_read() {
        let disk = parse_disk("name=a,size=1G,codec=zstd-1,memory-limit=100M,read-only").expect("a disk");
        let codec = Some("zstd-1".to_owned());
        let expected =
            Disk { name: "a".to_owned(), size: 1 << 30, codec, memory_limit: Some(100 << 20), read_only: true };
        assert_eq!(disk, expected);
    }

    #[test]
    fn what_is_no_disk_is_refused() {
        for text in [
            "",
            "name=a",
            "size=1G",
            "name=a,size=x",
            "name=a,size=1G,colour=red",
            "name,size=1G",
            "name=a,name=b,size=1G",
            "name=a,size=1G,read-only=no",
        ] {
            assert!(parse_disk(text).is_err(), "{text}");
        }
    }
}
