//! The command line of `pagefold serve`.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, anyhow, bail};
use pagefold_base::Format;
use pagefold_codec::{Codec, NAMES};
use pagefold_control::check_name;
use pagefold_serve::{Limits, Permissions};
use pagefold_server::{Add, BaseFile, Config, MemoryLimit, Observer, WhenFull, parse_group, parse_mode};
use pagefold_storage::files_of;
use tempfile::TempDir;

use super::{
    descriptors,
    options::{
        MetricsArg, VsockArg, WhenFullArg, absolute, parse_base, parse_disk, parse_limit, parse_metrics, parse_tcp,
        parse_vsock,
    },
    tls::TlsArgs,
};
use crate::{
    codec,
    log::{Level, Log, Sink},
    manage::quota::parse_connections,
    report::misuse,
    server_directory, size,
    storage::{self, RecordArgs, RemoteArgs},
};

/// Serve compressed RAM disks, and files as read-only disks, over NBD
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold serve --size 8G
  pagefold serve --memory-limit 4G --export name=root,size=4G --export name=swap,size=8G,limit=1G
  pagefold serve --size 8G --tcp 10809 --codec zstd-1
  pagefold serve --size 8G --tcp 0.0.0.0:10809 --tls-certificates /etc/pagefold/pki --tls-verify-peer
  pagefold serve --dedupe --memory-limit 16G debian.erofs
  pagefold serve --swap --memory-limit 4G --export name=swap,size=12G
  pagefold serve debian.erofs data=/dev/vg/data images.erofs:/disks/old.img
  pagefold serve --size 8G --run 'nbdcopy rootfs.ext4 \"$uri\" && nbdinfo \"$uri\"'
  pagefold serve --detach debian.erofs && pagefold fork debian job-1
  pagefold serve --export name=vm-1,size=8G --vhost-user /run/vms
  pagefold serve --size 8G --metrics 9809
  pagefold serve --take-over --detach
  pagefold serve --size 8G --name a --files ~/disks --run 'mkfs.ext4 \"$files/a\"'
  pagefold serve --config /etc/pagefold/serve.toml --check-config

The server prints where it listens and the NBD URI of each disk. While it runs, 'pagefold add', \
'fork', 'snapshot', 'drop', 'resize', 'rename', 'reset', 'limit', 'compact', 'disks' and 'stat' \
manage its disks, and 'pagefold stop' ends it.

It listens on nbd.sock and control.sock in DIR: /run/pagefold for root, $XDG_RUNTIME_DIR/pagefold \
for other users. Only one server at a time can use a directory. With --run and without --dir, the \
server uses a temporary directory.

--run sets these variables for COMMAND: uri (the URI of the first disk), nbd (the same in the \
syntax of older programs), unixsocket and control (paths of the sockets), and files (the directory \
of --files).

--files shows each disk as a regular file in a directory, for programs that do not speak NBD. It \
needs FUSE, but not root if fusermount3 is installed. Opening a file to truncate it discards the \
disk.

--vhost-user serves disks to qemu, Cloud Hypervisor and Firecracker through memory that they share \
with the server.

FILE is a raw disk, a block device, a qcow2 image, or an EROFS image. If an EROFS image holds a \
single file, that file is the disk; otherwise :/PATH selects it. The disk is named after the \
file, without its extension. Images are recognized by the endings .erofs and .qcow2; a file whose \
name and contents disagree is refused unless --format names its format. So are files that contain \
no disk or one that cannot be read, such as compressed ones; --format raw serves their bytes, and \
--format erofs those of such a file in an image.

The file of --config is TOML: each option is a key with its name, and [[disk]], [[base]] and \
[[fork]] describe what to make. Without --config, no file is read.

Sizes: 512M, 8G and 8GiB are powers of 1024; 8GB is a power of 1000.
On SIGINT, SIGQUIT or SIGTERM the server completes requests in flight, removes its Unix sockets and exits \
with status 0. A second signal ends it without waiting for requests, with status 1. SIGHUP makes \
it open its log file and read its certificates again. Disks are volatile: their contents are lost when the server exits, unless \
another process continues it: with --take-over, or, under a systemd that stores descriptors for the \
service, the next one after SIGTERM, and with --keep-memory also after SIGKILL.")]
pub(crate) struct Args {
    /// Serve a file as a read-only disk: [NAME=]FILE, or [NAME=]IMAGE:/PATH for a file in an EROFS
    /// image
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<OsString>,

