//! `pagefold serve`: serves compressed RAM disks and files over NBD.

mod bases;
mod child;
mod clients;
mod compaction;
mod descriptors;
mod disks;
mod ending;
mod forks;
mod in_use;
mod instants;
mod machine;
mod managed;
mod notify;
mod options;
mod process;
mod sockets;
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
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use pagefold_base::Format;
use pagefold_codec::{Codec, NAMES};
use pagefold_control::{
    Add, Batch, Code, Limits as ControlLimits, Manage, Server as ControlServer, check_limit, check_name, check_size,
};
use pagefold_disk::NewPoolError;
use pagefold_serve::{ClientEvent, Limits, Passed, Permissions, Refused, Server, SocketFile, listen_privately};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tempfile::{NamedTempFile, TempDir};

pub(crate) use self::ending::waits_for;
use self::{
    bases::BaseFile,
    child::Running,
    disks::{Disks, DisksConfig, WhenFull},
    ending::Ending,
    managed::{Address, Managed, add_base},
    notify::notify,
    options::{MemoryLimit, parse_connections, parse_disk, parse_limit, parse_tcp},
    sockets::{parse_group, parse_mode},
    watch::Watch,
};
use crate::{
    background, codec,
    destination::{Draft, Inputs, NewFile, Written},
    log::{Level, Log, Sink},
    misuse,
    server_directory::{self, ServerDirectory},
    signals, size,
};

/// How long a server that does not wait for requests waits for its clients of the control socket.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

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
  pagefold serve --detach debian.erofs && pagefold fork debian job-1

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
name and contents disagree is refused unless --format names its format. So are files that contain \
no disk or one that cannot be read, such as compressed ones; --format raw serves their bytes.

Sizes: 512M, 8G and 8GiB are powers of 1024; 8GB is a power of 1000.
On SIGINT or SIGTERM the server completes requests in flight, removes its Unix sockets and exits \
with status 0. A second signal ends it without waiting for requests, with status 1. SIGHUP makes \
it open its log file again. Disks are volatile: their contents are lost when the server exits.")]
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

    /// Mode of the Unix sockets for NBD, whatever the umask: with 0660, members of the group may
    /// connect
    #[arg(long, value_name = "MODE", value_parser = parse_mode, default_value = "0600")]
    mode: u32,

    /// Group of the Unix sockets for NBD
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    group: Option<u32>,

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

    /// Go on in the background once clients can connect. Further messages go to the system log, or to
    /// the file that --log-file names
    #[arg(short, long, conflicts_with_all = ["run", "exit_with_parent"])]
    detach: bool,

    /// Be the second process of `background.rs`
    #[arg(long, hide = true, requires = "detach")]
    announce: bool,

    /// Write the process ID to this file once clients can connect
    #[arg(long, value_name = "PATH")]
    pid_file: Option<PathBuf>,

    /// Least severe level of messages
    #[arg(long, value_enum, default_value_t = Level::Info, value_name = "LEVEL")]
    log: Level,

    /// Append messages to FILE instead of writing them to standard error. SIGHUP opens it again
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

