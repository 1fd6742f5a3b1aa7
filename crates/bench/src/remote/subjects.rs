//! Ways to a disk that is far away.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use pagefold_report::tool;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    disk::Disk,
    guest::Guest,
    proxy::{Behind, Distance, Passed, Proxy},
    stores::{BUCKET, Store},
};
use crate::server::Server;

/// A way to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A fork of an image in a registry.
    Registry,
    /// The same, with a trace of an earlier start.
    Traced,
    /// A fork of an object in an S3 bucket.
    S3,
    /// nbdkit's curl plugin, with the raw disk on a web server.
    NbdkitCurl,
    /// qemu's driver for web servers, with a compressed qcow2 image.
    QemuHttp,
    /// `mount.erofs` of erofs-utils.
    MountErofs,
    /// `skopeo copy`, and then a fork of the local image.
    SkopeoCopy,
}

impl Subject {
    pub(super) const ALL: [Self; 7] =
        [Self::Registry, Self::Traced, Self::S3, Self::NbdkitCurl, Self::QemuHttp, Self::MountErofs, Self::SkopeoCopy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Registry => "pagefold-oci",
            Self::Traced => "pagefold-oci-trace",
            Self::S3 => "pagefold-s3",
            Self::NbdkitCurl => "nbdkit-curl",
            Self::QemuHttp => "qemu-http",
            Self::MountErofs => "mount.erofs",
            Self::SkopeoCopy => "skopeo-copy",
        }
    }

    /// Returns the name of a case that has targets.
    pub(super) fn case(self, case: &str) -> String {
        format!("{case}/{}", self.name())
    }

    /// Whether pagefold reads the image in parts.
    pub(super) fn is_own(self) -> bool {
        matches!(self, Self::Registry | Self::Traced | Self::S3)
    }
}

/// The name of the base.
pub(super) const BASE: &str = "disk";

/// A trace is written after this time at the latest.
const RECORDED: Duration = Duration::from_secs(60);

/// The name of the fork.
const FORK: &str = "job";

/// A disk in a place far away.
pub(super) struct Away<'a> {
    pagefold: &'a Path,
    folder: &'a Path,
    name: &'static str,
    registry: Proxy,
    s3: Option<Proxy>,
    web: Proxy,
    /// The location in the registry with its checksum, through the proxy.
    location: String,
    /// Another repository with the same image, without the proxy.
    near_traced: String,
    /// The same through the proxy.
    traced: String,
    s3_location: String,
}

/// A disk that is served on this machine.
pub(super) struct Served {
    server: Server,
    export: &'static str,
    _files: TempDir,
}

impl Served {
    pub(super) fn uri(&self) -> String {
        self.server.uri(self.export)
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }
}

impl<'a> Away<'a> {
    /// Stores a disk in the registry, on the S3 server and, for peers, in `folder`.
    pub(super) fn new(
        pagefold: &'a Path,
        folder: &'a Path,
        name: &'static str,
        disk: &Disk,
        (registry, s3): (&Store, Option<&Store>),
        distance: Distance,
    ) -> anyhow::Result<Self> {
        let push = |location: &str, s3: Option<&Store>| {
            let mut push = Command::new(pagefold);
            push.arg("push").arg(&disk.packed).arg(location).envs(environment(s3.map(Store::address)));
            let output = push.stderr(Stdio::inherit()).output().context("cannot start pagefold")?;
            ensure!(output.status.success(), "pagefold push failed: {}", output.status);
            Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
        };
        let near_traced = push(&format!("oci://{}/disks/{name}-traced:1", registry.address()), None)?;
        let fixed = push(&format!("oci://{}/disks/{name}:1", registry.address()), None)?;
        let behind = |store: &Store| Proxy::start(Behind::Server(store.address()), distance);
        let proxy = behind(registry)?;
        let far = |near: &str| near.replace(&registry.address().to_string(), &proxy.address().to_string());
        let (location, traced) = (far(&fixed), far(&near_traced));
        let s3_location = match s3 {
            Some(_) => push(&format!("s3://{BUCKET}/{name}.erofs"), s3)?,
            None => String::new(),
        };
        Ok(Self {
            pagefold,
            folder,
            name,
            registry: proxy,
            s3: s3.map(behind).transpose()?,
            web: Proxy::start(Behind::Folder(folder.to_owned()), distance)?,
            location,
            near_traced,
            traced,
            s3_location,
        })
    }

    /// Returns the requests that passed since the last call.
    pub(super) fn passed(&self) -> Vec<Passed> {
        [Some(&self.registry), self.s3.as_ref(), Some(&self.web)].into_iter().flatten().flat_map(Proxy::take).collect()
    }

    /// Serves the disk, and makes a fork of it or an overlay. `cache` is empty on a cold host.
    pub(super) fn serve(&self, subject: Subject, cache: &Path) -> anyhow::Result<Served> {
        match subject {
            Subject::Registry | Subject::Traced | Subject::S3 => self.own(subject, cache, &[FORK]),
            Subject::NbdkitCurl => self.nbdkit(),
            Subject::QemuHttp => self.qemu(),
            Subject::MountErofs => tool::find("mount.erofs").and_then(|_| bail!("it mounts trees of files, not disks")),
            Subject::SkopeoCopy => self.copied(),
        }
    }

