//! Reads an instant of a disk over NBD, with several connections.

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagefold_control::Instant;
use pagefold_erofs::ReadAt;
use pagefold_serve::Client;

use super::error::{FreezeError, Result, Within};

/// A server that does not answer for this time is considered dead.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How to reach the server.
enum Way {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Way {
    fn of(instant: &Instant) -> Result<Self> {
        if let Some(path) = instant.sockets.first() {
            return Ok(Self::Unix(path.into()));
        }
        let address = instant.addresses.first();
        let address = address.ok_or(FreezeError::Refused(
            "the server has no Unix socket for NBD clients, and no TCP port without TLS".to_owned(),
        ))?;
        let parsed = address.parse().map_err(io::Error::other);
        Ok(Self::Tcp(parsed.within(|| format!("the server's address '{address}'"))?))
    }
}

/// Maximum number of connections of a reader. A few deliver data faster than it can be compressed,
/// and other freezes and clients need connections too.
const MOST_CLIENTS: usize = 4;

/// Reads with several connections, each used by one thread at a time.
pub(super) struct InstantReader {
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
    /// Connects to the server that serves an instant.
    pub(super) fn connect_to(instant: &Instant) -> Result<Self> {
        let (export, size_bytes) = (instant.export.clone(), instant.size_bytes);
        let way = Way::of(instant)?;
        let reader = Self { way, export, size_bytes, clients: Mutex::default(), given: Condvar::new() };
        let client = reader.client().within(|| "cannot read the disk over NBD".to_owned())?;
        reader.give(Some(client));
        Ok(reader)
    }

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
                            // The next thread makes its own attempt.
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

    /// Takes a connection back; `None` stands for one that has failed.
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
