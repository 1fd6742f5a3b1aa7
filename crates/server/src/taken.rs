//! A server that continues another one.

use std::fmt;

use pagefold_control::Client;

use crate::{
    Belongings, Config, Error, Listening, Server, Sockets, TakeOverError,
    handover::{Received, receive},
};

/// A server that continues that of another process, which is paused until this one
/// [listens](Self::listen). If this is dropped instead, the other one goes on.
pub struct Taken(Received);

impl Taken {
    /// Takes over the server at the other end of a control socket: its disks, clients, sockets and limits.
    /// Of `config`, the codec, the limits and what happens beyond them have no effect: they stay as they
    /// are.
    ///
    /// # Errors
    /// See [`TakeOverError`]. The server goes on.
    pub fn from_server(client: &mut Client, config: Config) -> Result<Self, TakeOverError> {
        receive(client, config).map(Self)
    }

    /// Returns the server, which does not listen yet.
    pub fn server(&self) -> &Server {
        &self.0.server
    }

    /// Takes what else the other server has handed over.
    pub fn take_belongings(&mut self) -> Belongings {
        std::mem::take(&mut self.0.belongings)
    }

    /// Listens where the other server has listened, which ends. Of `sockets`, addresses have no effect.
    ///
    /// # Errors
    /// The other server goes on.
    pub fn listen(self, sockets: Sockets) -> Result<Listening, Error> {
        let Received { server, incoming, pid, program, .. } = self.0;
        let clients = incoming.clients();
        let listening = server.open(sockets, Some(incoming))?;
        let disks: u64 = server.0.disks.kinds().iter().sum();
        let pid = pid.as_raw_pid();
        let line = format!("took over process {pid}, pagefold {program}: {disks} disks, {clients} clients of NBD");
        server.0.observer.info(&line);
        Ok(listening)
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").field("program", &self.0.program).finish_non_exhaustive()
    }
}
