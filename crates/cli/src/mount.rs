//! `pagefold mount`: an image as a file system of this machine, by FUSE.
//!
//! In the background it is a second process that runs this program again. It says on its standard output that the image is
//! mounted, and what went wrong on its standard error; this process waits for the one or the other. The second then
//! leaves the terminal.

use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, bail};
use pagefold_fuse::{Log, Mount, MountOptions, Unmounter};
use signal_hook::iterator::Signals;

use crate::{image::ImageArgs, signals, size, tell};

/// What the table of processes calls the second process, which would be `exe`.
const NAME: &CStr = c"pagefold";

/// What the second process says when the image is mounted.
const MOUNTED: &[u8] = b"mounted\n";

/// Mount an EROFS image by FUSE, read-only
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold mount rootfs.erofs /mnt
  fusermount3 -u /mnt

Root is not needed where fusermount3 is installed. Set-id bits and device files are without effect; as root, \
'mount -t erofs -o loop' has the kernel do it, with them. SIGINT, SIGTERM and SIGHUP unmount; while files are open \
their users keep them, and a second signal ends at once.
A damaged part of the image is an I/O error to whoever reads it and a line in the log: on standard error in the \
foreground, else in the system's log, unless --log says where.")]
pub(crate) struct Args {
    /// The image
    #[arg(value_name = "IMAGE")]
    path: PathBuf,

    #[command(flatten)]
    image: ImageArgs,

    /// The directory to mount it on
    directory: PathBuf,

    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,

    /// Let other users in, as the permissions in the image say; not only root may do this if /etc/fuse.conf says so
    #[arg(long)]
    allow_other: bool,

    /// The most memory for decompressed clusters, beside the kernel's page cache
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "128M")]
    cache: u64,

    /// Threads; 0 for one a processor, but at least 4 and at most 16
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Append errors to FILE
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Be the second process: see the module's comment
    #[arg(long, hide = true)]
    announce: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.foreground || args.announce { serve(args) } else { start() }
}

/// Starts the second process and waits until it has mounted the image or failed.
fn start() -> anyhow::Result<()> {
    let mut second = Command::new("/proc/self/exe")
        .arg0(NAME.to_str().unwrap_or_default())
        .args(["mount", "--announce"])
        .args(std::env::args_os().skip(2))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start in the background")?;
    let mut said = [0; MOUNTED.len()];
    if let Some(out) = &mut second.stdout
        && out.read_exact(&mut said).is_ok()
        && said == MOUNTED
    {
        return Ok(());
    }
    let output = second.wait_with_output().context("cannot wait for the background")?;
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim_end().trim_start_matches("pagefold: ");
    bail!("{}", if message.is_empty() { format!("mount ended: {}", output.status) } else { message.to_owned() });
}

/// Mounts and serves until unmounted.
fn serve(args: &Args) -> anyhow::Result<()> {
    if args.announce {
        rustix::thread::set_name(NAME).context("cannot take a name")?;
    }
    let shown = args.path.display();
    let cache = usize::try_from(args.cache).context("--cache is larger than any memory")?;
    let image = args.image.open_with(&args.path, cache)?;
    let options =
        MountOptions { name: shown.to_string(), allow_other: args.allow_other, threads: args.threads, log: log(args)? };
    // Signals are caught from before the mount exists, so that none is left behind.
    let signals = signals::catch().context("cannot catch signals")?;
    let mount = Mount::new(image, &args.directory, options)
        .with_context(|| format!("cannot mount on {}", args.directory.display()))?;
    let unmounter = mount.unmounter();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || end_on_signals(signals, &unmounter))
        .context("cannot start a thread")?;
    if args.announce {
        leave_terminal().context("cannot go into the background")?;
    } else {
        tell(&format!("{shown} is mounted on {}", args.directory.display()));
    }
    mount.serve().context("the mount failed")
}

fn end_on_signals(mut signals: Signals, unmounter: &Unmounter) {
    let mut asked = false;
    for _ in signals.forever() {
        if asked {
            std::process::exit(1);
        }
        asked = true;
        if let Err(error) = unmounter.unmount() {
            tell(&format!("cannot unmount: {error}"));
        }
    }
}

/// Says that the image is mounted, and lets go of everything that the first process gave.
fn leave_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    // So that the directory in which this started can be unmounted.
    rustix::process::chdir("/")?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let mut out = io::stdout().lock();
    out.write_all(MOUNTED)?;
    out.flush()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

fn log(args: &Args) -> anyhow::Result<Log> {
    if let Some(path) = &args.log {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = Mutex::new(file.with_context(|| path.display().to_string())?);
        return Ok(Log::new(move |line| {
            if let Ok(mut file) = file.lock() {
                // There is nowhere to say that the log cannot be written.
                let _ = file.write_all(format!("pagefold: {line}\n").as_bytes());
            }
        }));
    }
    Ok(if args.announce { Log::new(system_log) } else { Log::new(tell) })
}

/// Sends a line to the system's log (RFC 3164; facility daemon, severity error) if there is one.
fn system_log(line: &str) {
    let message = format!("<27>pagefold[{}]: {line}", std::process::id());
    let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to(message.as_bytes(), Path::new("/dev/log")));
}