    /// Records what a guest reads during `work`, and stores the trace with the image that is to
    /// have one. Returns the trace's length.
    pub(super) fn record(&self, work: impl FnOnce(&Guest) -> anyhow::Result<()>) -> anyhow::Result<u64> {
        let files = TempDir::new_in(self.folder)?;
        let (cache, trace) = (files.path().join("cache"), files.path().join("trace"));
        let recording = ["--record", trace.to_str().context("the path of the trace")?];
        let served = self.own_with(Subject::Traced, &cache, &[FORK], &recording)?;
        let guest = Guest::start(&served.uri())?;
        work(&guest)?;
        drop(guest);
        let deadline = Instant::now() + RECORDED;
        while !trace.exists() {
            ensure!(Instant::now() < deadline, "the server writes no trace");
            thread::sleep(Duration::from_millis(50));
        }
        drop(served);
        let mut push = Command::new(self.pagefold);
        tool::run(push.arg("push").arg("--trace").arg(&trace).arg(&self.near_traced))?;
        Ok(fs::metadata(&trace)?.len())
    }

    /// Returns a place in the registry.
    pub(super) fn place(&self, image: &str) -> String {
        format!("oci://{}/{image}", self.registry.address())
    }

    /// Serves the image in a registry or in a bucket, with forks.
    pub(super) fn own(&self, subject: Subject, cache: &Path, forks: &[&str]) -> anyhow::Result<Served> {
        self.own_with(subject, cache, forks, &[])
    }

    fn own_with(&self, subject: Subject, cache: &Path, forks: &[&str], options: &[&str]) -> anyhow::Result<Served> {
        let (location, s3) = match subject {
            Subject::Traced => (&self.traced, None),
            Subject::S3 => (&self.s3_location, Some(self.s3.as_ref().context("no S3 server")?.address())),
            _ => (&self.location, None),
        };
        let server = Server::start(|socket| {
            let mut command = Command::new(self.pagefold);
            command.args(["serve", "--memory-limit", "1G", "--chunk-cache"]).arg(cache).envs(environment(s3));
            command.arg(format!("{BASE}={location}")).arg("--unix").arg(socket).arg("--dir").args(socket.parent());
            command.args(options);
            command
        })?;
        let served = Served { server, export: FORK, _files: TempDir::new()? };
        let mut control = served.server.control()?;
        forks.iter().try_for_each(|fork| control.fork(BASE, fork))?;
        Ok(served)
    }

    fn nbdkit(&self) -> anyhow::Result<Served> {
        let files = TempDir::new_in(self.folder)?;
        let url = format!("url=http://{}/{}.img", self.web.address(), self.name);
        let filters = ["--filter=cow", "--filter=readahead", "--filter=cache", "curl", &url];
        let server = Server::nbdkit(&tool::find("nbdkit")?, &filters, files.path())?;
        Ok(Served { server, export: "", _files: files })
    }

    fn qemu(&self) -> anyhow::Result<Served> {
        let files = TempDir::new_in(self.folder)?;
        let overlay = files.path().join("overlay.qcow2");
        let url = format!("http://{}/{}.qcow2", self.web.address(), self.name);
        let backing = json!({ "driver": "qcow2", "file": { "driver": "http", "url": url } });
        let mut create = Command::new(tool::find("qemu-img")?);
        create.args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &format!("json:{backing}")]);
        tool::run(create.arg(&overlay))?;
        let program = tool::find("qemu-nbd")?;
        let server = Server::start(|socket| {
            let mut command = Command::new(program);
            command.args(["--persistent", "--shared=0", "--discard=unmap", "--socket"]).arg(socket);
            command.arg("--image-opts").arg(format!(
                "driver=copy-on-read,file.driver=qcow2,file.file.driver=file,file.file.filename={}",
                overlay.display()
            ));
            command
        })?;
        Ok(Served { server, export: "", _files: files })
    }

    fn copied(&self) -> anyhow::Result<Served> {
        let files = TempDir::new_in(self.folder)?;
        let copy = files.path().join("copy");
        // skopeo takes a tag or a sum.
        let source = self.location.replace("oci://", "docker://").replace(":1@", "@");
        let mut skopeo = Command::new(tool::find("skopeo")?);
        skopeo.args(["copy", "--src-tls-verify=false", &source, &format!("dir:{}", copy.display())]);
        tool::run(&mut skopeo)?;
        let manifest: Value = serde_json::from_reader(File::open(copy.join("manifest.json"))?)?;
        let digest = manifest["layers"][0]["digest"].as_str().context("no layer")?;
        let image = files.path().join("disk.erofs");
        fs::rename(copy.join(digest.trim_start_matches("sha256:")), &image)?;
        let server =
            Server::pagefold(self.pagefold, &["--memory-limit", "1G", &format!("{BASE}={}", image.display())])?;
        server.control()?.fork(BASE, FORK)?;
        Ok(Served { server, export: FORK, _files: files })
    }

    /// Fetches the whole image into an empty cache. Returns the program, which has not started yet.
    pub(super) fn fetch(&self, cache: &Path) -> Command {
        let mut fetch = Command::new(self.pagefold);
        fetch.args(["fetch", "--chunk-cache"]).arg(cache).arg(&self.location);
        fetch
    }
}

/// Returns the environment variables that access to the S3 server needs.
fn environment(s3: Option<std::net::SocketAddr>) -> Vec<(&'static str, String)> {
    let Some(address) = s3 else { return Vec::new() };
    vec![
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ACCESS_KEY_ID", "bench".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "bench".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ]
}

/// Returns a path for a compressed qcow2 image that [`Away`] finds in its folder.
pub(super) fn qcow2_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.qcow2"))
}
