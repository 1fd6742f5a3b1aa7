//! Requests over NBD with TLS, by nbdcopy.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, ensure};
use pagefold_codec::PAGE_SIZE;
use pagefold_report::tool;

use super::case::{Case, Measured};

/// An export, and the folder of the authority's and the server's certificates.
pub(super) struct Export {
    pub(super) socket: PathBuf,
    pub(super) name: &'static str,
    pub(super) certificates: PathBuf,
    /// A file with the content.
    pub(super) raw: PathBuf,
    pub(super) size_bytes: u64,
}

impl Export {
    fn uri(&self) -> String {
        let (socket, certificates) = (self.socket.display(), self.certificates.display());
        format!("nbds+unix://localhost/{}?socket={socket}&tls-certificates={certificates}", self.name)
    }
}

/// Copies the content to an export.
pub(super) fn fill(export: &Export) -> anyhow::Result<()> {
    tool::run(Command::new(tool::find("nbdcopy")?).arg(&export.raw).arg(export.uri()))
}

/// Runs one case: each client copies the whole disk once, in pages.
pub(super) fn run(export: &Export, case: Case) -> anyhow::Result<Measured> {
    let program = tool::find("nbdcopy")?;
    let uri = export.uri();
    let start = || {
        let mut copy = Command::new(&program);
        copy.args(["--connections=1", "--threads=1", &format!("--request-size={PAGE_SIZE}")]);
        copy.arg(format!("--requests={}", case.depth));
        if case.is_write {
            copy.arg(&export.raw).arg(&uri);
        } else {
            copy.arg(&uri).arg("null:");
        }
        copy.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start nbdcopy")
    };
    let begin = Instant::now();
    let clients = (0..case.clients).map(|_| start()).collect::<anyhow::Result<Vec<_>>>()?;
    for client in clients {
        let output = client.wait_with_output()?;
        ensure!(output.status.success(), "nbdcopy failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let requests = export.size_bytes / PAGE_SIZE as u64 * case.clients as u64;
    Ok(Measured { rate: requests as f64 / begin.elapsed().as_secs_f64(), p99_us: f64::NAN })
}
