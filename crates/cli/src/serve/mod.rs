//! `pagefold serve`: serves compressed RAM disks and files over NBD and vhost-user, and as files.

mod child;
pub(crate) mod config;
mod descriptors;
mod devices;
mod files;
mod notify;
mod options;
mod pid_file;
mod place;
mod spares;
mod store;
mod swap;
mod vhost_user;

use std::{
    ffi::OsString,
    fs, io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use anyhow::{Context, anyhow};
use pagefold_base::Format;
use pagefold_codec::{Codec, NAMES};
use pagefold_control::check_name;
use pagefold_disk::NewPoolError;
use pagefold_serve::{Limits, Passed, Permissions};
use pagefold_server::{
    Add, Address, BaseFile, Certificates, Code, Config, Ending, Manage, MemoryLimit, Observer, Server, WhenFull,
    parse_group, parse_mode,
};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tempfile::TempDir;

use self::{
    child::Running,
    config::AtStart,
    devices::BlockDevices,
    files::Directory,
    notify::notify,
    options::{
        MetricsArg, TlsArg, VsockArg, WhenFullArg, parse_base, parse_disk, parse_limit, parse_metrics, parse_tcp,
        parse_vsock,
    },
    pid_file::PidFile,
    place::Place,
    store::ManagersStore,
    vhost_user::SocketDirectory,
};
pub(crate) use self::{
    descriptors::needed as needed_descriptors,
    swap::{LEAST_LINUX as LEAST_LINUX_FOR_SWAP, version},
};
use crate::{
    background, codec,
    log::{Level, Log, Sink},
    manage::quota::parse_connections,
    misuse, server_directory, signals, size, storage,
    storage::{RecordArgs, RemoteArgs},
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
no disk or one that cannot be read, such as compressed ones; --format raw serves their bytes.

The file of --config is TOML: each option is a key with its name, and [[disk]], [[base]] and \
[[fork]] describe what to make. Without --config, no file is read.

Sizes: 512M, 8G and 8GiB are powers of 1024; 8GB is a power of 1000.
On SIGINT or SIGTERM the server completes requests in flight, removes its Unix sockets and exits \
with status 0. A second signal ends it without waiting for requests, with status 1. SIGHUP makes \
it open its log file and read its certificates again. Disks are volatile: their contents are lost when the server exits, unless \
another process continues it: with --take-over, or, under a systemd that stores descriptors for the \
service, the next one after SIGTERM.")]
pub(crate) struct Args {
    /// Serve a file as a read-only disk: [NAME=]FILE, or [NAME=]IMAGE:/PATH for a file in an EROFS
    /// image
    #[arg(value_name = "FILE")]
    files: Vec<OsString>,

    /// Format of the FILEs, whatever their names end in: raw, erofs, qcow2
    #[arg(long, requires = "files")]
    format: Option<Format>,

    /// A file that holds data of the FILE, which must be the only one: an EROFS image written with
    /// 'pagefold freeze --backing', or with 'mkfs.erofs --blobdev'; repeat in the order of the image's
    /// device table
    #[arg(long = "device", value_name = "FILE", requires = "files")]
    devices: Vec<PathBuf>,

    #[command(flatten)]
    remote: RemoteArgs,

    #[command(flatten)]
    record: RecordArgs,

    /// Size of the disk, a multiple of 512 bytes
    #[arg(long, value_parser = size::parse, conflicts_with = "export")]
    size: Option<u64>,

    /// Name of the disk's export
    #[arg(long, default_value = "", hide_default_value = true, requires = "size")]
    name: String,

    /// Serve a disk with this name and size, and optionally limit=SIZE, connections=N, rate=SIZE or
    /// read-only; repeat for more disks
    #[arg(long, value_name = "name=NAME,size=SIZE,…", value_parser = parse_disk)]
    export: Vec<Add>,

    /// Listen in this directory; create it if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Also listen on this Unix socket
    #[arg(long, value_name = "PATH")]
    unix: Vec<PathBuf>,

    /// Also serve each disk to virtual machines, on a vhost-user socket NAME.sock in this directory;
    /// create it if it does not exist
    #[arg(long, value_name = "DIR")]
    vhost_user: Option<PathBuf>,

    /// Show each disk as a file in this directory, which must be empty; create it if it does not exist
    #[arg(long = "files", value_name = "DIR")]
    files_in: Option<PathBuf>,

    /// Mode of the disks' Unix sockets and files, and of the metrics' sockets, whatever the umask: with
    /// 0660, members of the group may use them
    #[arg(long, value_name = "MODE", value_parser = parse_mode, default_value = "0600")]
    mode: u32,

    /// Group of the disks' Unix sockets and files, and of the metrics' sockets
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    group: Option<u32>,

    /// Also listen on TCP, on loopback unless ADDRESS is given. NBD has no password: use other
    /// addresses only on a trusted network, or with --tls-verify-peer
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = parse_tcp)]
    tcp: Vec<SocketAddr>,

    /// Also listen on vsock, for virtual machines on this host, or for the host in a virtual machine.
    /// Every process there can connect
    #[arg(long, value_name = "[CID:]PORT", value_parser = parse_vsock)]
    vsock: Vec<VsockArg>,

    /// Use TLS with the certificates in DIR: server-cert.pem, server-key.pem, ca-cert.pem, and
    /// ca-crl.pem if it exists. SIGHUP reads them again
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,

    /// Accept only clients whose certificates ca-cert.pem has signed
    #[arg(long, requires = "tls_certificates")]
    tls_verify_peer: bool,

    /// Whether clients must use TLS
    #[arg(long, value_enum, default_value_t = TlsArg::Require, value_name = "WHAT", requires = "tls_certificates")]
    tls: TlsArg,

    /// Put the control socket here instead of in DIR
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// Serve metrics in the formats of OpenMetrics and Prometheus, at http://ADDRESS:PORT/metrics, on
    /// loopback unless ADDRESS is given, or on a Unix socket, which has the mode and the group of the
    /// disks' sockets. They name all disks
    #[arg(long, value_name = "PATH|[ADDRESS:]PORT", value_parser = parse_metrics)]
    metrics: Vec<MetricsArg>,

    #[arg(
        long,
        default_value = "fold",
        value_parser = codec::of_pages,
        help = format!("Codec of the pages: {}. pleat and the -dict codecs train themselves on the pages written", NAMES.join(", "))
    )]
    codec: Arc<dyn Codec>,

    /// Memory limit of the server, or 'none'; by default, half of the memory of the machine or of the
    /// control group. --when-full decides what happens to writes beyond it
    #[arg(long, value_name = "SIZE|none", value_parser = parse_limit)]
    memory_limit: Option<MemoryLimit>,

    /// Most memory for what is kept of bases, within the limit: decoded clusters, and compressed pages
    /// that make room for disks; by default, a quarter of the limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    base_cache: Option<u64>,

    /// What happens to writes beyond the server's or the disk's memory limit
    #[arg(long, value_enum, default_value_t = WhenFullArg::Error, value_name = "WHAT")]
    when_full: WhenFullArg,

    /// Store equal pages of all disks once. A client that can write to one disk can then find out
    /// by timing which pages other disks hold
    #[arg(long)]
    dedupe: bool,

    /// Make the disks given here read-only
    #[arg(long)]
    read_only: bool,

    /// Maximum number of simultaneous NBD and vhost-user clients; the server refuses and logs further
    /// ones. 'pagefold limit --connections' changes it
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections, value_parser = parse_connections::<usize>)]
    max_connections: usize,

    /// Serve swap space: lock the server's memory in RAM, and protect it from the out-of-memory
    /// killer
    #[arg(long, conflicts_with = "run")]
    swap: bool,

    /// Run a shell command, exit when it exits, and return its exit status
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,

    /// Exit when the parent process exits
    #[arg(long)]
    exit_with_parent: bool,

    /// Continue the server that runs in this place, and end it: with its disks, clients, sockets and limits.
    /// Options that describe these have no effect
    #[arg(long, conflicts_with_all = ["run", "vhost_user", "files_in"])]
    take_over: bool,

    /// Go on in the background once clients can connect. Further messages go to the system log, or to
    /// the file that --log-file names
    #[arg(short, long, conflicts_with_all = ["run", "exit_with_parent"])]
    detach: bool,

    /// Be the second process of `background.rs`
    #[arg(long, hide = true, requires = "detach")]
    announce: bool,

    /// Be its third process, the child of this one, until that has ended
    #[arg(long, hide = true, requires = "announce", value_name = "PID")]
    orphan: Option<u32>,

    /// Write the process ID to this file once clients can connect
    #[arg(long, value_name = "PATH")]
    pid_file: Option<PathBuf>,

    /// Least severe level of messages
    #[arg(long, value_enum, default_value_t = Level::Info, value_name = "LEVEL")]
    log: Level,

    /// Append messages to FILE instead of writing them to standard error. SIGHUP opens it again
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,

    /// Read options, and disks, bases and forks to make, from this file. Options on the command line
    /// replace those of the file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print what would be served, and exit: with status 0 if all of it can be
    #[arg(long)]
    check_config: bool,
}

