//! Where a server listens.

use std::{os::unix::net::UnixListener, sync::Arc};

use anyhow::Context;
use pagefold_serve::Passed;
use pagefold_server::{Certificates, Sockets};
use tempfile::TempDir;

use super::{
    Args,
    options::{MetricsArg, TlsArg, VsockArg},
};
use crate::server_directory::ServerDirectory;

/// Name of the control socket among the sockets that a service manager passes.
const PASSED_CONTROL: &str = "control";

/// Where a server will listen: sockets that the service manager passed, and a directory if they are
/// not enough. Fields are dropped in order: the directory is unlocked before it is removed.
pub(super) struct Place {
    passed: Option<Passed>,
    control: Option<UnixListener>,
    directory: Option<ServerDirectory>,
    _temporary: Option<TempDir>,
}

impl Place {
    /// Claims the place. From now on, other commands wait for this server.
    pub(super) fn claim(args: &Args) -> anyhow::Result<Self> {
        let mut passed = Passed::take()?;
        let control = passed.as_mut().and_then(|passed| passed.take_unix(PASSED_CONTROL));
        let passed = passed.filter(|passed| !passed.is_empty());
        let mut place = Self { passed, control, directory: None, _temporary: None };
        if place.passed.is_none() || (args.control.is_none() && place.control.is_none()) {
            let (directory, temporary) = args.directory()?;
            place._temporary = temporary;
            place.directory = Some(ServerDirectory::claim(directory)?);
        }
        Ok(place)
    }

    /// Returns the sockets. Those that the service manager did not pass will be created in the
    /// directory.
    pub(super) fn sockets(&mut self, args: &Args, certificates: Option<Arc<Certificates>>) -> anyhow::Result<Sockets> {
        let mut sockets = match (self.passed.take(), &self.directory) {
            (Some(passed), _) => Sockets::new().passed(passed),
            (None, Some(directory)) => Sockets::new().unix_for(directory.nbd_socket(), args.permissions()),
            (None, None) => Sockets::new(),
        };
        sockets = args.unix.iter().fold(sockets, |sockets, path| sockets.unix_for(path, args.permissions()));
        sockets = args.tcp.iter().fold(sockets, |sockets, address| sockets.tcp(*address));
        sockets = args.vsock.iter().fold(sockets, |sockets, &VsockArg { cid, port }| sockets.vsock(cid, port));
        sockets = match (certificates, args.tls) {
            (None, _) => sockets,
            (Some(certificates), TlsArg::Require) => sockets.tls(certificates),
            (Some(certificates), TlsArg::On) => sockets.tls_optional(certificates),
        };
        sockets = args.metrics.iter().fold(sockets, |sockets, metrics| match metrics {
            MetricsArg::Unix(path) => sockets.metrics_unix(path, args.permissions()),
            MetricsArg::Tcp(address) => sockets.metrics_tcp(*address),
        });
        if let Some(listener) = self.control.take() {
            return Ok(sockets.control_on(listener));
        }
        let path = args.control.clone().or_else(|| self.directory.as_ref().map(ServerDirectory::control_socket));
        Ok(sockets.control(path.context("no path for the control socket: give --control PATH")?))
    }
}
