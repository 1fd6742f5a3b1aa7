//! A virtual machine started by a test: Debian's kernel under qemu without KVM, which runs only the
//! test's shell script.
//!
//! `scripts/guest` fetches the kernel and the shell.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, ErrorKind, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::{programs, skip};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Maximum wait for anything in a guest.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs first: provides busybox's programs, and the disks as `/dev/vda` and so on.
const BEGIN: &str = "#!/busybox sh
/busybox mkdir /bin /dev /proc /sys /tmp /root
/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tmpfs none /tmp
for module in /modules/*; do insmod \"$module\"; done
stty -F /dev/ttyS0 -echo
echo 'init runs' >/dev/ttyS0
";

/// The line of a guest whose init runs.
const UP: &str = "init runs";

/// How often a guest may boot until its kernel does not crash.
const BOOTS: u32 = 3;

/// Runs the test's script, which reads the lines that the test sends.
const RUN: &str = "
sh /script </dev/ttyS0 >/dev/ttyS0 2>&1
echo \"script ended: $?\" >/dev/ttyS0
poweroff -f
";

/// Continues with the root file system and the init on the first disk.
const SWITCH_ROOT: &str = "
mount -t ext4 /dev/vda /root
for folder in dev proc sys; do mount --move /$folder /root/$folder; done
exec switch_root /root /sbin/init
";

/// A running guest, killed when this value is dropped.
pub(crate) struct Guest {
    child: Child,
    console: Arc<Console>,
    /// Number of console lines that have been consumed.
    seen: usize,
    qmp: BufReader<UnixStream>,
    events: Vec<Value>,
    _folder: TempDir,
}

#[derive(Default)]
struct Console {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    all: Vec<String>,
    ended: bool,
}

/// The parts of a guest, or `None` after skipping `test`.
pub(crate) struct Machine {
    qemu: PathBuf,
    parts: PathBuf,
}

impl Machine {
    pub(crate) fn find(test: &str) -> Option<Self> {
        let [qemu] = programs(test, ["qemu-system-x86_64"])?;
        let parts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest");
        if !parts.join("vmlinuz").exists() {
            skip(test, "target/guest has no kernel: run scripts/guest");
            return None;
        }
        Some(Self { qemu, parts })
    }

    /// Returns the guests' shell, a single-file program to be linked under the names that it lists.
    pub(crate) fn busybox(&self) -> PathBuf {
        self.parts.join("busybox")
    }

    /// Boots a guest that runs `script` and powers off. Each disk is the value of a `-drive`:
    /// `file=URI` and options.
    pub(crate) fn start(&self, disks: &[String], script: &str) -> Guest {
        self.start_from(&drives(disks), &initramfs(&self.parts, RUN, script, &[]))
    }

    /// As [`start`](Self::start), without disks, with programs in `/programs`, other files under
    /// the given names, and two CPUs.
    pub(crate) fn start_with(&self, programs: &[&Path], others: &[(String, PathBuf)], script: &str) -> Guest {
        // Without debug information, they fit into the guest's memory.
        let folder = TempDir::new().expect("a folder");
        let (mut files, mut libraries) = (others.to_vec(), BTreeSet::new());
        for program in programs {
            let name = program.file_name().expect("a name").to_string_lossy();
            let stripped = folder.path().join(&*name);
            let status = Command::new("strip").arg("-o").arg(&stripped).arg(program).status().expect("strip runs");
            assert!(status.success(), "{status}");
            files.push((format!("programs/{name}"), stripped));
            let listed = Command::new("ldd").arg(program).output().expect("ldd runs");
            let listed = String::from_utf8(listed.stdout).expect("paths");
            // `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the program that loads them.
            libraries.extend(listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
        }
        let text = |path: &PathBuf| path.to_string_lossy()[1..].to_owned();
        files.extend(libraries.into_iter().map(|path| (text(&path), path)));
        let cpus = ["-smp".to_owned(), "2".to_owned()];
        self.start_from(&cpus, &initramfs(&self.parts, RUN, script, &files))
    }

    /// The same with one disk on a vhost-user socket, to which qemu connects again when the server is
    /// gone. The guest has two CPUs, and a queue for each.
    pub(crate) fn start_vhost_user(&self, socket: &Path, script: &str) -> Guest {
        self.start_from(&vhost_user(socket), &initramfs(&self.parts, RUN, script, &[]))
    }

    /// Boots a guest whose root is the ext4 file system on the first disk: its `/sbin/init` takes
    /// over.
    pub(crate) fn boot(&self, disks: &[String]) -> Guest {
        self.start_from(&drives(disks), &initramfs(&self.parts, SWITCH_ROOT, "", &[]))
    }

    /// The same with the root file system on a vhost-user socket.
    pub(crate) fn boot_vhost_user(&self, socket: &Path) -> Guest {
        self.start_from(&vhost_user(socket), &initramfs(&self.parts, SWITCH_ROOT, "", &[]))
    }

    /// The same with an object of qemu that the disks name.
    pub(crate) fn boot_with(&self, object: &str, disks: &[String]) -> Guest {
        let arguments = [vec!["-object".to_owned(), object.to_owned()], drives(disks)].concat();
        self.start_from(&arguments, &initramfs(&self.parts, SWITCH_ROOT, "", &[]))
    }

    /// Boots a guest, and waits until its init runs. Without KVM, some boots of Linux 6.12 crash while
    /// one CPU executes code that another replaces; nothing has been written then.
    #[allow(clippy::print_stdout, reason = "crashes should be seen")]
    fn start_from(&self, arguments: &[String], files: &[u8]) -> Guest {
        let mut boots = 0;
        loop {
            let mut guest = self.try_start(arguments, files);
            if guest.is_up() {
                return guest;
            }
            boots += 1;
            assert!(boots < BOOTS, "the guest's kernel crashes:\n{}", guest.text());
            println!("the guest's kernel has crashed, and boots again:\n{}", guest.text());
        }
    }

    fn try_start(&self, arguments: &[String], files: &[u8]) -> Guest {
        let folder = TempDir::new().expect("a folder");
        let (initramfs, socket) = (folder.path().join("initramfs"), folder.path().join("qmp.sock"));
        fs::write(&initramfs, files).expect("room for a file");
        let mut command = Command::new(&self.qemu);
        // With CMPXCHG16B, some boots of Linux 6.12 crash under qemu 7.2 without KVM.
        command.args(["-machine", "q35", "-accel", "tcg", "-cpu", "max,cx16=off", "-m", "512"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]);
        command.arg("-kernel").arg(self.parts.join("vmlinuz")).arg("-initrd").arg(&initramfs);
        command.args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check random.trust_cpu=on"]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", socket.display()));
        command.args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("qemu starts");
        let console = Arc::new(Console::default());
        let (output, reader) = (child.stdout.take().expect("a pipe"), Arc::clone(&console));
        thread::spawn(move || reader.fill(BufReader::new(output)));
        let qmp = connect(&socket, &mut child);
        let mut guest = Guest { child, console, seen: 0, qmp, events: Vec::new(), _folder: folder };
        guest.qmp("qmp_capabilities", &json!({}));
        guest
    }
}

/// Returns the options for a disk on a vhost-user socket, with a queue for each of two CPUs.
fn vhost_user(socket: &Path) -> [String; 10] {
    [
        "-smp".to_owned(),
        "2".to_owned(),
        "-object".to_owned(),
        "memory-backend-memfd,id=memory,size=512M,share=on".to_owned(),
        "-machine".to_owned(),
        "memory-backend=memory".to_owned(),
        "-chardev".to_owned(),
        format!("socket,id=disk,path={},reconnect=1", socket.display()),
        "-device".to_owned(),
        "vhost-user-blk-pci,chardev=disk,num-queues=2".to_owned(),
    ]
}

/// Returns the options for disks, each the value of a `-drive`.
fn drives(disks: &[String]) -> Vec<String> {
    disks.iter().flat_map(|disk| ["-drive".to_owned(), format!("if=virtio,format=raw,{disk}")]).collect()
}

impl Guest {
    /// Returns whether init runs. Otherwise, the kernel has crashed.
    fn is_up(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.console.lines.lock().expect("lines");
        loop {
            if let Some(up) = lines.all.iter().position(|line| line.ends_with(UP)) {
                self.seen = up + 1;
                return true;
            }
            if lines.ended && lines.all.iter().any(|line| line.contains("Kernel panic")) {
                return false;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!lines.ended && !left.is_zero(), "init does not run:\n{}", lines.all.join("\n"));
            lines = self.console.changed.wait_timeout(lines, left).expect("lines").0;
        }
    }

    /// Waits for a line of the console that begins with `start`, after those that were consumed
    /// before, and returns its rest.
    pub(crate) fn wait_for(&mut self, start: &str) -> String {
        self.wait_for_either(start, "").unwrap_or_default()
    }

    /// The same, or `None` if a line that begins with `other` comes first.
    pub(crate) fn wait_for_either(&mut self, start: &str, other: &str) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.console.lines.lock().expect("lines");
        loop {
            while let Some(line) = lines.all.get(self.seen) {
                self.seen += 1;
                if let Some(rest) = line.strip_prefix(start) {
                    return Some(rest.trim().to_owned());
                }
                if !other.is_empty() && line.starts_with(other) {
                    return None;
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!lines.ended && !left.is_zero(), "no line '{start}':\n{}", lines.all.join("\n"));
            lines = self.console.changed.wait_timeout(lines, left).expect("lines").0;
        }
    }

    /// Writes a line to the script's input.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("qemu reads");
    }

    /// Runs a command of qemu's monitor that must succeed, and returns the result.
    pub(crate) fn qmp(&mut self, command: &str, arguments: &Value) -> Value {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.qmp.get_mut(), "{request}").expect("qemu reads");
        loop {
            let mut message = self.message();
            if message.get("event").is_some() {
                self.events.push(message);
            } else if message.get("QMP").is_none() {
                let result = message.get_mut("return").map(Value::take);
                return result.unwrap_or_else(|| panic!("{command}: {message}"));
            }
        }
    }

    /// Waits for an event, or takes one that arrived earlier, and returns its data.
    pub(crate) fn wait_for_event(&mut self, name: &str) -> Value {
        let mut at = 0;
        loop {
            if self.events.len() == at {
                let message = self.message();
                self.events.push(message);
            }
            if self.events[at]["event"] == name {
                return self.events.remove(at);
            }
            at += 1;
        }
    }

    /// Returns whether an event has arrived and was not taken yet.
    pub(crate) fn has_event(&mut self, name: &str) -> bool {
        self.qmp("query-status", &json!({}));
        self.events.iter().any(|event| event["event"] == name)
    }

    fn message(&mut self) -> Value {
        let mut line = String::new();
        self.qmp.read_line(&mut line).unwrap_or_else(|error| panic!("qemu says nothing: {error}"));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("'{line}': {error}"))
    }

    /// Waits until the script has exited with status 0 and the guest is off.
    pub(crate) fn end(mut self) {
        assert_eq!(self.wait_for("script ended: "), "0", "{}", self.text());
        self.off();
    }

    /// Ends the machine like a power failure for the guest. Disk requests issued before are
    /// completed, and none follows.
    pub(crate) fn cut(mut self) {
        self.qmp("quit", &json!({}));
        self.off();
    }

    fn off(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().expect("a child").is_none() {
            assert!(Instant::now() < deadline, "the guest does not power off:\n{}", self.text());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn text(&self) -> String {
        self.console.lines.lock().expect("lines").all.join("\n")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Console {
    /// Collects lines until qemu has exited.
    fn fill(&self, mut output: impl BufRead) {
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.lines.lock().expect("lines").all.push(text);
            self.changed.notify_all();
            line.clear();
        }
        self.lines.lock().expect("lines").ended = true;
        self.changed.notify_all();
    }
}

/// Returns an archive of the initial files in the guest's memory. `files` are copied from paths of
/// this machine.
fn initramfs(parts: &Path, then: &str, script: &str, files: &[(String, PathBuf)]) -> Vec<u8> {
    let mut archive = Archive::default();
    for (name, path) in files {
        let slashes = name.match_indices('/').map(|(at, _)| &name[..at]);
        slashes.for_each(|folder| archive.add(folder, 0o040_755, b""));
        archive.add(name, 0o100_755, &fs::read(path).expect("a file"));
    }
    archive.add("init", 0o100_755, format!("{BEGIN}{then}").as_bytes());
    archive.add("script", 0o100_644, script.as_bytes());
    archive.add("busybox", 0o100_755, &fs::read(parts.join("busybox")).expect("a shell"));
    archive.add("modules", 0o040_755, b"");
    for module in fs::read_dir(parts.join("modules")).expect("modules") {
        let module = module.expect("a module");
        let name = format!("modules/{}", module.file_name().to_string_lossy());
        archive.add(&name, 0o100_644, &fs::read(module.path()).expect("a module"));
    }
    archive.end()
}

fn connect(socket: &Path, child: &mut Child) -> BufReader<UnixStream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
                return BufReader::new(stream);
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(error) => panic!("qemu's socket: {error}"),
        }
        if let Some(status) = child.try_wait().expect("a child") {
            panic!("qemu ended: {status}");
        }
        assert!(Instant::now() < deadline, "qemu does not listen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A cpio archive in the format that Linux unpacks: `newc`, with fields of eight hexadecimal
/// digits.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    number: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.number += 1;
        let (links, name_bytes, size_bytes) = (1, name.len() as u32 + 1, content.len() as u32);
        // inode, mode, owner, group, links, time, size, device and rdev (major and minor each),
        // length of the name, no checksum
        let fields = [self.number, mode, 0, 0, links, 0, size_bytes, 0, 0, 0, 0, name_bytes, 0];
        self.bytes.extend_from_slice(b"070701");
        fields.iter().for_each(|field| self.bytes.extend_from_slice(format!("{field:08x}").as_bytes()));
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, b"");
        self.bytes
    }
}
