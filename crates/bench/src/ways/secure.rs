//! Requests over NBD with TLS, by qemu-img.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};

use super::{Case, Measured};
use crate::tool;

/// Requests of a client in a run.
const REQUESTS: usize = 20_000;

/// From the start of a request to that of the next.
const STEP_BYTES: usize = (1 << 20) + 4096;

/// An export, and where the certificates are: the authority's and the server's.
pub(super) struct Export {
    pub(super) socket: PathBuf,
    pub(super) name: &'static str,
    pub(super) certificates: PathBuf,
}

impl Export {
    /// Returns a command of qemu-img that may use the certificates.
    fn qemu_img(&self, command: &str) -> anyhow::Result<Command> {
        let mut qemu_img = Command::new(tool::find("qemu-img")?);
        let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", self.certificates.display());
        qemu_img.arg(command).args(["--object", &object]);
        Ok(qemu_img)
    }

    fn image(&self) -> String {
        let Self { socket, name, .. } = self;
        let socket = socket.display();
        format!("driver=nbd,server.type=unix,server.path={socket},export={name},tls-creds=tls,tls-hostname=localhost")
    }
}

/// Copies a raw file to an export.
pub(super) fn fill(export: &Export, raw: &Path) -> anyhow::Result<()> {
    let mut convert = export.qemu_img("convert")?;
    tool::run(convert.args(["-n", "-f", "raw", "--target-image-opts"]).arg(raw).arg(export.image()))
}

/// Runs one case.
pub(super) fn run(export: &Export, case: Case) -> anyhow::Result<Measured> {
    let start = || {
        let mut bench = export.qemu_img("bench")?;
        bench.args(["-s", "4096", "-S", &STEP_BYTES.to_string(), "-c", &REQUESTS.to_string()]);
        bench.args(["-d", &case.depth.to_string(), "-t", "none"]);
        bench.args(case.is_write.then_some("-w"));
        bench.arg("--image-opts").arg(export.image()).stdout(Stdio::piped()).stderr(Stdio::piped());
        bench.spawn().context("cannot start qemu-img")
    };
    let clients = (0..case.clients).map(|_| start()).collect::<anyhow::Result<Vec<_>>>()?;
    let mut rate = 0.0;
    for client in clients {
        let output = client.wait_with_output()?;
        ensure!(output.status.success(), "qemu-img failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        let text = String::from_utf8_lossy(&output.stdout);
        let seconds = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).next_back();
        rate += REQUESTS as f64 / seconds.context("qemu-img does not say how long it took")?;
    }
    Ok(Measured { rate, p99_us: f64::NAN })
}
