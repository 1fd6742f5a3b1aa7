//! An instant of a disk, as a client of its server reads it.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail};
use pagefold_control::{Client as Control, Command, FrozenRuns, Instant as Record, Stored};
use pagefold_erofs::{Change, Image, ReadAt};
use pagefold_serve::Client;

use crate::{peer::Peer, tell};

/// A server that does not answer for this time is considered dead.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An instant, until this is dropped.
pub(crate) struct Instant {
    record: Record,
    /// The instant ends when this connection does.
    control: Mutex<Control>,
    reader: Arc<InstantReader>,
}

impl Instant {
    /// Makes the server of `peer` keep its disk `name` as it is now.
    pub(crate) fn take(peer: &Peer, name: &str) -> anyhow::Result<Self> {
        let mut control = peer.connect()?;
        let record: Record = control.call(&Command::Freeze { name: name.to_owned() })?;
        let way = Way::of(&record)?;
        let (export, size_bytes) = (record.export.clone(), record.size_bytes);
        let reader = InstantReader { way, export, size_bytes, clients: Mutex::default(), given: Condvar::new() };
        let client = reader.client().context("cannot read the disk over NBD")?;
        reader.give(Some(client));
        Ok(Self { record, control: Mutex::new(control), reader: Arc::new(reader) })
    }

    /// Returns the disk's name, and the file below it if there is one.
    pub(crate) fn described(&self) -> String {
        let base = self.record.base.as_ref().map_or_else(String::new, |base| format!(" over {}", base.path));
        format!("disk '{}'{base}", self.record.name)
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.record.size_bytes
    }

    /// Returns the reader of the disk, for any number of threads.
    pub(crate) fn reader(&self) -> Arc<InstantReader> {
        Arc::clone(&self.reader)
    }

    /// Returns the ranges selected by `wanted`.
    pub(crate) fn changes(&self, wanted: Wanted) -> anyhow::Result<Vec<Change>> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let (export, size_bytes) = (&self.record.export, self.record.size_bytes);
        let mut changes = Vec::<Change>::new();
        let mut at = 0;
        loop {
            let command = Command::FrozenRuns { export: export.clone(), offset_bytes: at };
            let FrozenRuns { runs, next_bytes } = control.call(&command)?;
            for run in runs {
                let end = at.checked_add(run.len_bytes).filter(|end| run.len_bytes > 0 && *end <= size_bytes);
                let Some(end) = end else { bail!("the server reported more bytes than the disk has") };
                let zeros = match run.stored {
                    Stored::Own => Some(false),
                    Stored::OwnZeros => (wanted != Wanted::Bytes).then_some(true),
                    Stored::Base => (wanted != Wanted::AboveBase).then_some(false),
                    Stored::BaseZeros => None,
                };
                if let Some(zeros) = zeros {
                    match changes.last_mut() {
                        Some(last) if last.at + last.len == at && last.zeros == zeros => last.len += run.len_bytes,
                        _ => changes.push(Change { at, len: run.len_bytes, zeros }),
                    }
                }
                at = end;
            }
            match next_bytes {
                None if at == size_bytes => return Ok(changes),
                Some(next) if next == at => {}
                _ => bail!("the server did not describe the whole disk"),
            }
        }
    }

    /// Returns the file below the disk, to be the backing file of a qcow2 image.
    ///
    /// # Errors
    /// There is none, QEMU cannot read it, or it is not the one that the server has.
    pub(crate) fn backing(&self) -> anyhow::Result<BackingFile<'_>> {
        let Some(base) = &self.record.base else {
            bail!("disk '{}' has no base: leave out --backing to write all of it", self.record.name)
        };
        anyhow::ensure!(
            base.format == "raw" || base.format == "qcow2",
            "the base {} is an EROFS image, which QEMU cannot read: leave out --backing to write all of the disk",
            base.path
        );
        let backing = BackingFile { path: &base.path, format: &base.format, identity: &base.identity };
        backing.check_unchanged()?;
        Ok(backing)
    }

    /// Opens the EROFS image below the disk, if there is one and this process can read it.
    pub(crate) fn open_base(&self) -> Option<BaseImage> {
        let base = self.record.base.as_ref().filter(|base| base.format == "erofs")?;
        let path = Path::new(&base.path);
        let opened = || -> anyhow::Result<_> {
            let file = File::open(path)?;
            let found = pagefold_base::identity_of(&file)?;
            anyhow::ensure!(found == base.identity, "it was changed or replaced since the server opened it");
            let image = Image::open(file.try_clone()?)?;
            let content = pagefold_base::image_file(path, &image, base.inside.as_deref().map(str::as_bytes))?;
            Ok(BaseImage { path: path.into(), file, identity: found, content })
        };
        opened()
            .map_err(|error| {
                let why = crate::message(&error);
                tell(&format!("warning: cannot reuse the base {}: {why}; compressing the whole disk", base.path));
            })
            .ok()
    }
}