    /// Format of the FILEs, whatever their names end in: raw, erofs, qcow2
    #[arg(long, requires = "files")]
    pub(super) format: Option<Format>,

    /// A file that holds data of FILE, an EROFS image written with 'pagefold freeze --backing' or
    /// 'mkfs.erofs --blobdev'; for a single FILE; repeat in the order of the image's device table
    #[arg(long = "device", value_name = "FILE", requires = "files")]
    pub(super) devices: Vec<PathBuf>,

    #[command(flatten)]
    pub(super) remote: RemoteArgs,

    #[command(flatten)]
    pub(super) record: RecordArgs,

    /// Size of the disk, a multiple of 512 bytes
    #[arg(long, value_parser = size::parse, conflicts_with = "export")]
    pub(super) size: Option<u64>,

    /// Name of the disk's export
    #[arg(long, default_value = "", hide_default_value = true, requires = "size")]
    pub(super) name: String,

    /// Serve a disk with this name and size, and optionally limit=SIZE, connections=N, rate=SIZE or
    /// read-only; repeat for more disks
    #[arg(long, value_name = "name=NAME,size=SIZE,…", value_parser = parse_disk)]
    pub(super) export: Vec<Add>,

    /// Listen in this directory; create it if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,

    /// Also listen on this Unix socket
    #[arg(long, value_name = "PATH")]
    pub(super) unix: Vec<PathBuf>,

    /// Also serve each disk to virtual machines, on a vhost-user socket NAME.sock in this directory;
    /// create it if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(super) vhost_user: Option<PathBuf>,

    /// Show each disk as a file in this directory, which must be empty; create it if it does not exist
    #[arg(long = "files", value_name = "DIR")]
    pub(super) files_in: Option<PathBuf>,

    /// Mode of the disks' Unix sockets and files, and of the metrics' sockets, whatever the umask: with
    /// 0660, members of the group may use them
    #[arg(long, value_name = "MODE", value_parser = parse_mode, default_value = "0600")]
    pub(super) mode: u32,

    /// Group of the disks' Unix sockets and files, and of the metrics' sockets
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    pub(super) group: Option<u32>,

