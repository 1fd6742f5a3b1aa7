//! Ending devices whose requests may wait for room.

use std::{
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::Context;
use pagefold_attach::nbd::{self, Nbd};
use pagefold_control::{Command, DeviceEnding};

use super::connection::OURS;
use crate::peer::Peer;

/// How long the kernel may take before the server is asked to help.
const STUCK: Duration = Duration::from_secs(1);

/// Disconnects an NBD device. The kernel first sends a request to the server, which cannot receive it while
/// it waits for room: then the server has to close the device's connections.
pub(super) fn disconnect(number: u32, peer: &Peer) -> anyhow::Result<()> {
    let identifier = nbd::devices()?.into_iter().find(|device| device.number == number).map(|found| found.identifier);
    let pid = identifier.as_deref().and_then(process_of);
    let ask = move || Ok(Nbd::open().and_then(|nbd| nbd.disconnect(number))?);
    unless_stuck(ask, || end_waiting(peer, &nbd::path(number), pid))
}

/// Calls `ask`, which asks the kernel. If that takes long, calls `help` and continues to wait.
pub(super) fn unless_stuck<T: Send + 'static>(
    ask: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    help: impl FnOnce(),
) -> anyhow::Result<T> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || drop(sender.send(ask())))?;
    let result = match receiver.recv_timeout(STUCK) {
        Err(RecvTimeoutError::Timeout) => {
            help();
            receiver.recv()
        }
        result => result.map_err(|_| mpsc::RecvError),
    };
    result.context("the thread that asks the kernel has ended")?
}

/// Asks the server not to let requests of a device, or of the file below one, wait for room. If the
/// device is named by its path, its server may be another one, or gone.
pub(super) fn end_waiting(peer: &Peer, device: &Path, pid: Option<u32>) {
    let device = device.display().to_string();
    let ask = || -> anyhow::Result<DeviceEnding> { Ok(peer.connect_now()?.call(&Command::EndDevice { device, pid })?) };
    drop(ask());
}

/// Returns the process that has connected an NBD device which was not spare.
fn process_of(identifier: &str) -> Option<u32> {
    identifier.strip_prefix(OURS)?.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_names_the_process_that_has_connected_it() {
        assert_eq!(process_of("pagefold f-1 77 nbd+unix:///a?socket=/s"), Some(77));
        for other in
            ["", "pagefold f-1", "pagefold f-1 nbd+unix:///a?socket=/s", "pagefold spare /s spare-1-00", "x 1 2"]
        {
            assert_eq!(process_of(other), None, "{other}");
        }
    }
}
