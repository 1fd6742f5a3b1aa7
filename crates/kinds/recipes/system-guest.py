# A virtual machine that does ordinary work: its disk, its memory, and its processes' page tables.
import glob, json, mmap, os, shutil, socket, stat, struct, subprocess, sys, time
out = sys.argv[1]
parts = os.path.realpath("target/guest")
tree, disk = os.path.join(out, "tree"), os.path.join(out, "system-guest-disk")
MEMORY_MIB = 640
PATIENCE_S = 400


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(command[0] + " fails: " + done.stderr.decode(errors="replace").strip()[-300:])
    return done.stdout.decode(errors="replace")


# This machine's programs with all their dependencies.
wanted = ["bash", "coreutils", "perl", "python3", "grep", "sed", "mawk", "tar", "gzip", "findutils", "xz-utils", "diffutils", "mount", "dash"]
depends = run("apt-cache", "depends", "--recurse", "--installed", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
    "--no-replaces", "--no-enhances", *wanted)
named = {line for line in depends.split("\n") if line and line[0].isalnum()}
installed = run("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${binary:Package}\\n").split("\n")
packages = [line.split()[1] for line in installed if line.startswith("installed ") and line.split()[1].split(":")[0] in named]
os.mkdir(tree)
for name in ("bin", "sbin", "lib", "lib64"):
    os.makedirs(os.path.join(tree, "usr", name), exist_ok=True)
    os.symlink("usr/" + name, os.path.join(tree, name))
for name in ("dev", "proc", "sys", "tmp", "run", "etc"):
    os.mkdir(os.path.join(tree, name))
for path in sorted(set(run("dpkg", "--listfiles", *packages).split("\n"))):
    skipped = ("/usr/share/locale", "/usr/share/man", "/boot", "/var", "/dev", "/proc", "/sys", "/usr/share/info")
    if not path.startswith("/") or path.startswith(skipped) or not os.path.lexists(path):
        continue
    target = os.path.join(tree, path.lstrip("/"))
    about = os.lstat(path)
    if stat.S_ISDIR(about.st_mode) or os.path.lexists(target):
        continue
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)
    except OSError:
        continue
# Packages do not list the links of /etc/alternatives.
shutil.copy2(os.path.realpath("/usr/bin/mawk"), os.path.join(tree, "usr/bin/awk"))
WORK = r"""#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C
mount -t tmpfs none /tmp
mkdir /tmp/work && cd /tmp/work
find /usr -type f | sort > files
python3 -c 'import compileall; json; compileall.compile_dir(json.__path__[0], quiet=1)' >/dev/null 2>&1
grep -rhoE '[A-Za-z]{4,}' /usr/share/doc /usr/lib/python3*/asyncio 2>/dev/null | head -n 200000 | sort | uniq -c | sort -rn > words
tar cf archive.tar /usr/lib/python3*/email /usr/share/perl 2>/dev/null
gzip -1 -k archive.tar
md5sum $(head -n 1500 files | tr '\n' ' ') > sums 2>/dev/null
cat > keep.py <<'END'
import json, random, re, sys, time
random.seed(int(sys.argv[1]))
words = open("words").read().split()[1::2]
kept = {}
for n in range(int(sys.argv[2])):
    kept[n] = {"name": random.choice(words), "at": time.time() + n, "parts": [random.randrange(1000) for _ in range(random.randrange(6))]}
text = json.dumps(kept)
again = json.loads(text)
open("done.python" + sys.argv[1], "w")
time.sleep(10000)
END
cat > keep.pl <<'END'
my ($seed, $count) = @ARGV; srand $seed;
open my $in, "<", "words"; my %kept;
while (<$in>) { my ($n, $w) = split; $kept{$w} = { count => $n, like => [map { int rand 100 } 1 .. 3], back => scalar reverse $w } if rand() < $count / 10000; }
open my $out, ">", "done.perl$seed"; close $out;
sleep 10000;
END
for n in 1 2 3 4; do python3 keep.py $n $((n * 3000)) & done
for n in $(seq 1 45); do perl keep.pl $n $((n * 12)) & done
for n in $(seq 5 24); do python3 keep.py $n $((n * 10)) & done
for n in $(seq 1 30); do awk -v n=$n 'BEGIN { while ((getline line < "sums") > 0 && ++c < n * 40) kept[c] = line; system("> done.awk" n "; sleep 10000") }' & done
for n in $(seq 1 25); do bash -c 'kept=$(head -n $0 files); > done.bash$0; sleep 10000; echo' $((n * 30)) & done
while [ $(ls | grep -c done) -lt 124 ]; do sleep 1; done
echo ready > /dev/ttyS0
sleep 10000
"""
with open(os.path.join(tree, "work"), "w") as file:
    file.write(WORK)
