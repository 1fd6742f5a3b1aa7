//! `pagefold serve`: serves compressed RAM disks and files over NBD.

mod bases;
mod child;
mod clients;
mod descriptors;
mod disks;
mod ending;
mod forks;
mod instants;
mod machine;
mod managed;
mod notify;
mod options;
mod process;
mod swap;
mod watch;

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    net::SocketAddr,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

use anyhow::{Context, anyhow};
use pagefold_base::Format;
use pagefold_codec::{Codec, NAMES};
use pagefold_control::{
    Add, Batch, Code, Limits as ControlLimits, Manage, Server as ControlServer, check_name, check_size,
};
use pagefold_serve::{Limits, Passed, Refused, Server, SocketFile, listen_privately};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tempfile::{NamedTempFile, TempDir};

use self::{
    bases::BaseFile,
    child::Running,
    disks::{Disks, DisksConfig, WhenFull},
    ending::Ending,
    managed::{Address, Managed, add_base},
    notify::notify,
    options::{MemoryLimit, parse_connections, parse_disk, parse_limit, parse_tcp},
    watch::Watch,
};
use crate::{
    codec,
    log::{Level, Log},
    misuse,
    server_directory::{self, ServerDirectory},
    signals, size,
};

/// Name of the control socket among the sockets that a service manager passes.
const PASSED_CONTROL: &str = "control";

/// Serve compressed RAM disks, and files as read-only disks, over NBD
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold serve --size 8G
  pagefold serve --memory-limit 4G --export name=root,size=4G --export name=swap,size=8G,limit=1G
  pagefold serve --size 8G --tcp 10809 --codec zstd-1
  pagefold serve --dedupe --memory-limit 16G debian.erofs
  pagefold serve --swap --memory-limit 4G --export name=swap,size=12G
  pagefold serve debian.erofs data=/dev/vg/data images.erofs:/disks/old.img
  pagefold serve --size 8G --run 'nbdcopy rootfs.ext4 \"$uri\" && nbdinfo \"$uri\"'

The server prints where it listens and the NBD URI of each disk. While it runs, 'pagefold add', \
'fork', 'snapshot', 'drop', 'resize', 'rename', 'reset', 'limit', 'compact', 'disks' and 'stat' \
manage its disks, and 'pagefold stop' ends it.

It listens on nbd.sock and control.sock in DIR: /run/pagefold for root, $XDG_RUNTIME_DIR/pagefold \
for other users. Only one server at a time can use a directory. With --run and without --dir, the \
server uses a temporary directory.

--run sets these variables for COMMAND: uri (the URI of the first disk), nbd (the same in the \
syntax of older programs), unixsocket and control (paths of the sockets).

FILE is a raw disk, a block device, a qcow2 image, or an EROFS image. If an EROFS image holds a \
single file, that file is the disk; otherwise :/PATH selects it. The disk is named after the \
file, without its extension. Images are recognized by the endings .erofs and .qcow2; a file whose \
name and contents disagree is refused unless --format names its format.

Sizes: 512M, 8G and 8GiB are powers of 1024; 8GB is a power of 1000.
On SIGINT, SIGTERM or SIGHUP the server completes requests in flight, removes its Unix sockets \
and exits with status 0. Disks are volatile: their contents are lost when the server exits.")]
pub(crate) struct Args {
    /// Serve a file as a read-only disk: [NAME=]FILE, or [NAME=]IMAGE:/PATH for a file in an EROFS
    /// image
    #[arg(value_name = "FILE")]
    files: Vec<OsString>,

    /// Format of the FILEs, whatever their names end in: raw, erofs, qcow2
    #[arg(long, requires = "files")]
    format: Option<Format>,

    /// Size of the disk, a multiple of 512 bytes
    #[arg(long, value_parser = size::parse, conflicts_with = "export")]
    size: Option<u64>,

    /// Name of the disk's export
    #[arg(long, default_value = "", hide_default_value = true, requires = "size")]
    name: String,

