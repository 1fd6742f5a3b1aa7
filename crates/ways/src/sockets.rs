//! Disks for virtual machines, each on a socket.
//!
//! A disk's socket has the name of the disk and `.sock`, except that `/` and `%` are escaped as `%2F`
//! and `%25`, as in URIs. The socket of a disk without a name is `%.sock`.

use std::{
    collections::HashMap,
    fmt,
    fs::DirBuilder,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use pagefold_executor::{Event as ExportEvent, Export, Stopper};
use pagefold_files::file_name;
use pagefold_serve::{Permissions, Shared, SocketFile, listen_with};
use pagefold_server::{Ending, HandedTransport, Host, Level, Observer, TakenTransport, Transport, TransportError};
use pagefold_vhost_user::{Config, Event, Listening, Server, SocketState};
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;

/// Interval between two checks whether a server that ends still waits for requests.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves each disk on a vhost-user socket in a directory. Each socket takes an open file, so a
/// program that serves many disks should raise the limit of open files.
pub struct SocketDirectory {
    path: PathBuf,
    permissions: Permissions,
    /// What another process has handed over, until this transport starts.
    taken: Option<TakenSockets>,
    serving: Option<Serving>,
}

struct Serving {
    server: Arc<Server>,
    sockets: Arc<Mutex<Sockets>>,
    stopper: Stopper,
    /// Starts the thread's work.
    begin: Option<mpsc::Sender<()>>,
    thread: JoinHandle<()>,
    ending: Ending,
}

impl Serving {
    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&mut self) {
        if let Some(begin) = self.begin.take() {
            // The thread waits to receive this.
            let _ = begin.send(());
        }
    }

    fn end_thread(&mut self) {
        self.stopper.stop();
        self.begin = None;
    }
}

/// The state without its descriptors. A field that a later version adds needs a default.
#[derive(Debug, Serialize, Deserialize)]
struct DirectoryState {
    directory: String,
    mode: u32,
    group: Option<u32>,
    sockets: Vec<NamedSocket>,
}

#[derive(Debug, Serialize, Deserialize)]
struct NamedSocket {
    /// The number of its export.
    number: u64,
    /// `None` if it has no file whose name is UTF-8.
    file: Option<FileState>,
    descriptors: usize,
    state: SocketState,
}

/// The file of a socket, which may be gone or replaced.
#[derive(Debug, Serialize, Deserialize)]
struct FileState {
    name: String,
    /// The device and the number of its inode.
    inode: (u64, u64),
}

/// What another process has handed over.
struct TakenSockets {
    state: DirectoryState,
    descriptors: Vec<OwnedFd>,
}

impl SocketDirectory {
    /// The name by which another process knows that it continues sockets of disks.
    pub const NAME: &str = "vhost-user";

    /// Serves the disks in the directory `path`, which is created if it does not exist. `permissions` are
    /// those of the sockets.
    pub fn new(path: impl Into<PathBuf>, permissions: Permissions) -> Self {
        Self { path: path.into(), permissions, taken: None, serving: None }
    }

    /// Continues the sockets of another process, and their frontends.
    ///
    /// # Errors
    /// The state is not that of such a directory.
    pub fn taken(transport: TakenTransport) -> Result<Self, TransportError> {
        let TakenTransport { state, descriptors, .. } = transport;
        let state: DirectoryState = serde_json::from_str(state.get())?;
        let permissions = Permissions { mode: state.mode, group: state.group };
        let path = PathBuf::from(&state.directory);
        Ok(Self { path, permissions, taken: Some(TakenSockets { state, descriptors }), serving: None })
    }
}

