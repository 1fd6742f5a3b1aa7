//! How threads begin and end to lead a connection.

use std::{io, sync::Arc};

use pagefold_executor::{Taken, spawn};

use super::{
    Connection, EndOnUnwind, Keeper, Work,
    leader::{Leader, Led},
};
use crate::transport::Transport;

impl<T: Transport, G: Keeper<T>> Connection<T, G> {
    /// Serves on the calling thread and the executor's until the peer leaves or violates the
    /// protocol, or until the connection rests. Other threads may still be busy when this returns.
    pub(crate) fn serve(connection: Arc<Self>, taken: Option<Taken>) -> io::Result<()> {
        let leader = connection.begin_work(taken)?;
        connection.work(leader);
        Ok(())
    }

    /// Makes a resting connection work in a new thread. If that fails, it stays at rest.
    pub(crate) fn resume(connection: &Arc<Self>, taken: Taken) -> io::Result<()> {
        let leader = connection.begin_work(Some(taken))?;
        let body = Arc::clone(connection);
        let spawned = spawn("nbd-connection", move || body.work(leader));
        if spawned.is_err() {
            connection.end_work();
        }
        spawned
    }

    fn begin_work(&self, taken: Option<Taken>) -> io::Result<Leader<T>> {
        let mut leader = Leader::new(Arc::clone(&self.transport), &self.common, G::RESTS)?;
        leader.resume(std::mem::take(&mut *self.parked()));
        *self.lock_work() = Some(Work { _working: self.common.executor.begin_work(), _taken: taken });
        self.client.keep_buffers(true);
        Ok(leader)
    }

    /// Main loop of the leader.
    fn work(self: Arc<Self>, mut leader: Leader<T>) {
        // If a device panics, the peer must not wait for replies.
        let unwinding = EndOnUnwind(&self);
        loop {
            match leader.lead(&self) {
                Ok(Led::Idle) => {
                    drop(leader);
                    self.end_work();
                    if G::watch(&self) {
                        break;
                    }
                    match self.begin_work(None) {
                        Ok(again) => leader = again,
                        Err(_) => {
                            self.end(true);
                            break;
                        }
                    }
                }
                Ok(Led::Paused) => {
                    *self.parked() = leader.park();
                    drop(leader);
                    self.end_work();
                    if !G::watch(&self) {
                        self.end(true);
                    }
                    break;
                }
                Ok(Led::End) => {
                    drop(leader);
                    self.end(false);
                    self.end_work();
                    break;
                }
                Err(_) => {
                    drop(leader);
                    self.end(true);
                    self.end_work();
                    break;
                }
            }
        }
        std::mem::forget(unwinding);
    }
}