    /// Serve a disk with this name and size, and optionally a limit or read-only; repeat for more
    /// disks
    #[arg(long, value_name = "name=NAME,size=SIZE,…", value_parser = parse_disk)]
    export: Vec<Add>,

    /// Listen in this directory; create it if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Also listen on this Unix socket
    #[arg(long, value_name = "PATH")]
    unix: Vec<PathBuf>,

    /// Also listen on TCP, on loopback unless ADDRESS is given. NBD has no password: use other
    /// addresses only on a trusted network
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = parse_tcp)]
    tcp: Vec<SocketAddr>,

    /// Put the control socket here instead of in DIR
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

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

    /// What happens to writes beyond the server's or the disk's memory limit
    #[arg(long, value_enum, default_value_t = WhenFull::Error, value_name = "WHAT")]
    when_full: WhenFull,

    /// Store equal pages of all disks once. A client that can write to one disk can then find out
    /// by timing which pages other disks hold
    #[arg(long)]
    dedupe: bool,

    /// Make the disks given here read-only
    #[arg(long)]
    read_only: bool,

    /// Maximum number of simultaneous clients; the server refuses and logs further ones. 'pagefold
    /// limit --connections' changes it
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections, value_parser = parse_connections)]
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

    /// Write the process ID to this file once clients can connect
    #[arg(long, value_name = "PATH")]
    pid_file: Option<PathBuf>,

    /// Least severe level of messages written to standard error
    #[arg(long, value_enum, default_value_t = Level::Info, value_name = "LEVEL")]
    log: Level,
}

impl Args {
    /// Returns the disks to create at the start.
    fn disks(&self) -> Vec<Add> {
        let given = self.size.map(|size_bytes| Add {
            name: self.name.clone(),
            size_bytes,
            limit_bytes: None,
            read_only: false,
        });
        let disks = given.into_iter().chain(self.export.iter().cloned());
        disks.map(|disk| Add { read_only: disk.read_only || self.read_only, ..disk }).collect()
    }

