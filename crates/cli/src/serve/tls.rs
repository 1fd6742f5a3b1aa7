//! TLS for clients of the disks.

use std::{path::PathBuf, sync::Arc};

use pagefold_server::Sockets;

use crate::log::Log;

#[cfg(feature = "tls")]
pub(super) use pagefold_server::Certificates;

/// Options of TLS.
#[cfg(feature = "tls")]
#[derive(clap::Args)]
pub(super) struct TlsArgs {
    /// Use TLS with the certificates in DIR: server-cert.pem, server-key.pem, ca-cert.pem, and
    /// ca-crl.pem if it exists. SIGHUP reads them again
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,

    /// Accept only clients whose certificates ca-cert.pem has signed
    #[arg(long, requires = "tls_certificates")]
    tls_verify_peer: bool,

    /// Whether clients must use TLS
    #[arg(long, value_enum, default_value_t = TlsArg::Require, value_name = "WHAT", requires = "tls_certificates")]
    tls: TlsArg,
}

#[cfg(feature = "tls")]
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum TlsArg {
    /// Clients may use TLS
    On,
    /// Clients on TCP and vsock must use TLS; those of Unix sockets may
    Require,
}

#[cfg(feature = "tls")]
impl TlsArgs {
    /// Returns whether there are certificates.
    pub(super) fn is_on(&self) -> bool {
        self.tls_certificates.is_some()
    }

    /// Returns the paths of the certificates.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.tls_certificates.iter().flat_map(|directory| Certificates::FILES.map(|name| directory.join(name)))
    }

    /// Reads the certificates.
    pub(super) fn certificates(&self, log: Log) -> anyhow::Result<Option<Arc<Certificates>>> {
        let Some(directory) = &self.tls_certificates else { return Ok(None) };
        let certificates = Certificates::read(super::options::absolute(directory), self.tls_verify_peer)?;
        if let Some(key) = certificates.readable_key() {
            log.warn(&format!("every user of this machine can read {0}: chmod 600 {0}", key.display()));
        }
        Ok(Some(Arc::new(certificates)))
    }

    /// Returns the sockets with TLS, if there are certificates.
    pub(super) fn on(&self, sockets: Sockets, certificates: Option<Arc<Certificates>>) -> Sockets {
        match (certificates, self.tls) {
            (None, _) => sockets,
            (Some(certificates), TlsArg::Require) => sockets.tls(certificates),
            (Some(certificates), TlsArg::On) => sockets.tls_optional(certificates),
        }
    }
}

/// No options: this program has no TLS.
#[cfg(not(feature = "tls"))]
#[derive(clap::Args)]
pub(super) struct TlsArgs {}

/// Certificates, which cannot exist.
#[cfg(not(feature = "tls"))]
pub(super) enum Certificates {}

#[cfg(not(feature = "tls"))]
impl Certificates {
    pub(super) fn read_again(&self) -> std::io::Result<()> {
        match *self {}
    }
}

#[cfg(not(feature = "tls"))]
impl TlsArgs {
    pub(super) fn is_on(&self) -> bool {
        false
    }

    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        std::iter::empty()
    }

    pub(super) fn certificates(&self, _log: Log) -> anyhow::Result<Option<Arc<Certificates>>> {
        Ok(None)
    }

    pub(super) fn on(&self, sockets: Sockets, _certificates: Option<Arc<Certificates>>) -> Sockets {
        sockets
    }
}
