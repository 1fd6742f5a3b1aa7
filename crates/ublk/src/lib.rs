//! Block devices of the Linux kernel's ublk driver.
//!
//! ```no_run
//! # fn serve(client: std::sync::Arc<pagefold_executor::Client>) -> std::io::Result<()> {
//! use pagefold_ublk::{Control, Layout, New, Params, Served};
//!
//! let mut control = Control::open()?;
//! let device = control.add(New { layout: Layout { queues: 1, depth: 64 }, recovers: false, tag: 7 })?;
//! control.set_params(device.number, Params { size_bytes: 1 << 30, read_only: false })?;
//! let served = Served::start(device.open()?, device.layout, client)?;
//! control.start(device.number)?;
//! println!("{}", pagefold_ublk::path(device.number).display());
//! # drop(served);
//! # Ok(())
//! # }
//! ```
//!
//! [`Control`] needs root. [`Served`] needs only the device's open file, which can be passed on a
//! Unix socket. So the serving process may have fewer rights than the one that creates the device.
//!
//! Data is copied with `pread` and `pwrite` of that file (`UBLK_F_USER_COPY`, Linux 6.5), so a request
//! takes a buffer only while a thread works on it, and any thread can.
mod abi;
mod attendant;
mod control;
mod queue;
mod request;
mod ring;
mod served;

pub use abi::{Device, Layout, MAX_DEPTH, MAX_QUEUES, State};
pub use control::{Control, New, Params, devices, path};
pub use served::Served;
