//! `pagefold mount`: mounts an image as a file system with FUSE.
//!
//! In the background, the mount is served by a second process (`background.rs`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::thread;

use anyhow::Context;
use pagefold_fuse::{Log, Mount, MountOptions, Unmounter};
use signal_hook::iterator::Signals;

use crate::log::{Level, Sink};
use crate::{background, image::ImageArgs, report::print, signals, size};

/// Mount an EROFS image read-only, with FUSE
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold mount rootfs.erofs /mnt
  fusermount3 -u /mnt
  pagefold mount -o dev,suid,allow_other rootfs.erofs /mnt
  pagefold mount --offset 1M firmware.bin /mnt

The command does not need root if fusermount3 is installed. Device files and set-user-ID programs \
have no effect unless root mounts with -o dev,suid; do so only with trusted images. As root, \
'mount -t erofs -o loop' mounts the image with the kernel's own driver instead.
SIGINT, SIGQUIT, SIGTERM and SIGHUP unmount. Open files stay usable; a second signal ends the program \
immediately.
Readers of a damaged part of the image get an I/O error, and the log gets a line: on standard \
error in the foreground, otherwise in the system log, or in the file that --log names.")]
pub(crate) struct Args {
    /// The image
    #[arg(value_name = "IMAGE")]
    path: PathBuf,

    /// Mount point
    directory: PathBuf,

    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,

    /// Comma-separated mount options: dev, nodev, suid, nosuid, exec, noexec, allow_other, ro. The
    /// later of two opposites applies; dev and suid need root
    #[arg(short = 'o', long = "options", value_name = "LIST", value_delimiter = ',')]
    flags: Vec<Flag>,

    /// Let other users access the files, subject to their permissions; needs root, or
    /// user_allow_other in /etc/fuse.conf
    #[arg(long)]
    allow_other: bool,

    /// Memory limit of the cache of decompressed clusters, in addition to the kernel's page cache
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "128M")]
    cache: u64,

    /// Number of threads; 0 means one per processor, at least 4 and at most 16
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Append errors to FILE
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Be the second process of `background.rs`
    #[arg(long, hide = true)]
    announce: bool,

    #[command(flatten)]
    image: ImageArgs,
}

/// A mount option, as in mount(8).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    Dev(bool),
    Suid(bool),
    Exec(bool),
    AllowOther,
    ReadOnly,
}

impl FromStr for Flag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "dev" => Self::Dev(true),
            "nodev" => Self::Dev(false),
            "suid" => Self::Suid(true),
            "nosuid" => Self::Suid(false),
            "exec" => Self::Exec(true),
            "noexec" => Self::Exec(false),
            "allow_other" => Self::AllowOther,
            "ro" => Self::ReadOnly,
            "rw" => return Err("an EROFS image can only be read; leave 'rw' out".to_owned()),
            _ => {
                let known = "dev, nodev, suid, nosuid, exec, noexec, allow_other or ro";
                return Err(format!("'{text}' is not a supported mount option: use {known}"));
            }
        })
    }
}

impl Args {
    fn mount_options(&self) -> anyhow::Result<MountOptions> {
        let mut options = MountOptions::default();
        options.name = pagefold_storage::absolute(&self.path)?.display().to_string();
        options.allow_other = self.allow_other;
        options.threads = self.threads;
        options.log = log(self)?;
        for flag in &self.flags {
            match *flag {
                Flag::Dev(on) => options.dev = on,
                Flag::Suid(on) => options.suid = on,
                Flag::Exec(on) => options.exec = on,
                Flag::AllowOther => options.allow_other = true,
                // Every mount of an image is read-only.
                Flag::ReadOnly => {}
            }
        }
        Ok(options)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.foreground || args.announce { serve(args) } else { background::start("mount") }
}

/// Mounts and serves until unmounted.
fn serve(args: &Args) -> anyhow::Result<ExitCode> {
    if args.announce {
        background::name()?;
    }
    let shown = args.path.display();
    let cache = usize::try_from(args.cache).context("--cache exceeds the address space")?;
    let image = args.image.open_with(&args.path, cache)?;
    if let Err(error) = image.check_len() {
        print(&format!("warning: {shown}: {error}"));
    }
    let options = args.mount_options()?;
    // Catch signals before the mount exists, so that no signal leaves it behind.
    let signals = signals::catch().context("cannot catch signals")?;
    let mount = Mount::new(image, &args.directory, options)
        .with_context(|| format!("cannot mount on {}", args.directory.display()))?;
    let unmounter = mount.unmounter();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || end_on_signals(signals, &unmounter))
        .context("cannot start a thread")?;
    if args.announce {
        background::announce()?;
    } else {
        print(&format!("{shown} is mounted on {}", args.directory.display()));
    }
    mount.serve().context("the mount failed")?;
    Ok(ExitCode::SUCCESS)
}

fn end_on_signals(mut signals: Signals, unmounter: &Unmounter) {
    let mut asked = false;
    for _ in signals.forever() {
        if asked {
            std::process::exit(1);
        }
        asked = true;
        if let Err(error) = unmounter.unmount() {
            print(&format!("cannot unmount: {error}"));
        }
    }
}

/// Returns where errors go: the file of `--log`, otherwise standard error in the foreground and the
/// system log, if there is one, in the background.
fn log(args: &Args) -> anyhow::Result<Log> {
    let sink = match &args.log {
        Some(path) => {
            args.image.inputs(&args.path).check_path(path)?;
            Some(Sink::file(path)?)
        }
        None if args.announce => Sink::system().ok(),
        None => return Ok(Log::new(print)),
    };
    Ok(Log::new(move |line| {
        if let Some(sink) = &sink {
            sink.line(Level::Error, line);
        }
    }))
}