    /// Returns the bounds on the resources of clients.
    fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        limits.connections = self.max_connections;
        limits
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

/// The open sockets of a server that does not serve yet. Fields are dropped in order: files before
/// the directory.
struct Listening {
    server: Server,
    control: UnixListener,
    control_path: Option<PathBuf>,
    _control_file: Option<SocketFile>,
    _place: Option<ServerDirectory>,
    _temporary: Option<TempDir>,
}

impl Listening {
    /// Opens the sockets. Sockets that the service manager did not pass are created in the
    /// directory.
    fn open(args: &Args, disks: &Disks, log: Log) -> anyhow::Result<Self> {
        let mut passed = Passed::take()?;
        let passed_control = passed.as_mut().and_then(|passed| passed.take_unix(PASSED_CONTROL));
        let passed = passed.filter(|passed| !passed.is_empty());
        let (mut place, mut temporary) = (None, None);
        if passed.is_none() || (args.control.is_none() && passed_control.is_none()) {
            let (directory, kept) = args.directory()?;
            temporary = kept;
            place = Some(ServerDirectory::claim(directory)?);
        }
        let mut builder = Server::builder()
            .limits(args.limits())
            .when_refused(move |why| log.warn(&refusal(&why)))
            .exports(disks.exports())
            .account(Arc::clone(disks.client_memory()) as _);
        builder = match (passed, &place) {
            (Some(passed), _) => builder.passed(passed),
            (None, Some(place)) => builder.unix(place.nbd_socket()),
            (None, None) => builder,
        };
        builder = args.unix.iter().fold(builder, |builder, path| builder.unix(path));
        builder = args.tcp.iter().fold(builder, |builder, address| builder.tcp(*address));
        let server = builder.bind()?;
        let (control, file, control_path) = match passed_control {
            Some(listener) => (listener, None, None),
            None => {
                let path = args.control.clone().or_else(|| place.as_ref().map(ServerDirectory::control_socket));
                let path = path.context("no path for the control socket: give --control PATH")?;
                let (listener, file) = listen_privately(&path)?;
                (listener, Some(file), Some(absolute(&path)))
            }
        };
        Ok(Self { server, control, control_path, _control_file: file, _place: place, _temporary: temporary })
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let log = Log::new(args.log);
    if args.exit_with_parent && !follow_parent()? {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(warning) = descriptors::allow(args.max_connections, args.limits()) {
        log.warn(&warning);
    }
    pagefold_disk::keep_no_large_blocks();
    set_huge_pages(false);
    if args.swap {
        swap::prepare(log)?;
    }
    let (limit_bytes, limit_line) = memory_limit(args.memory_limit);
    let disks = Arc::new(
        Disks::new(DisksConfig {
            codec: Arc::clone(&args.codec),
            dedupe: args.dedupe,
            limit_bytes,
            clients: args.limits(),
            when_full: args.when_full,
        })
        .map_err(misuse)?,
    );
    for disk in args.disks() {
        let added = check_name(&disk.name).and_then(|()| check_size(disk.size_bytes)).and_then(|()| disks.add(&disk));
        added.map_err(misuse)?;
    }
    for file in &args.files {
        let file = BaseFile::parse(file.clone(), args.format).map_err(|what| misuse(anyhow!(what)))?;
        check_name(&file.name).map_err(misuse)?;
        add_base(&disks, &file, log).map_err(|failure| match failure.code {
            Code::NameInUse => misuse(failure),
            _ => failure.into(),
        })?;
    }
    // Catch signals before the sockets exist, so that no signal leaves them behind.
    let mut signals = signals::catch().context("cannot catch signals")?;
    // Dropped in reverse order: files before the directory.
    let Listening { _temporary, _place, _control_file, control_path, control, server } =
        Listening::open(args, &disks, log)?;

    let ending = Arc::new(Ending::new(server.handle()));
    let managed = Arc::new(Managed {
        disks: Arc::clone(&disks),
        addresses: addresses(&server),
        ending: Arc::clone(&ending),
        server: server.handle(),
        log,
        start: Instant::now(),
    });
    let manage = Arc::clone(&managed) as Arc<dyn Manage>;
    let control = ControlServer::new(control, manage, env!("CARGO_PKG_VERSION"), ControlLimits::default());
    let control = control.context("cannot listen on the control socket")?;
    let control_handle = control.handle();
    let on_signal = Arc::clone(&ending);
    spawn("signals", move || signals.forever().for_each(|_| on_signal.begin()))?;
    let control_thread = spawn("control", move || {
        if let Err(error) = control.run() {
            log.error(&format!("the control socket failed: {error}"));
        }
    })?;
    let _watch = Watch::start(Arc::clone(&disks), log).context("cannot start a thread")?;

    for address in &managed.addresses {
        log.info(&format!("listening on {address}"));
    }
    if let Some(path) = &control_path {
        log.info(&format!("control socket {}", path.display()));
    }
    let client_warning = disks.client_memory().warning().map(|warning| (Level::Warn, warning));
    limit_line.into_iter().chain(client_warning).for_each(|(level, line)| log.write(level, &line));
    disks.list(Batch { after: None, most: usize::MAX }).iter().for_each(|disk| managed.tell_disk(disk));
    let _pid_file = args.pid_file.as_deref().map(PidFile::write).transpose()?;
    notify("READY=1");
    let variables = || variables(&managed, control_path.as_deref());
    let running = args.run.as_deref().map(|command| Running::start(command, &variables(), Arc::clone(&ending)));
    let running = running.transpose()?;

    let served = server.run();
    ending.begin();
    let code = running.map_or(Ok(0), Running::end);
    control_handle.stop();
    // A panic of the thread has already been reported.
    let _ = control_thread.join();
    served?;
    Ok(ExitCode::from(code?))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work).context("cannot start a thread")
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

/// Returns the server's memory limit: the given one, or half of the memory that there is. Also
/// returns a line that says so, or what is wrong with it.
fn memory_limit(given: Option<MemoryLimit>) -> (Option<u64>, Option<(Level, String)>) {
    match (given, machine::Memory::find()) {
        (Some(MemoryLimit::None), _) => (None, Some((Level::Info, "no memory limit".to_owned()))),
        (Some(MemoryLimit::Bytes(bytes)), memory) => {
            let warning = memory.and_then(|memory| memory.warning(bytes));
            (Some(bytes), warning.map(|warning| (Level::Warn, warning)))
        }
        (None, Some(memory)) => {
            let bytes = memory.half_bytes();
            let line = format!("memory limit {}, half of {memory}; --memory-limit sets another", size::show(bytes));
            (Some(bytes), Some((Level::Info, line)))
        }
        (None, None) => {
            let line = "no memory limit: the system does not say how much memory there is; set one with --memory-limit";
            (None, Some((Level::Warn, line.to_owned())))
        }
    }
}

/// Makes this process end with its parent. Returns `false` if the parent has already ended.
fn follow_parent() -> anyhow::Result<bool> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM)).context("cannot follow the parent process")?;
    Ok(getppid() == parent)
}

