//! `pagefold serve`: serves compressed RAM disks and files over NBD and vhost-user, and as files.

mod args;
mod child;
pub(crate) mod config;
mod descriptors;
mod huge_pages;
mod options;
mod place;
mod starting;
mod swap;
mod tls;

use std::{
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use anyhow::{Context, anyhow};
use pagefold_output::{Inputs, PidFile};
use pagefold_serve::Passed;
use pagefold_server::{Address, Ending, Server, ServiceManager, Taken};
use pagefold_ways::{BlockDevices, Directory, SocketDirectory, taken as continue_transport};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

pub(crate) use self::args::Args;
use self::{
    child::Running,
    config::AtStart,
    huge_pages::set_huge_pages,
    options::absolute,
    place::Place,
    starting::{new_server, serve_files},
};
pub(crate) use self::{
    descriptors::needed as needed_descriptors,
    swap::{LEAST_LINUX as LEAST_LINUX_FOR_SWAP, version},
};
use crate::{background, log::Log, report::misuse, signals};

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
    let files = args.files()?;
    let mut inputs = Inputs::default();
    files.iter().for_each(|file| inputs.add("the base", &file.path));
    let check = |path: &Path| {
        PidFile::check(&absolute(path), &inputs).with_context(|| format!("cannot write {}", path.display()))
    };
    if let (Some(log), Some(pid)) = (&args.log_file, &args.pid_file)
        && absolute(log) == absolute(pid)
    {
        return Err(misuse(anyhow!("--log-file and --pid-file need a file each, not {} for both", log.display())));
    }
    let pid_file = args.pid_file.as_deref().map(check).transpose()?;
    args.open_log(log)?;
    if let Some(warning) = descriptors::allow(args.max_connections, args.limits()) {
        log.warn(&warning);
    }
    pagefold_disk::keep_no_large_blocks();
    set_huge_pages(false);
    if args.swap {
        swap::prepare(log)?;
    }
    let manager = ServiceManager::of_environment();
    if args.keep_memory && !args.take_over && manager.store_room() == 0 {
        return Err(misuse(anyhow!(
            "--keep-memory: there is no service manager that stores file descriptors for this process (NOTIFY_SOCKET, \
             FDSTORE; FileDescriptorStoreMax= in a unit of systemd)"
        )));
    }
    let certificates = args.tls.certificates(log)?;
    let (remote, recording) = args.record.begin(&args.remote, &args.files, log)?;
    let mut passed = Passed::take()?;
    let stored = passed.as_mut().map(Passed::take_stored).unwrap_or_default();
    if args.take_over {
        // As many connections as the other server has.
        descriptors::allow_most();
    }
    let mut taken = match args.take_over {
        true => Some(Place::take_over(args, args.config(log, remote.clone()))?),
        false if stored.is_empty() => None,
        false => Some(Place::restore(stored, args.config(log, remote.clone()), &manager)?),
    };
    let continues = taken.is_some();
    let server = match &taken {
        Some(taken) => taken.server().clone(),
        None => new_server(args, at_start, args.config(log, remote))?,
    };
    // Dropped in reverse order: files before the directory.
    let mut place = match &mut taken {
        Some(taken) if !taken.was_killed() => Place::of_taken(taken, passed, manager.clone()),
        _ => Place::claim(args, passed, manager.clone())?,
    };
    if taken.is_none() {
        serve_files(&server, &files, at_start)?;
    }
    // Catch signals before the sockets exist, so that no signal leaves them behind.
    let signals = Arc::new(Mutex::new(signals::Caught::new().context("cannot catch signals")?));
    let belongings = place.belongings()?;
    let mut sockets = place.sockets(args, certificates.clone())?.belongings(belongings);
    let stopping = manager.clone();
    sockets = sockets.when_stopping(move || stopping.notify("STOPPING=1"));
    let given = manager.clone();
    sockets = sockets.when_given(move |pid| given.notify(&format!("MAINPID={pid}")));
    let early = Arc::clone(&signals);
    sockets = sockets.gives_up_if(move || {
        let mut signals = early.lock().unwrap_or_else(PoisonError::into_inner);
        signals.ending().map(|name| format!("it has received {name}"))
    });
    if args.run.is_some() {
        sockets = sockets.obstacle(|| Some("it runs the command of --run".to_owned()));
    } else if !args.swap {
        // Between the two processes, no server would serve pages of swap that the system may need.
        sockets = sockets.store(manager.store());
    }
    let transports = taken.as_mut().map(Taken::take_transports).unwrap_or_default();
    let has = |name: &str| transports.iter().any(|transport| transport.name == name);
    let (continues_files, continues_sockets) = (has(Directory::NAME), has(SocketDirectory::NAME));
    for transport in transports {
        sockets = sockets.taken_transport(continue_transport(transport).map_err(|error| anyhow!("{error}"))?);
    }
    if let Some(directory) = args.vhost_user.as_ref().filter(|_| !continues_sockets) {
        descriptors::allow_most();
        sockets = sockets.transport(SocketDirectory::new(absolute(directory), args.permissions()));
    }
    if let Some(path) = args.files_in.as_ref().filter(|_| !continues_files) {
        sockets = sockets.transport(Directory::new(absolute(path), args.permissions()));
    }
    sockets = sockets.transport(BlockDevices::default());
    let (to_signals, from_server) = mpsc::channel::<Ending>();
    let leaving = server.clone();
    let catch = move || {
        // The thread ends if the server does not listen.
        let Ok(on_signal) = from_server.recv() else { return };
        let mut signals = signals.lock().unwrap_or_else(PoisonError::into_inner);
        for signal in signals.forever() {
            match signals::name(signal) {
                "SIGHUP" => {
                    log.info(&format!("received SIGHUP: {}", log.reopen()));
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
    // Only this process has the disks of a server that it continues, so it goes on whatever fails.
    let or_go_on = |result: anyhow::Result<()>| match result {
        Err(error) if continues => {
            log.warn(&format!("{error:#}"));
            Ok(())
        }
        result => result,
    };
    // Now the service manager's socket, which a signal may need, is known.
    or_go_on(place.own())?;
    // The thread waits to receive this.
    let _ = to_signals.send(ending.clone());
    or_go_on(recording.as_ref().map_or(Ok(()), |recording| recording.start()))?;
    let mut written = None;
    let write = |file| {
        written = Some(PidFile::write(file)?);
        Ok(())
    };
    or_go_on(pid_file.map_or(Ok(()), write))?;
    let main = if args.take_over { format!("MAINPID={}\n", std::process::id()) } else { String::new() };
    manager.notify(&format!("{main}READY=1"));
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
        // This exits without cleaning up: the other process has this one's files now.
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

/// Makes this process end with its parent. Returns `false` if the parent has already ended.
fn follow_parent() -> anyhow::Result<bool> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM)).context("cannot follow the parent process")?;
    Ok(getppid() == parent)
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