impl fmt::Debug for SocketDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketDirectory").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Transport for SocketDirectory {
    fn start(&mut self, host: &Host) -> Result<(), TransportError> {
        let directory = self.path.clone();
        DirBuilder::new().recursive(true).mode(0o755).create(&directory).map_err(|error| failed(&directory, &error))?;
        let (opener, observer) = (host.clone(), host.observer().clone());
        let open = Box::new(move |export: &Export| opener.open(export));
        let start = if self.taken.is_some() { Server::start_paused } else { Server::start };
        let server = start(Config::default(), open, log_events(observer));
        let server = Arc::new(server.map_err(|error| failed(&directory, &error))?);
        let mut sockets = Sockets {
            directory,
            permissions: self.permissions,
            server: Arc::clone(&server),
            observer: host.observer().clone(),
            open: HashMap::new(),
        };
        let mut watch = host.exports().watch();
        let stopper = watch.stopper();
        let mut events: Vec<_> = std::iter::from_fn(|| watch.take()).collect();
        let is_taken = self.taken.is_some();
        if let Some(taken) = self.taken.take() {
            events = sockets.adopt(taken, events)?;
        } else {
            // When this function returns, the sockets of all existing disks are open.
            events.drain(..).for_each(|event| sockets.follow(event));
        }
        let sockets = Arc::new(Mutex::new(sockets));
        let (begin, begins) = mpsc::channel();
        let of_thread = Arc::clone(&sockets);
        let follow = move || {
            if begins.recv().is_err() {
                return;
            }
            let follow = |event| of_thread.lock().unwrap_or_else(PoisonError::into_inner).follow(event);
            events.into_iter().for_each(follow);
            while let Some(event) = watch.wait() {
                follow(event);
            }
        };
        let thread = thread::Builder::new().name("vhost sockets".to_owned()).spawn(follow)?;
        let ending = host.ending().clone();
        let mut serving = Serving { server, sockets, stopper, begin: Some(begin), thread, ending };
        if !is_taken {
            serving.begin();
        }
        self.serving = Some(serving);
        Ok(())
    }

    fn pause(&mut self, patience: Duration) -> Result<Option<HandedTransport>, String> {
        let Some(serving) = &self.serving else { return Ok(None) };
        serving.server.pause(patience)?;
        serving.sockets().hand_over().map(Some)
    }

    fn go_on(&mut self) {
        let Some(serving) = &mut self.serving else { return };
        serving.sockets().own();
        serving.server.go_on();
        serving.begin();
    }

    fn give_away(&mut self) {
        let Some(mut serving) = self.serving.take() else { return };
        serving.sockets().leave();
        serving.end_thread();
        // A panic has been reported.
        let _ = serving.thread.join();
        serving.server.give_away();
    }

    fn stop(&mut self) {
        let Some(mut serving) = self.serving.take() else { return };
        serving.end_thread();
        let Serving { server, sockets, thread, ending, .. } = serving;
        // A panic has been reported.
        let _ = thread.join();
        drop(sockets);
        while !server.stop(PAUSE) {
            if ending.is_forced() {
                // Its threads are stuck in requests, and end with the process.
                std::mem::forget(server);
                return;
            }
        }
    }
}

fn failed(directory: &Path, error: &std::io::Error) -> String {
    format!("cannot serve vhost-user sockets in '{}': {error}", directory.display())
}

/// Returns a function that logs the events of sockets.
fn log_events(observer: Observer) -> pagefold_vhost_user::Notify {
    Box::new(move |disk, event| match event {
        Event::Connected => observer.log(Level::Debug, &format!("a virtual machine connected: disk '{disk}'")),
        Event::Disconnected => observer.log(Level::Debug, &format!("a virtual machine disconnected: disk '{disk}'")),
        Event::Refused(why) => {
            observer.log(Level::Warn, &format!("a virtual machine is not served: disk '{disk}': {why}"));
        }
        Event::QueueBroken(queue, why) => {
            let line = format!("queue {queue} of disk '{disk}' stopped, the guest must reset the device: {why}");
            observer.log(Level::Warn, &line);
        }
        event => observer.log(Level::Debug, &format!("disk '{disk}': {event:?}")),
    })
}

/// The sockets of a directory.
struct Sockets {
    directory: PathBuf,
    permissions: Permissions,
    server: Arc<Server>,
    observer: Observer,
    /// By the numbers of their exports.
    open: HashMap<u64, Socket>,
}

struct Socket {
    listening: Listening,
    /// Dropped last: a frontend that finds the file can connect. `None` if it is gone.
    file: Option<SocketFile>,
}

impl Sockets {
    fn follow(&mut self, event: ExportEvent) {
        match event {
            ExportEvent::Added { number, name, export } => match self.listen(&name, export) {
                Ok(socket) => _ = self.open.insert(number, socket),
                Err(why) => self.warn(&name, &why),
            },
            ExportEvent::Renamed { number, name, .. } => {
                let path = self.path(&name);
                if let Some(Socket { file: Some(file), .. }) = self.open.get_mut(&number)
                    && let Err(why) = path.and_then(|path| file.rename(&path).map_err(|error| error.to_string()))
                {
                    let why = format!("it keeps '{}': {why}", file.path().display());
                    self.warn(&name, &why);
                }
            }
            ExportEvent::Removed { number, .. } => drop(self.open.remove(&number)),
        }
    }

