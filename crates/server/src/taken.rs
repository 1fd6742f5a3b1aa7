//! A server that continues another one.

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use pagefold_control::Client;

use crate::{
    Belongings, Config, DescriptorStore, Error, Listening, Server, Sockets, TakeOverError, TakenTransport,
    handover::{Received, receive, restore},
};

/// A server that continues that of another process, which has ended or is paused until this one
/// [listens](Self::listen). If this is dropped instead, the other one continues, or what it has
/// left stays in its store.
pub struct Taken(Received);

impl Taken {
    /// Takes over the server at the other end of a control socket: its disks, clients, sockets and
    /// limits. The codec, the limits and `when_full` stay as they are, whatever `config` says.
    ///
    /// # Errors
    /// See [`TakeOverError`]. The server continues.
    pub fn from_server(client: &mut Client, config: Config) -> Result<Self, TakeOverError> {
        receive(client, config).map(Self)
    }

    /// Continues the server that has [left](Server::leave) these files in `store`, with their
    /// names. As for [`from_server`](Self::from_server), the fields of `config` that the other
    /// server determines have no effect. Clients whose connections are missing are disconnected.
    ///
    /// # Errors
    /// See [`TakeOverError`]. If the disks are [lost](TakeOverError::Lost), nothing stays in the store.
    pub fn from_store(
        stored: Vec<(String, OwnedFd)>,
        store: &Arc<dyn DescriptorStore>,
        config: Config,
    ) -> Result<Self, TakeOverError> {
        restore(stored, store, config).map(Self)
    }

    /// Returns the server, which does not listen yet.
    pub fn server(&self) -> &Server {
        &self.0.server
    }

    /// Returns whether the previous process was killed. Then its clients and sockets are gone, and
    /// this process opens the sockets that its own options name.
    pub fn was_killed(&self) -> bool {
        self.0.was_killed
    }

    /// Takes the [`Belongings`] that the other server has handed over.
    pub fn take_belongings(&mut self) -> Belongings {
        std::mem::take(&mut self.0.belongings)
    }

    /// Takes the transports that the other server has handed over. A program that does not continue one
    /// must not [listen](Self::listen): its clients would wait forever.
    pub fn take_transports(&mut self) -> Vec<TakenTransport> {
        std::mem::take(&mut self.0.transports)
    }

    /// Listens where the other server has listened, which ends, and on further addresses.
    ///
    /// # Errors
    /// The other server continues, or what it has left stays in its store.
    pub fn listen(self, sockets: Sockets) -> Result<Listening, Error> {
        let Received { server, incoming, pid, program, lost, .. } = self.0;
        let clients = incoming.clients();
        let listening = server.open(sockets, Some(incoming))?;
        let disks: u64 = server.0.disks.kinds().iter().sum();
        let before =
            pid.map_or_else(|| "the previous server".to_owned(), |pid| format!("process {}", pid.as_raw_pid()));
        let line = format!("took over {before}, pagefold {program}: {disks} disks, {clients} clients of NBD");
        server.0.observer.info(&line);
        if lost > 0 {
            server.0.observer.warn(&format!("the connections of {lost} clients were not kept"));
        }
        Ok(listening)
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").field("program", &self.0.program).finish_non_exhaustive()
    }
}