impl Args {
    /// Returns the disks to create at the start.
    fn disks(&self) -> Vec<Add> {
        let given = self.size.map(|size_bytes| Add {
            name: self.name.clone(),
            size_bytes,
            limit_bytes: None,
            read_only: false,
            socket: None,
        });
        let disks = given.into_iter().chain(self.export.iter().cloned());
        disks.map(|disk| Add { read_only: disk.read_only || self.read_only, ..disk }).collect()
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

    /// Returns the directory to listen in, and a guard if it is temporary.
    fn directory(&self) -> anyhow::Result<(PathBuf, Option<TempDir>)> {
        if self.run.is_some() && self.dir.is_none() {
            let folder = private_folder().context("cannot make a directory for the sockets")?;
            return Ok((folder.path().to_owned(), Some(folder)));
        }
        Ok((server_directory::path(self.dir.as_deref())?, None))
    }
}

/// Where a server will listen: sockets that the service manager passed, and a directory if they are
/// not enough. Fields are dropped in order: the directory is unlocked before it is removed.
struct Place {
    passed: Option<Passed>,
    control: Option<UnixListener>,
    directory: Option<ServerDirectory>,
    _temporary: Option<TempDir>,
}

impl Place {
    /// Claims the place. From now on, other commands wait for this server.
    fn claim(args: &Args) -> anyhow::Result<Self> {
        let mut passed = Passed::take()?;
        let control = passed.as_mut().and_then(|passed| passed.take_unix(PASSED_CONTROL));
        let passed = passed.filter(|passed| !passed.is_empty());
        let mut place = Self { passed, control, directory: None, _temporary: None };
        if place.passed.is_none() || (args.control.is_none() && place.control.is_none()) {
            let (directory, temporary) = args.directory()?;
            place._temporary = temporary;
            place.directory = Some(ServerDirectory::claim(directory)?);
        }
        Ok(place)
    }
}

/// The open sockets of a server that does not serve yet. Fields are dropped in order: files before
/// the directory.
struct Listening {
    server: Server,
    control: UnixListener,
    control_path: Option<PathBuf>,
    _control_file: Option<SocketFile>,
}

impl Listening {
    /// Opens the sockets. Sockets that the service manager did not pass are created in the
    /// directory.
    fn open(args: &Args, place: &mut Place, disks: &Disks, log: Log) -> anyhow::Result<Self> {
        let mut builder = Server::builder()
            .limits(args.limits())
            .when_refused(move |why| log.warn(&refusal(&why)))
            .when_client(move |ClientEvent { peer, export, begins, .. }| {
                let does = if begins { "connected" } else { "disconnected" };
                log.debug(&format!("{peer} {does}: disk '{export}'"));
            })
            .exports(disks.exports())
            .account(Arc::clone(disks.client_memory()) as _);
        builder = match (place.passed.take(), &place.directory) {
            (Some(passed), _) => builder.passed(passed),
            (None, Some(directory)) => builder.unix_for(directory.nbd_socket(), args.permissions()),
            (None, None) => builder,
        };
        builder = args.unix.iter().fold(builder, |builder, path| builder.unix_for(absolute(path), args.permissions()));
        builder = args.tcp.iter().fold(builder, |builder, address| builder.tcp(*address));
        let server = builder.bind()?;
        let (control, file, control_path) = match place.control.take() {
            Some(listener) => (listener, None, None),
            None => {
                let path = args.control.as_deref().map(absolute);
                let path = path.or_else(|| place.directory.as_ref().map(ServerDirectory::control_socket));
                let path = path.context("no path for the control socket: give --control PATH")?;
                let (listener, file) = listen_privately(&path)?;
                (listener, Some(file), Some(path))
            }
        };
        Ok(Self { server, control, control_path, _control_file: file })
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.detach && !args.announce {
        return background::start("serve");
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
    let (limit_bytes, limit_line) = memory_limit(args.memory_limit);
    let files = args.files.iter().map(|file| {
        let size = file.to_str().filter(|text| size::parse(text).is_ok() && !Path::new(file).exists());
        if let Some(size) = size {
            return Err(misuse(anyhow!("there is no file '{size}': for a RAM disk of this size, write --size {size}")));
        }
        let file = BaseFile::parse(file.clone(), args.format).map_err(|what| misuse(anyhow!(what)))?;
        check_name(&file.name).map_err(misuse)?;
        Ok(file)
    });
    let files = files.collect::<anyhow::Result<Vec<_>>>()?;
    let disks = Disks::new(DisksConfig {
        codec: Arc::clone(&args.codec),
        dedupe: args.dedupe,
        limit_bytes,
        clients: args.limits(),
        when_full: args.when_full,
    });
    let disks = Arc::new(disks.map_err(|error| match error {
        NewPoolError::LimitTooSmall { .. } => misuse(error),
        error => error.into(),
    })?);
    for disk in args.disks() {
        let checked = check_name(&disk.name).and_then(|()| check_size(disk.size_bytes));
        let checked = checked.and_then(|()| check_limit(disk.limit_bytes));
        checked.and_then(|()| disks.add(&disk)).map_err(misuse)?;
    }
    // Dropped in reverse order: files before the directory.
    let mut place = Place::claim(args)?;
    for file in &files {
        add_base(&disks, file, None, log).map_err(|failure| match failure.code {
            Code::NameInUse => misuse(failure),
            _ => failure.into(),
        })?;
    }
    // Catch signals before the sockets exist, so that no signal leaves them behind.
    let mut signals = signals::catch().context("cannot catch signals")?;
    let Listening { _control_file, control_path, control, server } = Listening::open(args, &mut place, &disks, log)?;

    disks.set_server(server.handle());

    let ending = Arc::new(Ending::new(server.handle(), log));
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
    spawn("signals", move || {
        for signal in signals.forever() {
            match signals::name(signal) {
                "SIGHUP" => {
                    let what = if log.reopen() { "opened the log file again" } else { "there is no log file to open" };
                    log.info(&format!("received SIGHUP: {what}"));
                }
                name => on_signal.signal(name),
            }
        }
    })?;
    let control_thread = spawn("control", move || {
        if let Err(error) = control.run() {
            log.error(&format!("the control socket failed: {error}"));
        }
    })?;
    let _watch = Watch::start(Arc::clone(&disks), Arc::clone(&ending), log).context("cannot start a thread")?;

    for address in &managed.addresses {
        log.info(&format!("listening on {address}"));
        if let Address::Tcp { address, .. } = address
            && !address.ip().is_loopback()
        {
            log.warn(&format!(
                "{address} may be reached from other machines, and NBD has no password: everyone who reaches it can \
                 read and write every disk"
            ));
        }
    }
    if let Some(path) = &control_path {
        log.info(&format!("control socket {}", path.display()));
    }
    let client_warning = disks.client_memory().warning().map(|warning| (Level::Warn, warning));
    limit_line.into_iter().chain(client_warning).for_each(|(level, line)| log.write(level, &line));
    disks.list(Batch { after: None, most: usize::MAX }).iter().for_each(|disk| managed.tell_disk(disk));
    let _pid_file = pid_file.map(PidFile::write).transpose()?;
    notify("READY=1");
    if args.announce {
        if !log.has_sink() {
            log.warn("there is no system log: further messages are lost; --log-file FILE keeps them");
        }
        background::announce()?;
        log.leave_stderr();
    }
    let variables = || variables(&managed, control_path.as_deref());
    let running = args.run.as_deref().map(|command| Running::start(command, &variables(), Arc::clone(&ending)));
    let running = running.transpose()?;

    let served = server.run();
    ending.begin("the server failed");
    let code = running.map_or(Ok(0), Running::end);
    control_handle.stop();
    if ending.is_forced() {
        // Threads that are stuck in a request end with the process. Clients get their answers first.
        let deadline = Instant::now() + LAST_ANSWERS;
        while !control_thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        return Ok(ExitCode::FAILURE);
    }
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
    let unix = server.unix_paths().map(|path| Address::Unix(absolute(&path)));
    unix.chain(server.tcp_addresses().map(Address::tcp)).collect()
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
        Address::Tcp { .. } => None,
    });
    let old = match first {
        Some(Address::Unix(path)) => format!("nbd:unix:{}", path.display()),
        Some(Address::Tcp { reachable, .. }) => format!("nbd:{reachable}"),
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
    /// Checks that the file can be written, and that no other file is replaced than one of a server.
    fn check(path: &Path) -> anyhow::Result<NewFile> {
        let checked = NewFile::at(path, Written::ProcessId, false, &Inputs::default());
        checked.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the file. It gets its name once it is complete, so readers never see a part of it.
    fn write(file: NewFile) -> anyhow::Result<Self> {
        let failed = || format!("cannot write {}", file.path().display());
        let mut draft = NamedTempFile::new_in(file.folder()).with_context(failed)?;
        writeln!(draft, "{}", std::process::id()).with_context(failed)?;
        draft.as_file().set_permissions(fs::Permissions::from_mode(0o644)).with_context(failed)?;
        file.take(Draft::Named(draft))?;
        Ok(Self(file.path().to_owned()))
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