impl Args {
    /// Returns the disks to create at the start.
    fn disks(&self) -> Vec<Add> {
        let given = self.size.map(|size_bytes| Add::new(&self.name, size_bytes));
        let disks = given.into_iter().chain(self.export.iter().cloned());
        disks.map(|disk| Add { read_only: disk.read_only || self.read_only, ..disk }).collect()
    }

    /// Returns the files to serve at the start.
    fn files(&self) -> anyhow::Result<Vec<BaseFile>> {
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
        self.files.iter().map(file).collect()
    }

    /// Returns the server's configuration.
    fn config(&self, log: Log, remote: RemoteArgs) -> Config {
        let mut config = Config::default();
        config.codec = Arc::clone(&self.codec);
        config.dedupe = self.dedupe;
        config.limit = self.memory_limit.unwrap_or_default();
        config.base_cache_bytes = self.base_cache;
        config.when_full = match self.when_full {
            WhenFullArg::Error => WhenFull::Error,
            WhenFullArg::Wait => WhenFull::Wait,
        };
        config.clients = self.limits();
        config.has_certificates = self.tls_certificates.is_some();
        config.open = Arc::new(move |name| storage::open(name, &remote));
        config.observer = Observer::new(move |level, line| log.write(level.into(), line));
        config.when_connections = Some(Arc::new(|count| descriptors::allow(count, Limits::default())));
        config
    }

