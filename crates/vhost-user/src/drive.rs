//! A queue that the caller's thread serves, in memory of its own and without a frontend: for fuzzing.

use std::{io, sync::Arc};

use pagefold_executor::{Client, Export};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::{Bytes, GuestAddress};

use crate::{
    memory::{Description, GuestMemory, Regions},
    vring::Vring,
    worker::{Context, Queues},
};

/// Where a driver says that its rings are.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    /// Number of descriptors.
    pub size: u32,
    /// Address of the descriptors.
    pub descriptors: u64,
    /// Address of the ring of available requests.
    pub available: u64,
    /// Address of the ring of answers.
    pub used: u64,
    /// Whether the driver uses the event index.
    pub event_idx: bool,
}

/// A queue, and the guest's memory.
pub struct Driven {
    queues: Queues,
    vring: Arc<Vring>,
    memory: Arc<GuestMemory>,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Driven {
    /// Creates memory with these regions, each with its address and its length, filled with zeros.
    ///
    /// # Errors
    /// The system has no memory, or two regions overlap.
    pub fn new(client: Arc<Client>, export: Arc<Export>, regions: &[(u64, u64)]) -> io::Result<Self> {
        let mut mapped = Regions::default();
        for &(guest, len_bytes) in regions {
            let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&file, len_bytes)?;
            let description = Description { guest, len_bytes, user: guest, offset: 0 };
            mapped.add(description, file).map_err(io::Error::other)?;
        }
        let memory = mapped.memory().ok_or(io::ErrorKind::OutOfMemory)?;
        let context = Arc::new(Context { export, client, write_back: true.into(), report_broken: Box::new(|_, _| ()) });
        let (queues, _taken) = Queues::new(context)?;
        Ok(Self { queues, vring: Arc::new(Vring::new(0)), memory })
    }

    /// Changes the guest's memory, as its driver does. Returns whether the range exists.
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.memory.write_slice(bytes, GuestAddress(address)).is_ok()
    }

    /// Starts the queue. Returns false if the rings are invalid.
    pub fn start(&self, rings: Rings) -> bool {
        let Rings { size, descriptors, available, used, event_idx } = rings;
        let vring = &self.vring;
        vring.set_memory(Some(Arc::clone(&self.memory)));
        vring.set_event_idx(event_idx);
        vring.set_enabled(true);
        vring.set_size(size) && vring.set_addresses(descriptors, available, used) && vring.start().is_ok()
    }

    /// Runs some requests, with one of those that wait for room if `with_waiting`. Returns whether there
    /// were any.
    pub fn run(&mut self, with_waiting: bool) -> bool {
        self.queues.run(&self.vring, with_waiting) || self.vring.listen()
    }

    /// Stops the queue, as a reset of the device does. Requests that wait for room fail.
    pub fn stop(&self) {
        self.vring.stop();
    }
}
