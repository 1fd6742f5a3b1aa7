//! The servers to measure, and what they serve.

use std::{
    any::Any,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use pagefold_codec::PAGE_SIZE;
use pagefold_kinds::synthetic::{self, KINDS};
use pagefold_report::tool;
use tempfile::TempDir;

use super::{
    case::{Case, Measured, Times},
    files, rings,
    secure::{self, Export},
};
use crate::{
    client::Control,
    loop_device::LoopDevice,
    server::{Server, qcow2_overlay},
    subjects::Zram,
};

/// The name of a disk.
pub(super) const NAME: &str = "disk";

/// Bytes of a write that fills a disk.
const LONG_BYTES: usize = 1 << 20;

/// The seed of the content.
const SEED: u64 = 39;

/// A way to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A file of pagefold.
    File,
    /// A file of qemu-storage-daemon, over a raw file in tmpfs.
    QemuFile,
    /// The same over a qcow2 overlay.
    QemuFileOverlay,
    /// A loop device over a raw file in tmpfs.
    Loop,
    /// A loop device over a file of pagefold.
    LoopFile,
    /// The kernel's zram with lz4.
    KernelZram,
    /// A vhost-user-blk socket of pagefold.
    Ring,
    /// One of qemu-storage-daemon, over a raw file in tmpfs.
    QemuRing,
    /// The same over a qcow2 overlay.
    QemuRingOverlay,
    /// NBD with TLS.
    Tls,
    /// The same by nbdkit's memory plugin, uncompressed.
    NbdkitTls,
}

use Subject::{
    File as OwnFile, KernelZram, Loop, LoopFile, NbdkitTls, QemuFile, QemuFileOverlay, QemuRing, QemuRingOverlay, Ring,
    Tls,
};

/// All of them, by name.
pub(super) const SUBJECTS: [(&str, Subject); 11] = [
    ("file", OwnFile),
    ("qemu-file", QemuFile),
    ("qemu-file-overlay", QemuFileOverlay),
    ("loop-tmpfs", Loop),
    ("loop-file", LoopFile),
    ("zram-lz4", KernelZram),
    ("vhost-user", Ring),
    ("qemu-vhost-user", QemuRing),
    ("qemu-vhost-user-overlay", QemuRingOverlay),
    ("tls", Tls),
    ("nbdkit-tls", NbdkitTls),
];

/// What all subjects have in common.
pub(super) struct Setup {
    pagefold: PathBuf,
    content: Vec<u8>,
    certificates: Option<PathBuf>,
    /// A raw file with the content.
    full: PathBuf,
    tmpfs: TempDir,
}

/// How a client reaches the disk.
enum Way {
    Path(PathBuf),
    Socket(PathBuf),
    Tls { socket: PathBuf, export: &'static str },
}

/// A disk that is served.
pub(super) struct Disk {
    way: Way,
    /// A block device of the kernel, if there is one. It is dropped before the server, which it may use.
    _device: Option<Box<dyn Any>>,
    server: Option<Server>,
    folder: TempDir,
}

/// A base that is served as a file.
pub(super) struct Base {
    pub(super) path: PathBuf,
    server: Server,
    _folder: TempDir,
}

impl Base {
    pub(super) fn process(&self) -> u32 {
        self.server.process()
    }
}

impl Setup {
    pub(super) fn new(
        pagefold: PathBuf,
        mib: u64,
        tmpfs: &Path,
        certificates: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let heap = KINDS.iter().find(|(name, _)| *name == "heap").map(|&(_, make)| make).context("no such pages")?;
        let content = synthetic::of_kind(heap, SEED, (mib as usize) << 8).as_flattened().to_vec();
        let tmpfs = TempDir::new_in(tmpfs).with_context(|| tmpfs.display().to_string())?;
        let full = tmpfs.path().join("full");
        fs::write(&full, &content)?;
        Ok(Self { pagefold, content, certificates, full, tmpfs })
    }

    /// Returns the size of each disk.
    pub(super) fn size_bytes(&self) -> u64 {
        self.content.len() as u64
    }

    /// Returns a new raw file in memory, without content.
    fn raw(&self) -> anyhow::Result<PathBuf> {
        let (file, path) = tempfile::NamedTempFile::new_in(self.tmpfs.path())?.keep()?;
        file.set_len(self.size_bytes())?;
        Ok(path)
    }

    /// Returns a new qcow2 overlay of the content, in memory.
    fn overlay(&self) -> anyhow::Result<PathBuf> {
        let path = tempfile::Builder::new().suffix(".qcow2").tempfile_in(self.tmpfs.path())?.into_temp_path().keep()?;
        qcow2_overlay(&self.full, &path)?;
        Ok(path)
    }

    fn own(&self, options: &[&str]) -> anyhow::Result<Server> {
        let size = self.size_bytes().to_string();
        Server::pagefold(&self.pagefold, &[&["--size", &size, "--name", NAME], options].concat())
    }

    fn certificates(&self) -> anyhow::Result<&Path> {
        self.certificates.as_deref().context("no --tls-certificates")
    }

    fn tls(&self, socket: &Path, export: &'static str) -> anyhow::Result<Export> {
        Ok(Export {
            socket: socket.to_owned(),
            name: export,
            certificates: self.certificates()?.to_owned(),
            raw: self.full.clone(),
            size_bytes: self.size_bytes(),
        })
    }