    /// Returns the permissions of the Unix sockets for NBD.
    fn permissions(&self) -> Permissions {
        Permissions { mode: self.mode, group: self.group }
    }

    /// Returns the bounds on the resources of clients.
    fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        limits.connections = self.max_connections;
        limits
    }

    /// Opens the log file, or the system's log for a server in the background. Standard error gets the
    /// lines until such a server is ready, and if there is neither.
    fn open_log(&self, log: Log) -> anyhow::Result<()> {
        match &self.log_file {
            Some(path) => {
                log.add(Sink::file(path)?);
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

    /// Reads the certificates.
    fn certificates(&self, log: Log) -> anyhow::Result<Option<Arc<Certificates>>> {
        let Some(directory) = &self.tls_certificates else { return Ok(None) };
        // Also after the process has left its directory.
        let certificates = Certificates::read(absolute(directory), self.tls_verify_peer)?;
        if let Some(key) = certificates.readable_key() {
            log.warn(&format!("every user of this machine can read {0}: chmod 600 {0}", key.display()));
        }
        Ok(Some(Arc::new(certificates)))
    }

    /// Returns the directory to listen in, and a guard if it is temporary.
    fn directory(&self) -> anyhow::Result<(PathBuf, Option<TempDir>)> {
        if self.run.is_some() && self.dir.is_none() {
            let folder = private_folder().context("cannot make a directory for the sockets")?;
            return Ok((folder.path().to_owned(), Some(folder)));
        }
        Ok((server_directory::path(self.dir.as_deref())?, None))
    }
}

/// Creates the server with its disks.
fn new_server(args: &Args, at_start: &AtStart, config: Config) -> anyhow::Result<Server> {
    let server = Server::new(config).map_err(|error| match error {
        NewPoolError::LimitTooSmall { .. } => misuse(error),
        error => error.into(),
    })?;
    args.disks().iter().try_for_each(|disk| server.add(disk).map(drop)).map_err(misuse)?;
    at_start.add_disks(&server, args.read_only)?;
    Ok(server)
}

/// Serves the files, and creates forks of them.
fn serve_files(server: &Server, files: &[BaseFile], at_start: &AtStart) -> anyhow::Result<()> {
    for file in files {
        server.serve_file(file).map_err(|failure| match failure.code {
            Code::NameInUse => misuse(failure),
            _ => failure.into(),
        })?;
    }
    at_start.add_bases_and_forks(server)
}

pub(crate) fn run(args: &Args, at_start: &AtStart) -> anyhow::Result<ExitCode> {
    if args.check_config {
        config::check(args, at_start)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.detach && !args.announce {
        return background::start("serve");
    }
    match args.orphan {
        None if args.announce && args.take_over => return background::start_orphan("serve"),
        None => {}
        Some(second) => background::wait_for_adoption(second),
    }
    let log = Log::new(args.log);
    if args.announce {
        background::name()?;
    }
    if args.exit_with_parent && !follow_parent()? {
        return Ok(ExitCode::SUCCESS);
    }
    let pid_file = args.pid_file.as_deref().map(|path| PidFile::check(&absolute(path))).transpose()?;
    args.open_log(log)?;
    if let Some(warning) = descriptors::allow(args.max_connections, args.limits()) {
        log.warn(&warning);
    }
    pagefold_disk::keep_no_large_blocks();
    set_huge_pages(false);
    if args.swap {
        swap::prepare(log)?;
    }
    let files = args.files()?;
    let certificates = args.certificates(log)?;
    let (remote, recording) = args.record.begin(&args.remote, &args.files, log)?;
    let mut passed = Passed::take()?;
    let stored = passed.as_mut().map(Passed::take_stored).unwrap_or_default();
    let mut taken = match args.take_over {
        true => Some(Place::take_over(args, args.config(log, remote.clone()))?),
        false if stored.is_empty() => None,
        false => Some(Place::restore(stored, args.config(log, remote.clone()))?),
    };
    let continues = taken.is_some();
    let server = match &taken {
        Some(taken) => taken.server().clone(),
        None => new_server(args, at_start, args.config(log, remote))?,
    };
    // Dropped in reverse order: files before the directory.
    let mut place = match &mut taken {
        Some(taken) => Place::of_taken(taken, passed),
        None => Place::claim(args, passed)?,
    };
    if taken.is_none() {
        serve_files(&server, &files, at_start)?;
    }
    // Catch signals before the sockets exist, so that no signal leaves them behind.
    let signals = Arc::new(Mutex::new(signals::catch().context("cannot catch signals")?));
    let belongings = place.belongings()?;
    let mut sockets = place.sockets(args, certificates.clone())?.when_stopping(|| notify("STOPPING=1"));
    sockets = sockets.belongings(belongings).when_given(|pid| notify(&format!("MAINPID={pid}")));
    let early = Arc::clone(&signals);
    sockets = sockets.gives_up_if(move || {
        let mut signals = early.lock().unwrap_or_else(PoisonError::into_inner);
        let ending = signals.pending().map(signals::name).find(|name| *name != "SIGHUP");
        ending.map(|name| format!("it has received {name}"))
    });
    if args.run.is_some() {
        sockets = sockets.obstacle(|| Some("it runs the command of --run".to_owned()));
    } else if !args.swap {
        // Between the two processes, nobody would serve pages of swap that the system may need.
        sockets = sockets.store(Arc::new(ManagersStore));
    }
    if let Some(directory) = &args.vhost_user {
        descriptors::allow_most();
        sockets = sockets.transport(SocketDirectory::new(absolute(directory), args.permissions()));
    }
    if let Some(path) = &args.files_in {
        sockets = sockets.transport(Directory::new(absolute(path), args.permissions()));
    }
    sockets = sockets.transport(BlockDevices::default());
    let (to_signals, from_server) = mpsc::channel::<Ending>();
    let leaving = server.clone();
    let catch = move || {
        // Otherwise the server does not listen.
        let Ok(on_signal) = from_server.recv() else { return };
        let mut signals = signals.lock().unwrap_or_else(PoisonError::into_inner);
        for signal in signals.forever() {
            match signals::name(signal) {
                "SIGHUP" => {
                    let what = if log.reopen() { "opened the log file again" } else { "there is no log file to open" };
                    log.info(&format!("received SIGHUP: {what}"));
                    match certificates.as_ref().map(|certificates| certificates.read_again()) {
                        None => {}
                        Some(Ok(())) => log.info("read the certificates again: they apply to new clients"),
                        Some(Err(error)) => {
                            let error = anyhow::Error::from(error);
                            log.error(&format!("the earlier certificates stay in use: {error:#}"));
                        }
                    }
                }
                name if name == "SIGTERM" && leaving.leave("received SIGTERM") => {}
                name => on_signal.signal(name),
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(catch).context("cannot start a thread")?;
    if args.announce && taken.is_some() {
        // From here on, what ends the first process does not end this one.
        background::leave_session()?;
    }
    let mut listening = match taken {
        Some(taken) => taken.listen(sockets)?,
        None => server.listen(sockets)?,
    };
    let ending = listening.ending();
    // The thread waits for it.
    let _ = to_signals.send(ending.clone());
    // The disks of a server that is continued are only here, so it goes on whatever fails.
    let or_go_on = |result: anyhow::Result<()>| match result {
        Err(error) if continues => {
            log.warn(&format!("{error:#}"));
            Ok(())
        }
        result => result,
    };
    or_go_on(place.own())?;
    or_go_on(recording.as_ref().map_or(Ok(()), |recording| recording.start()))?;
    let mut written = None;
    or_go_on(pid_file.map_or(Ok(()), |file| PidFile::write(file).map(|file| written = Some(file))))?;
    let main = if args.take_over { format!("MAINPID={}\n", std::process::id()) } else { String::new() };
    notify(&format!("{main}READY=1"));
    if args.announce {
        if !log.has_sink() {
            log.warn("there is no system log: further messages are lost; --log-file FILE keeps them");
        }
        or_go_on(background::announce())?;
        log.leave_stderr();
    }
    let files = args.files_in.as_deref().map(absolute).unwrap_or_default();
    let variables = || variables(&server, listening.control_path(), &files);
    let running = args.run.as_deref().map(|command| Running::start(command, &variables(), ending.clone()));
    let running = running.transpose()?;

    let served = listening.run();
    if listening.was_given() {
        // What is left of this server is the other's.
        recording.iter().for_each(|recording| recording.finish());
        drop(written);
        std::process::exit(0);
    }
    let code = running.map_or(Ok(0), Running::end);
    drop(listening);
    recording.iter().for_each(|recording| recording.finish());
    if ending.is_forced() {
        return Ok(ExitCode::FAILURE);
    }
    served?;
    Ok(ExitCode::from(code?))
}

/// Sets whether this process and those that it starts may use huge pages. Where the system uses
/// them unasked, a thread's stack or a heap with a single touched page would otherwise take 2 MiB,
/// which no limit could account for.
fn set_huge_pages(may: bool) {
    // Kernels without huge pages refuse.
    let _ = rustix::thread::disable_transparent_huge_pages(!may);
}

/// Creates a temporary directory to which only this user has access, whatever the umask.
fn private_folder() -> io::Result<TempDir> {
    let own = fs::Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix("pagefold-").permissions(own.clone()).tempdir()?;
    // The umask may have taken the user's own permissions away.
    fs::set_permissions(folder.path(), own)?;
    Ok(folder)
}

/// Makes this process end with its parent. Returns `false` if the parent has already ended.
fn follow_parent() -> anyhow::Result<bool> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM)).context("cannot follow the parent process")?;
    Ok(getppid() == parent)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the environment of a `--run` command: nbdkit's variables, the control socket and the
/// directory of the disks' files.
fn variables(server: &Server, control: Option<&Path>, files: &Path) -> Vec<(&'static str, String)> {
    let name = server.first_name();
    let first = server.addresses().first();
    let unix = server.addresses().iter().find_map(|address| match address {
        Address::Unix(path) => Some(path.display().to_string()),
        Address::Tcp { .. } | Address::Vsock { .. } => None,
    });
    let old = match first {
        Some(Address::Unix(path)) => format!("nbd:unix:{}", path.display()),
        Some(Address::Tcp { reachable, .. }) => format!("nbd:{reachable}"),
        // The older syntax has no such addresses.
        Some(Address::Vsock { .. }) | None => String::new(),
    };
    let export = if name.is_empty() { String::new() } else { format!(":exportname={name}") };
    vec![
        ("uri", first.map_or_else(String::new, |address| address.uri(&name))),
        ("nbd", old + &export),
        ("unixsocket", unix.unwrap_or_default()),
        ("control", control.map_or_else(String::new, |path| path.display().to_string())),
        ("files", files.display().to_string()),
    ]
}