    /// Also listen on TCP, on loopback unless ADDRESS is given. NBD has no password: use other
    /// addresses only on a trusted network, or with --tls-verify-peer
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = parse_tcp)]
    pub(super) tcp: Vec<SocketAddr>,

    /// Also listen on vsock, for virtual machines on this host, or for the host in a virtual machine.
    /// Every process there can connect
    #[arg(long, value_name = "[CID:]PORT", value_parser = parse_vsock)]
    pub(super) vsock: Vec<VsockArg>,

    #[command(flatten)]
    pub(super) tls: TlsArgs,

    /// Put the control socket here instead of in DIR
    #[arg(long, value_name = "PATH")]
    pub(super) control: Option<PathBuf>,

    /// Serve metrics in the formats of OpenMetrics and Prometheus, at http://ADDRESS:PORT/metrics, on
    /// loopback unless ADDRESS is given, or on a Unix socket, which has the mode and the group of the
    /// disks' sockets. They name all disks
    #[arg(long, value_name = "PATH|[ADDRESS:]PORT", value_parser = parse_metrics)]
    pub(super) metrics: Vec<MetricsArg>,

    #[arg(
        long,
        default_value = "fold",
        value_parser = codec::of_pages,
        help = format!("Codec of the pages: {}. pleat and the -dict codecs train themselves on the pages written", NAMES.join(", "))
    )]
    pub(super) codec: Arc<dyn Codec>,

    /// Memory limit of the server, or 'none'; by default, half of the memory of the machine, of the
    /// control group, or of the address space. --when-full decides what happens to writes beyond it
    #[arg(long, value_name = "SIZE|none", value_parser = parse_limit)]
    pub(super) memory_limit: Option<MemoryLimit>,

    /// Maximum memory for cached content of bases, within the limit: decoded clusters, and compressed pages
    /// that make room for disks; by default, a quarter of the limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) base_cache: Option<u64>,

    /// What happens to writes beyond the server's or the disk's memory limit
    #[arg(long, value_enum, default_value_t = WhenFullArg::Error, value_name = "WHAT")]
    pub(super) when_full: WhenFullArg,

    /// Store equal pages of all disks once. A client that can write to one disk can then find out
    /// by timing which pages other disks hold
    #[arg(long)]
    pub(super) dedupe: bool,

    /// Keep the disks' memory in the service manager's store of file descriptors while the server runs:
    /// if it is killed, the next process continues with the disks, and clients have to connect again.
    /// Fresh memory takes longer to use
    #[arg(long, conflicts_with_all = ["run", "swap"])]
    pub(super) keep_memory: bool,

    /// Make the disks given here read-only
    #[arg(long)]
    pub(super) read_only: bool,

    /// Maximum number of simultaneous NBD and vhost-user clients; the server refuses and logs further
    /// ones. 'pagefold limit --connections' changes it
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections, value_parser = parse_connections::<usize>)]
    pub(super) max_connections: usize,

    /// Serve swap space: lock the server's memory in RAM, and protect it from the out-of-memory
    /// killer
    #[arg(long, conflicts_with = "run")]
    pub(super) swap: bool,

    /// Run a shell command, exit when it exits, and return its exit status
    #[arg(long, value_name = "COMMAND")]
    pub(super) run: Option<String>,

    /// Exit when the parent process exits
    #[arg(long)]
    pub(super) exit_with_parent: bool,

    /// Take over from the running server, which then exits: its disks, clients, sockets and limits.
    /// Options that describe these have no effect
    #[arg(long, conflicts_with = "run")]
    pub(super) take_over: bool,

    /// Continue in the background once clients can connect. Further messages go to the system log,
    /// or to the file that --log-file names
    #[arg(short, long, conflicts_with_all = ["run", "exit_with_parent"])]
    pub(super) detach: bool,

    /// Be the second process of `background.rs`
    #[arg(long, hide = true, requires = "detach")]
    pub(super) announce: bool,

    /// Be the third process of `background.rs`, a child of the process with this ID
    #[arg(long, hide = true, requires = "announce", value_name = "PID")]
    pub(super) orphan: Option<u32>,

    /// Write the process ID to this file once clients can connect
    #[arg(long, value_name = "PATH")]
    pub(super) pid_file: Option<PathBuf>,

    /// Least severe level of messages
    #[arg(long, value_enum, default_value_t = Level::Info, value_name = "LEVEL")]
    pub(super) log: Level,

    /// Append messages to FILE instead of writing them to standard error. An existing file must be a
    /// log or empty. SIGHUP opens it again
    #[arg(long, value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,

    /// Read options, and disks, bases and forks to make, from this file. Options on the command line
    /// replace those of the file
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Print what would be served, and exit: with status 0 if all of it can be
    #[arg(long)]
    pub(super) check_config: bool,
}

impl Args {
    /// Returns the disks to create at the start.
    pub(super) fn disks(&self) -> Vec<Add> {
        let given = self.size.map(|size_bytes| Add::new(&self.name, size_bytes));
        let disks = given.into_iter().chain(self.export.iter().cloned());
        disks.map(|disk| Add { read_only: disk.read_only || self.read_only, ..disk }).collect()
    }