/// Which ranges of a disk are requested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Stored data.
    Bytes,
    /// Stored data, and zeros that were written or discarded.
    BytesAndZeros,
    /// Everything that differs or may differ from the base.
    AboveBase,
}

/// A base that is the backing file of an image.
pub(crate) struct BackingFile<'a> {
    pub(crate) path: &'a str,
    pub(crate) format: &'a str,
    identity: &'a str,
}

impl BackingFile<'_> {
    /// Checks that the path still leads to the unchanged file that the server has.
    pub(crate) fn check_unchanged(&self) -> anyhow::Result<()> {
        let failed = || format!("the base {} cannot be the backing file", self.path);
        let found = File::open(self.path).and_then(|file| pagefold_base::identity_of(&file)).with_context(failed)?;
        let is_same = found == self.identity;
        anyhow::ensure!(is_same, "{}: it was changed or replaced since the server opened it", failed());
        Ok(())
    }
}

/// The image that contains a base.
pub(crate) struct BaseImage {
    path: PathBuf,
    file: File,
    identity: String,
    content: pagefold_erofs::File,
}

impl BaseImage {
    /// Returns the file in it that is the base.
    pub(crate) fn content(&self) -> pagefold_erofs::File {
        self.content.clone()
    }

    /// Checks that the image has not changed since it was opened.
    ///
    /// # Errors
    /// It has changed: data copied from it are not reliable.
    pub(crate) fn check_unchanged(&self) -> anyhow::Result<()> {
        let found = pagefold_base::identity_of(&self.file);
        anyhow::ensure!(
            found.is_ok_and(|found| found == self.identity),
            "the base {} was changed while the disk was written out: nothing is written",
            self.path.display()
        );
        Ok(())
    }
}

/// How to reach the server.
enum Way {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Way {
    fn of(record: &Record) -> anyhow::Result<Self> {
        if let Some(path) = record.sockets.first() {
            return Ok(Self::Unix(path.into()));
        }
        let address = record.addresses.first().context("the server has no socket for NBD clients")?;
        Ok(Self::Tcp(address.parse().with_context(|| format!("the server's address '{address}'"))?))
    }
}

/// Connections of a reader. Other freezes and clients need places too, and a few connections are
/// faster than the compression of what they deliver.
const MOST_CLIENTS: usize = 4;

/// Reads with several connections, each used by one thread at a time.
pub(crate) struct InstantReader {
    way: Way,
    export: String,
    size_bytes: u64,
    clients: Mutex<Clients>,
    given: Condvar,
}

/// The connections of a reader: those that no thread uses, and the number of all.
#[derive(Default)]
struct Clients {
    idle: Vec<Client>,
    count: usize,
    /// The server has refused one more than `count` connections.
    refused: bool,
}

impl InstantReader {
    /// Returns a connection. If the server allows no further one, waits for another thread's.
    fn client(&self) -> io::Result<Client> {
        let mut clients = self.lock();
        loop {
            if let Some(client) = clients.idle.pop() {
                return Ok(client);
            }
            if clients.count == 0 || (clients.count < MOST_CLIENTS && !clients.refused) {
                clients.count += 1;
                drop(clients);
                let connected = self.connect();
                clients = self.lock();
                match connected {
                    Ok(client) => return Ok(client),
                    Err(error) => {
                        clients.count -= 1;
                        clients.refused = true;
                        if clients.count == 0 {
                            // The next thread tries for itself.
                            self.given.notify_one();
                            return Err(error);
                        }
                    }
                }
            } else {
                clients = self.given.wait(clients).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn connect(&self) -> io::Result<Client> {
        let client = match &self.way {
            Way::Unix(path) => Client::unix(path, &self.export, TIMEOUT)?,
            Way::Tcp(address) => Client::tcp(*address, &self.export, TIMEOUT)?,
        };
        if client.size_bytes() != self.size_bytes {
            return Err(io::Error::other("the server serves another export than it reported"));
        }
        Ok(client)
    }

    /// Returns a connection, or `None` for one that has failed.
    fn give(&self, client: Option<Client>) {
        let mut clients = self.lock();
        match client {
            Some(client) => clients.idle.push(client),
            None => clients.count -= 1,
        }
        drop(clients);
        self.given.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadAt for InstantReader {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.size_bytes)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_all_at(&mut [(offset, buf)])
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        // A connection on which a read has failed is not reused.
        let mut client = self.client()?;
        let result = client.read_all(parts);
        self.give(result.is_ok().then_some(client));
        result
    }
}