fn refusal(why: &Refused) -> String {
    match why {
        Refused::Full(limit) => {
            format!("a client was refused: all {limit} connections that the server allows are in use; raise the number with 'pagefold limit --connections N'")
        }
        Refused::Accept(error) => format!("cannot accept clients, which wait until others disconnect: {error}"),
        Refused::Thread(error) => format!("requests wait: cannot start a thread: {error}"),
        Refused::Memory => {
            "a client was refused: the memory limit leaves no room for it; raise it with 'pagefold limit SIZE'"
                .to_owned()
        }
        Refused::Work => {
            "requests wait for each other: the memory limit is too small for these clients; raise it with 'pagefold limit SIZE'"
                .to_owned()
        }
        why => format!("a client was refused: {why:?}"),
    }
}

/// Returns the addresses of the server, with absolute paths.
fn addresses(server: &Server) -> Vec<Address> {
    let unix = server.unix_paths().map(|path| Address::Unix(absolute(path)));
    unix.chain(server.tcp_addresses().map(Address::Tcp)).collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the environment of a `--run` command: nbdkit's variables and the control socket.
fn variables(managed: &Managed, control: Option<&Path>) -> Vec<(&'static str, String)> {
    let disks = managed.disks.exports().list();
    let name = disks.first().map_or_else(|| "".into(), |export| export.name());
    let first = managed.addresses.first();
    let unix = managed.addresses.iter().find_map(|address| match address {
        Address::Unix(path) => Some(path.display().to_string()),
        Address::Tcp(_) => None,
    });
    let old = match first {
        Some(Address::Unix(path)) => format!("nbd:unix:{}", path.display()),
        Some(Address::Tcp(address)) => format!("nbd:{address}"),
        None => String::new(),
    };
    let export = if name.is_empty() { String::new() } else { format!(":exportname={name}") };
    vec![
        ("uri", first.map_or_else(String::new, |address| address.uri(&name))),
        ("nbd", old + &export),
        ("unixsocket", unix.unwrap_or_default()),
        ("control", control.map_or_else(String::new, |path| path.display().to_string())),
    ]
}

/// A file with the process id, removed when this value is dropped.
struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. It gets its name once it is complete, so readers never see a part of it.
    fn write(path: &Path) -> anyhow::Result<Self> {
        let failed = || format!("cannot write {}", path.display());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = NamedTempFile::new_in(folder).with_context(failed)?;
        writeln!(file, "{}", std::process::id()).with_context(failed)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644)).with_context(failed)?;
        file.persist(path).with_context(failed)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server's file is left alone. A missing file needs no removal.
        let own = fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == std::process::id().to_string());
        if own {
            let _ = fs::remove_file(&self.0);
        }
    }
}