    /// Returns the files to serve at the start.
    pub(super) fn files(&self) -> anyhow::Result<Vec<BaseFile>> {
        let file = |file: &OsString| {
            let size = file.to_str().filter(|text| size::parse(text).is_ok() && !Path::new(file).exists());
            if let Some(size) = size {
                let what = anyhow!("there is no file '{size}': for a RAM disk of this size, write --size {size}");
                return Err(misuse(what));
            }
            let file = parse_base(file.clone(), self.format).map_err(|what| misuse(anyhow!(what)))?;
            check_name(&file.name).map_err(misuse)?;
            Ok(BaseFile { devices: storage::absolute_all(&self.devices)?, ..file })
        };
        if !self.devices.is_empty() && self.files.len() > 1 {
            return Err(misuse(anyhow!("--device is for a single FILE: add the others with 'pagefold add'")));
        }
        let files: Vec<BaseFile> = self.files.iter().map(file).collect::<anyhow::Result<_>>()?;
        let disks = self.disks();
        let mut names = BTreeSet::new();
        for name in disks.iter().map(|disk| &disk.name).chain(files.iter().map(|file| &file.name)) {
            if !names.insert(name) {
                let what =
                    anyhow!("the name '{name}' is already that of another disk here: choose another (NAME=FILE)");
                return Err(misuse(what));
            }
        }
        Ok(files)
    }

    /// Returns the server's configuration.
    pub(super) fn config(&self, log: Log, remote: RemoteArgs) -> Config {
        let mut config = Config::default();
        config.codec = Arc::clone(&self.codec);
        config.dedupe = self.dedupe;
        config.keep_memory = self.keep_memory;
        config.limit = self.memory_limit.unwrap_or_default();
        config.base_cache_bytes = self.base_cache;
        config.when_full = match self.when_full {
            WhenFullArg::Error => WhenFull::Error,
            WhenFullArg::Wait => WhenFull::Wait,
        };
        config.clients = self.limits();
        config.files = self.own_files();
        config.has_certificates = self.tls.is_on();
        config.open = Arc::new(move |name| {
            let storage = storage::open(name, &remote)?;
            if files_of(storage.identity()).into_iter().any(|file| log.is_written_to(file)) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "this server writes its log to it: write the log to another file",
                ));
            }
            Ok(storage)
        });
        config.observer = Observer::new(move |level, line| log.write(level.into(), line));
        config.when_connections = Some(Arc::new(|count| descriptors::allow(count, Limits::default())));
        config
    }

    /// Returns the paths of the server's log, its pid file, its configuration and its certificates.
    fn own_files(&self) -> Vec<String> {
        let files = [&self.log_file, &self.pid_file, &self.config].into_iter().flatten().cloned();
        files.chain(self.tls.files()).map(|path| absolute(&path).to_string_lossy().into_owned()).collect()
    }

    /// Returns the permissions of the Unix sockets for NBD.
    pub(super) fn permissions(&self) -> Permissions {
        Permissions { mode: self.mode, group: self.group }
    }

    /// Returns the bounds on the resources of clients.
    pub(super) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        limits.connections = self.max_connections;
        limits
    }

    /// Opens the log file, or the system's log for a server in the background. Standard error gets the
    /// lines until such a server is ready, and if there is neither.
    pub(super) fn open_log(&self, log: Log) -> anyhow::Result<()> {
        match &self.log_file {
            Some(path) => {
                let sink = Sink::file(path)?;
                // A lock is empty until its server has signed it.
                let lock =
                    server_directory::path(self.dir.as_deref()).map(|directory| server_directory::lock(&directory));
                if let Ok(lock) = lock
                    && sink.is_at(&lock)
                {
                    bail!("{} is the server's own lock: name another file for the log", path.display());
                }
                log.add(sink);
                if !self.announce {
                    log.leave_stderr();
                }
            }
            None if self.announce => {
                if let Ok(sink) = Sink::system() {
                    log.add(sink);
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Returns the directory to listen in, and a guard if it is temporary.
    pub(super) fn directory(&self) -> anyhow::Result<(PathBuf, Option<TempDir>)> {
        if self.run.is_some() && self.dir.is_none() {
            let folder = private_folder().context("cannot make a directory for the sockets")?;
            return Ok((folder.path().to_owned(), Some(folder)));
        }
        Ok((server_directory::path(self.dir.as_deref())?, None))
    }
}

/// Creates a temporary directory to which only this user has access, whatever the umask.
fn private_folder() -> io::Result<TempDir> {
    let own = fs::Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix("pagefold-").permissions(own.clone()).tempdir()?;
    // The umask may have taken the user's own permissions away.
    fs::set_permissions(folder.path(), own)?;
    Ok(folder)
}
