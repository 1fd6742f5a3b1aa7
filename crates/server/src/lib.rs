//! A server of disks: compressed RAM disks, read-only files, and their forks and snapshots, over
//! NBD, with a control socket, and saved as images.
//!
//! ```
#![doc = include_str!("../examples/fork.rs")]
//! ```
//!
//! - [`Config`] is the configuration of a server, [`Sockets`] says where it listens.
//! - [`Manage`] has the methods that change disks. Clients of the control socket call the same ones;
//!   `docs/control.md` describes them.
//! - [`Frozen`] is a disk at one instant, of a server in this process or in another.
//! - A [`Transport`] is a way to the disks in addition to NBD.
//! - An [`Observer`] receives a log line about each event of the server.
//!
//! A process can have any number of servers. They share nothing, and dropping one ends its threads.
//! The library changes no settings of the process: a program that serves many clients raises its
//! limit of open files itself ([`Config::when_connections`]).
//!
//! # Layers
//!
//! Each module uses only those above it, which a test checks:
//!
//! ```text
//! observer, config, error, process, machine, counted,
//! descriptor_store, service_manager, memory_file         the machine and the configuration
//! events                                                what has happened
//! client_memory, socket, bases                          the clients' share; sockets; files
//! backing                                               what a disk is
//! disk                                                  a disk with its origin and its limits
//! table                                                 disks by name, and their exports
//! in_use, forks, instants, compaction                   what is done with them
//! disks                                                 all of that in one place
//! ending, freeze, address, transport, belongings        how it ends; images; ways to the disks
//! server, handover, manage, metrics, watch, exporting,
//! listening, taken                                      the server; handing it over
//! ```
#![forbid(unsafe_code)]

mod address;
mod backing;
mod base_device;
mod bases;
mod belongings;
mod client_memory;
mod compaction;
mod config;
mod counted;
mod descriptor_store;
mod disk;
mod disks;
mod ending;
mod error;
mod events;
mod exporting;
mod forks;
mod freeze;
mod handover;
mod in_use;
mod instants;
mod listening;
mod machine;
mod manage;
mod memory_file;
mod metrics;
mod observer;
mod process;
mod server;
mod service_manager;
mod socket;
mod table;
mod taken;
mod transport;
mod watch;

pub use address::Address;
pub use bases::BaseFile;
pub use belongings::Belongings;
pub use config::{Config, MemoryLimit, WhenConnections, WhenFull};
pub use descriptor_store::DescriptorStore;
pub use disk::fork_record_bytes;
pub use ending::{Ending, waits_for};
pub use error::{Error, TakeOverError, TransportError, message};
pub use freeze::{BaseImage, ErofsImage, FreezeError, Frozen, Progress, Qcow2Options};
pub use listening::{Listening, Running, Sockets};
pub use machine::{Memory, default_limit_bytes, meminfo_bytes};
pub use observer::{Level, Observer};
pub use pagefold_control::{
    Add, AddBase, BindSpare, Code, DiskQuota, DiskRecord, Failure, Fork, Manage, NewDevice, Quota, Resize,
};
#[cfg(feature = "tls")]
pub use pagefold_serve::{Certificates, CertificatesError};
pub use server::Server;
pub use service_manager::ServiceManager;
pub use socket::{parse_group, parse_mode};
pub use taken::Taken;
pub use transport::{Devices, DiskFiles, HandedTransport, Host, TakenTransport, Transport};