    /// Returns what another process needs to continue the sockets, while the server pauses.
    fn hand_over(&self) -> Result<HandedTransport, String> {
        let directory = self.directory.to_str().ok_or("the directory of sockets for vhost-user is not UTF-8")?;
        let (mut sockets, mut descriptors) = (Vec::new(), Vec::<Shared>::new());
        for (&number, Socket { listening, file }) in &self.open {
            let handed = listening.hand_over();
            let (state, own) =
                handed.map_err(|error| format!("a socket for vhost-user cannot be handed over: {error}"))?;
            let file = file.as_ref().and_then(|file| {
                Some(FileState { name: file.path().file_name()?.to_str()?.to_owned(), inode: file.inode() })
            });
            sockets.push(NamedSocket { number, file, descriptors: own.len(), state });
            descriptors.extend(own);
        }
        let Permissions { mode, group } = self.permissions;
        let state = DirectoryState { directory: directory.to_owned(), mode, group, sockets };
        let state = to_raw_value(&state).map_err(|error| error.to_string())?;
        Ok(HandedTransport { name: SocketDirectory::NAME, state, descriptors })
    }

    /// Continues the sockets of another process. Returns the events of exports that have none.
    fn adopt(&mut self, taken: TakenSockets, events: Vec<ExportEvent>) -> Result<Vec<ExportEvent>, TransportError> {
        let TakenSockets { state, descriptors } = taken;
        let (mut descriptors, mut others) = (descriptors.into_iter(), Vec::new());
        let mut exports = HashMap::new();
        for event in events {
            match event {
                ExportEvent::Added { number, name, export } => _ = exports.insert(number, (name, export)),
                other => others.push(other),
            }
        }
        for NamedSocket { number, file, descriptors: count, state } in state.sockets {
            let own = descriptors.by_ref().take(count).collect();
            let (name, export) = exports.remove(&number).ok_or("a socket for vhost-user belongs to no disk")?;
            let failed = |why| format!("the vhost-user socket of disk '{name}' cannot be continued: {why}");
            let listening = self.server.listen_taken(export, &state, own).map_err(failed)?;
            let is_name = |file: &FileState| Path::new(&file.name).file_name().is_some_and(|name| *name == *file.name);
            let known = |file: FileState| SocketFile::known_to_another(self.directory.join(file.name), file.inode);
            let file = file.filter(is_name).map(known);
            self.open.insert(number, Socket { listening, file });
        }
        let left = exports.into_iter().map(|(number, (name, export))| ExportEvent::Added { number, name, export });
        others.extend(left);
        Ok(others)
    }

    /// Takes the files over from another process.
    fn own(&mut self) {
        self.open.values_mut().filter_map(|socket| socket.file.as_mut()).for_each(SocketFile::own);
    }

    /// Leaves the files to another process.
    fn leave(&mut self) {
        self.open.values_mut().filter_map(|socket| socket.file.as_mut()).for_each(SocketFile::leave);
    }

    fn listen(&self, name: &str, export: Arc<Export>) -> Result<Socket, String> {
        let path = self.path(name)?;
        let (listener, file) = listen_with(&path, self.permissions).map_err(|error| error.to_string())?;
        let listening = self.server.listen(listener, export).map_err(|error| error.to_string())?;
        self.observer.log(Level::Info, &format!("disk '{name}' for virtual machines: {}", path.display()));
        Ok(Socket { listening, file: Some(file) })
    }

    fn path(&self, name: &str) -> Result<PathBuf, String> {
        Ok(self.directory.join(socket_name(name).ok_or("the name is too long for a file")?))
    }

    fn warn(&self, name: &str, why: &str) {
        self.observer.log(Level::Warn, &format!("disk '{name}' has no vhost-user socket: {why}"));
    }
}

/// Returns the name of a disk's socket.
fn socket_name(name: &str) -> Option<String> {
    Some(file_name(name)?.into_owned() + ".sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disk_has_a_socket_of_its_own() {
        for (name, expected) in [
            ("job-1", "job-1.sock"),
            ("job-1@before", "job-1@before.sock"),
            ("", "%.sock"),
            ("%", "%25.sock"),
            ("a/b%", "a%2Fb%25.sock"),
            ("..", "%2E%2E.sock"),
        ] {
            assert_eq!(socket_name(name).as_deref(), Some(expected));
        }
    }
}