    /// Starts a subject's server, and writes the content to the disk.
    pub(super) fn start(&self, subject: Subject) -> anyhow::Result<Disk> {
        let folder = TempDir::new()?;
        let shown = |name: &str| folder.path().join(name);
        let text = |path: &Path| path.display().to_string();
        let daemon = |overlay: bool, export: &str| {
            let program = tool::find("qemu-storage-daemon")?;
            let (image, format) = if overlay { (self.overlay()?, "qcow2") } else { (self.raw()?, "raw") };
            Server::daemon(&program, &image, format, &["--export", export])
        };
        let fuse = |overlay| {
            let at = shown(NAME);
            File::create(&at)?;
            let export = format!("type=fuse,id=export,node-name=disk,mountpoint={},writable=on", text(&at));
            anyhow::Ok((Way::Path(at), Some(daemon(overlay, &export)?)))
        };
        let ring = |overlay| {
            let at = shown("disk.sock");
            let address = format!("addr.type=unix,addr.path={}", text(&at));
            let export = format!("type=vhost-user-blk,id=export,node-name=disk,{address},writable=on,num-queues=2");
            anyhow::Ok((Way::Socket(at), Some(daemon(overlay, &export)?)))
        };
        let own_file = || {
            let files = shown("files");
            let server = self.own(&["--files", &text(&files)])?;
            let at = files.join(NAME);
            wait_for(&at)?;
            anyhow::Ok((at, Some(server)))
        };
        let mut device: Option<Box<dyn Any>> = None;
        let mut over = |file: &Path| {
            let made = LoopDevice::new(file)?;
            let path = made.path();
            device = Some(Box::new(made));
            anyhow::Ok(Way::Path(path))
        };
        let (way, server) = match subject {
            OwnFile => own_file().map(|(at, server)| (Way::Path(at), server))?,
            Loop => (over(&self.raw()?)?, None),
            LoopFile => own_file().and_then(|(at, server)| Ok((over(&at)?, server)))?,
            KernelZram => {
                Zram::check_unused()?;
                device = Some(Box::new(Zram::new("lz4", self.size_bytes() / PAGE_SIZE as u64)?));
                (Way::Path(Zram::PATH.into()), None)
            }
            QemuFile => fuse(false)?,
            QemuFileOverlay => fuse(true)?,
            Ring => {
                let sockets = shown("sockets");
                let server = self.own(&["--vhost-user", &text(&sockets)])?;
                (Way::Socket(sockets.join("disk.sock")), Some(server))
            }
            QemuRing => ring(false)?,
            QemuRingOverlay => ring(true)?,
            Tls => {
                let server = self.own(&["--tls", "require", "--tls-certificates", &text(self.certificates()?)])?;
                (Way::Tls { socket: server.socket(), export: NAME }, Some(server))
            }
            NbdkitTls => {
                let certificates = format!("--tls-certificates={}", text(self.certificates()?));
                let size = format!("size={}", self.size_bytes());
                let args = ["--tls=require", &certificates, "memory", &size, "allocator=malloc"];
                let server = Server::nbdkit(&tool::find("nbdkit")?, &args, self.tmpfs.path())?;
                (Way::Tls { socket: server.socket(), export: "" }, Some(server))
            }
        };
        let disk = Disk { way, _device: device, server, folder };
        disk.fill(self)?;
        Ok(disk)
    }

    /// Starts a server with an image of the content, whose file it serves.
    pub(super) fn start_base(&self) -> anyhow::Result<Base> {
        let folder = TempDir::new()?;
        let (image, files) = (folder.path().join("base.erofs"), folder.path().join("files"));
        let mut pack = Command::new(&self.pagefold);
        tool::run(pack.args(["pack", "--codec", "lz4"]).arg(&self.full).arg("-o").arg(&image))?;
        let base = format!("{NAME}={}", image.display());
        let server = Server::pagefold(&self.pagefold, &["--files", &files.display().to_string(), &base])?;
        let path = files.join(NAME);
        wait_for(&path)?;
        Ok(Base { path, server, _folder: folder })
    }
}

impl Disk {
    /// Returns the folder with its file.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.path().join("files")
    }

    pub(super) fn control(&self) -> anyhow::Result<Control> {
        let server = self.server.as_ref().context("no server")?;
        server.control()
    }

    fn fill(&self, setup: &Setup) -> anyhow::Result<()> {
        match &self.way {
            Way::Path(path) => {
                wait_for(path)?;
                let file = File::options().write(true).open(path).with_context(|| path.display().to_string())?;
                for (part, at) in setup.content.chunks(LONG_BYTES).zip((0..).step_by(LONG_BYTES)) {
                    file.write_all_at(part, at)?;
                }
                Ok(file.sync_all()?)
            }
            Way::Socket(socket) => wait_for(socket).and_then(|()| rings::fill(socket, &setup.content)),
            Way::Tls { socket, export } => secure::fill(&setup.tls(socket, export)?),
        }
    }

    /// Runs one case.
    pub(super) fn run(&self, setup: &Setup, case: Case, times: Times, seed: u64) -> anyhow::Result<Measured> {
        match &self.way {
            Way::Path(path) => files::run(path, setup.size_bytes(), case, times, seed),
            Way::Socket(socket) => rings::run(socket, &setup.content, case, times, seed),
            Way::Tls { socket, export } => secure::run(&setup.tls(socket, export)?, case),
        }
    }
}

/// Waits until a transport has made a file or a socket. The file that it mounts over is empty.
fn wait_for(path: &Path) -> anyhow::Result<()> {
    let start = Instant::now();
    while !fs::metadata(path).is_ok_and(|found| !found.is_file() || found.len() > 0) {
        ensure!(start.elapsed().as_secs() < 10, "{} does not appear", path.display());
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