os.chmod(os.path.join(tree, "work"), 0o755)
with open(disk, "wb") as file:
    file.truncate(1 << 30)
run("mkfs.ext4", "-q", "-d", tree, disk)

# The initramfs: a shell, modules, and a script that switches to the disk.
first = os.path.join(out, "first")
os.makedirs(os.path.join(first, "modules"))
shutil.copy(os.path.join(parts, "busybox"), first)
for module in glob.glob(os.path.join(parts, "modules", "*")):
    shutil.copy(module, os.path.join(first, "modules"))
with open(os.path.join(first, "init"), "w") as file:
    file.write("""#!/busybox sh
/busybox mkdir /bin /dev /proc /sys /root
/busybox --install -s /bin
mount -t devtmpfs none /dev
for module in /modules/*; do insmod "$module"; done
mount -t ext4 /dev/vda /root
mount --move /dev /root/dev
mount -t proc none /root/proc
mount -t sysfs none /root/sys
exec switch_root /root /work
""")
os.chmod(os.path.join(first, "init"), 0o755)
os.chmod(os.path.join(first, "busybox"), 0o755)
archive = os.path.join(out, "archive")
names = subprocess.run(["find", ".", "-mindepth", "1"], cwd=first, stdout=subprocess.PIPE).stdout


def cpio(names):
    """The 'newc' format that kernels unpack."""
    for number, name in enumerate(sorted(names) + ["TRAILER!!!"]):
        path, content, mode = os.path.join(first, name), b"", 0
        if name != "TRAILER!!!":
            mode = os.stat(path).st_mode
            content = open(path, "rb").read() if stat.S_ISREG(mode) else b""
        fields = [number + 1, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        yield head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)


with open(archive, "wb") as file:
    file.writelines(cpio(name[2:] for name in names.decode().split("\n") if name))
socket_path, console, dump = (os.path.join(out, name) for name in ("qmp.sock", "console", "system-guest-memory"))
machine = subprocess.Popen(["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg", "-cpu", "max,cx16=off", "-m", str(MEMORY_MIB), "-nodefaults",
    "-no-user-config", "-no-reboot", "-display", "none", "-serial", "file:" + console, "-kernel", os.path.join(parts, "vmlinuz"),
    "-initrd", archive, "-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check random.trust_cpu=on",
    "-qmp", "unix:%s,server=on,wait=off" % socket_path, "-drive", "if=virtio,format=raw,snapshot=on,file=" + disk], stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL)


def talk(channel, command, **arguments):
    channel.write((json.dumps({"execute": command, "arguments": arguments}) + "\n").encode())
    channel.flush()
    for line in channel:
        answer = json.loads(line)
        if "error" in answer:
            sys.exit("qemu: %s" % answer["error"])
        if "return" in answer:
            return answer["return"]
    sys.exit("qemu has ended")


try:
    for _ in range(PATIENCE_S):
        if machine.poll() is not None:
            sys.exit("qemu has ended")
        if os.path.exists(console) and b"ready" in open(console, "rb").read().split():
            break
        time.sleep(1)
    else:
        sys.exit("the guest does not get ready: " + open(console, "rb").read()[-300:].decode(errors="replace"))
    client = socket.socket(socket.AF_UNIX)
    client.connect(socket_path)
    channel = client.makefile("rwb")
    channel.readline()
    talk(channel, "qmp_capabilities")
    talk(channel, "stop")
    registers = talk(channel, "human-monitor-command", **{"command-line": "info registers"})
    talk(channel, "pmemsave", val=0, size=MEMORY_MIB << 20, filename=dump)
finally:
    machine.kill()
    machine.wait()

# Four levels of tables of 512 entries (Intel's manual, volume 3, 4.5). All processes share the
# kernel's half of the top level, which identifies the top-level tables.
PAGE, PRESENT, LARGE, ADDRESS = 4096, 1, 1 << 7, 0xffffffffff000
top = int([word[4:] for word in registers.split() if word.startswith("CR3=")][0], 16) & ADDRESS
with open(dump, "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    kernel_half = memory[top + 2048:top + PAGE]
    tables = set()

    def gather(address, level, entries=range(512)):
        if address in tables and level < 4:
            return
        tables.add(address)
        for word in struct.unpack_from("<512Q", memory, address)[entries.start:entries.stop]:
            if word & PRESENT and level > 1 and not (word & LARGE and level < 4) and word & ADDRESS < len(memory):
                gather(word & ADDRESS, level - 1)

    gather(top, 4)
    for address in range(0, len(memory), PAGE):
        if memory[address + 2048:address + PAGE] == kernel_half:
            gather(address, 4, range(256))
    with open(os.path.join(out, "system-guest-page-tables"), "wb") as file:
        for address in sorted(tables):
            file.write(memory[address:address + PAGE])
    memory.close()
