//! Disks for virtual machines, each on a socket.
//!
//! A disk's socket has the name of the disk and `.sock`, except that `/` and `%` are escaped as `%2F`
//! and `%25`, as in URIs. The socket of a disk without a name is `%.sock`.

use std::{
    collections::HashMap,
    fmt,
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use pagefold_executor::{Event as ExportEvent, Export, Stopper};
use pagefold_files::file_name;
use pagefold_serve::{Permissions, SocketFile, listen_with};
use pagefold_server::{Ending, Host, Level, Observer, Transport, TransportError};
use pagefold_vhost_user::{Config, Event, Listening, Server};

/// Interval between two looks whether a server that ends still waits for requests.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves each disk on a vhost-user socket in a directory. Each takes an open file: a program that serves
/// many disks raises the limit of open files.
pub struct SocketDirectory {
    path: PathBuf,
    permissions: Permissions,
    serving: Option<Serving>,
}

struct Serving {
    server: Arc<Server>,
    stopper: Stopper,
    thread: JoinHandle<()>,
    ending: Ending,
}

impl SocketDirectory {
    /// Serves the disks in the directory `path`, which is created if it does not exist. `permissions` are
    /// those of the sockets.
    pub fn new(path: impl Into<PathBuf>, permissions: Permissions) -> Self {
        Self { path: path.into(), permissions, serving: None }
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
        let shown = directory.display().to_string();
        host.announce_obstacle(move || {
            Some(format!("'{shown}' has sockets for vhost-user, which cannot be handed over"))
        });
        let (opener, observer) = (host.clone(), host.observer().clone());
        let open = move |export: &Export| opener.open(export);
        let server = Server::start(Config::default(), Box::new(open), log_events(observer));
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
        // When this function returns, the sockets of all existing disks are open.
        while let Some(event) = watch.take() {
            sockets.follow(event);
        }
        let follow = move || {
            while let Some(event) = watch.wait() {
                sockets.follow(event);
            }
        };
        let thread = thread::Builder::new().name("vhost sockets".to_owned()).spawn(follow)?;
        self.serving = Some(Serving { server, stopper, thread, ending: host.ending().clone() });
        Ok(())
    }

    fn stop(&mut self) {
        let Some(Serving { server, stopper, thread, ending }) = self.serving.take() else { return };
        stopper.stop();
        // A panic has been reported.
        let _ = thread.join();
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
    _listening: Listening,
    /// Dropped last: a frontend that finds the file can connect.
    file: SocketFile,
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
                if let Some(socket) = self.open.get_mut(&number)
                    && let Err(why) = path.and_then(|path| socket.file.rename(&path).map_err(|error| error.to_string()))
                {
                    let why = format!("it keeps '{}': {why}", socket.file.path().display());
                    self.warn(&name, &why);
                }
            }
            ExportEvent::Removed { number, .. } => drop(self.open.remove(&number)),
        }
    }

    fn listen(&self, name: &str, export: Arc<Export>) -> Result<Socket, String> {
        let path = self.path(name)?;
        let (listener, file) = listen_with(&path, self.permissions).map_err(|error| error.to_string())?;
        let listening = self.server.listen(listener, export).map_err(|error| error.to_string())?;
        self.observer.log(Level::Info, &format!("disk '{name}' for virtual machines: {}", path.display()));
        Ok(Socket { _listening: listening, file })
    }

    fn path(&self, name: &str) -> Result<PathBuf, String> {
        Ok(self.directory.join(socket_name(name).ok_or("the name is too long for a file")?))
    }

    fn warn(&self, name: &str, why: &str) {
        self.observer.log(Level::Warn, &format!("disk '{name}' has no vhost-user socket of its name: {why}"));
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
