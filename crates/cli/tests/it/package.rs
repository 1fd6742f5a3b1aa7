//! The files that `make install` and the Debian package install, and the package's life from
//! installation to removal.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::{programs, skip, skip_for_good};
use rustix::process::geteuid;
use tempfile::TempDir;

use serde_json::Value;

use crate::server::{Ended, run, wait};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Returns a command that runs one of the project's scripts with the program under test.
fn script(name: &str) -> Command {
    let mut command = Command::new(root().join("scripts").join(name));
    command.current_dir(root()).env("BINARY", env!("CARGO_BIN_EXE_pagefold"));
    command
}

/// Little time for compression.
const FAST: &str = "-Zgzip -z1";

/// Packages of two versions.
static PACKAGES: LazyLock<Option<(TempDir, [PathBuf; 2])>> = LazyLock::new(|| {
    programs("the package", ["dpkg-deb", "objdump", "strip"])?;
    let folder = TempDir::new().expect("a folder");
    let [first, second] = ["a.deb", "b.deb"].map(|name| folder.path().join(name));
    run(script("deb").env("VERSION", "0.1.0").env("OUT", &first).env("COMPRESSION", FAST));
    // The second differs in its version.
    let again = format!(
        "dpkg-deb -R a.deb tree && sed -i 's/^Version: .*/Version: 0.1.1/' tree/DEBIAN/control && \
         dpkg-deb --root-owner-group {FAST} -b tree b.deb >/dev/null && rm -r tree"
    );
    run(Command::new("sh").args(["-ec", &again]).current_dir(&folder));
    Some((folder, [first, second]))
});

fn packages() -> Option<&'static [PathBuf; 2]> {
    PACKAGES.as_ref().map(|(_, packages)| packages)
}

/// Returns a folder with the packages a.deb and b.deb, and with these empty folders.
pub(crate) fn folder_with_packages(folders: &[&str]) -> Option<TempDir> {
    let packages = packages()?;
    let folder = TempDir::new().expect("a folder");
    folders.iter().for_each(|name| fs::create_dir(folder.path().join(name)).expect("a folder"));
    for (package, name) in packages.iter().zip(["a.deb", "b.deb"]) {
        fs::copy(package, folder.path().join(name)).expect("a copy");
    }
    Some(folder)
}

/// Returns the files below a directory.
fn files(folder: &Path) -> BTreeSet<String> {
    let found = run(Command::new("find").arg(".").args(["-not", "-type", "d"]).current_dir(folder));
    found.lines().map(str::to_owned).collect()
}

#[test]
fn everything_is_installed_and_uninstalled() {
    let folder = TempDir::new().expect("a folder");
    run(script("install").env("DESTDIR", folder.path()).env("PREFIX", "/opt/pagefold"));
    let installed = files(folder.path());
    let help = run(Command::new(env!("CARGO_BIN_EXE_pagefold")).arg("--help"));
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<_> = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let names = names.iter().filter(|name| !name.is_empty() && **name != "help");
    for name in names {
        let page = format!("./opt/pagefold/share/man/man1/pagefold-{name}.1");
        assert!(installed.contains(&page), "{page}");
    }
    for file in [
        "etc/pagefold/serve.toml",
        "opt/pagefold/bin/pagefold",
        "opt/pagefold/lib/systemd/system/pagefold.service",
        "opt/pagefold/lib/systemd/system/pagefold-control.socket",
        "opt/pagefold/lib/sysusers.d/pagefold.conf",
        "opt/pagefold/lib/tmpfiles.d/pagefold.conf",
        "opt/pagefold/share/bash-completion/completions/pagefold",
        "opt/pagefold/share/man/man1/pagefold.1",
        "opt/pagefold/share/pagefold/grafana/pagefold.json",
        "opt/pagefold/share/pagefold/prometheus/alerts.yml",
    ] {
        assert!(installed.contains(&format!("./{file}")), "{file} is not in {installed:?}");
    }
    let unit = fs::read_to_string(folder.path().join("opt/pagefold/lib/systemd/system/pagefold.service"));
    assert!(unit.expect("the unit").contains("ExecStart=/opt/pagefold/bin/pagefold serve --config /etc/"));

    // An administrator's configuration stays.
    let configuration = folder.path().join("etc/pagefold/serve.toml");
    fs::write(&configuration, "# mine\n").expect("a file");
    run(script("install").env("DESTDIR", folder.path()).env("PREFIX", "/opt/pagefold"));
    assert_eq!(fs::read_to_string(&configuration).expect("a file"), "# mine\n");
    run(script("install").arg("--uninstall").env("DESTDIR", folder.path()).env("PREFIX", "/opt/pagefold"));
    assert_eq!(files(folder.path()), BTreeSet::from(["./etc/pagefold/serve.toml".to_owned()]));
}

#[test]
fn the_installed_configuration_is_valid() {
    let path = root().join("packaging/serve.toml");
    let text = fs::read_to_string(&path).expect("the configuration");
    let folder = TempDir::new().expect("a folder");
    // The machine need not have the group, nor the image. Each line that is commented out is valid too.
    let image = folder.path().join("debian.img");
    fs::write(&image, [0; 4096]).expect("an image");
    let image = image.to_str().expect("a plain path");
    let whole: String = text
        .replace("\"pagefold\"", "0")
        .replace("/var/lib/images/debian.erofs", image)
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let file = folder.path().join("serve.toml");
    fs::write(&file, whole).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagefold"));
    let said = run(command.args(["serve", "--check-config", "--config"]).arg(&file));
    for words in ["disk          'scratch', 8 GiB", "base          'debian', 4 KiB, read-only", "fork          'job-2'"]
    {
        assert!(said.contains(words), "{words} is not in {said}");
    }
}

/// The unit is as restricted as possible for a server with clients on networks.
#[test]
fn the_units_are_sound_and_hardened() {
    let test = "the_units_are_sound_and_hardened";
    let Some([analyze]) = programs(test, ["systemd-analyze"]) else { return };
    let folder = TempDir::new().expect("a folder");
    run(script("install").env("DESTDIR", folder.path()).env("PREFIX", "/usr"));
    let units = folder.path().join("usr/lib/systemd/system");
    let mut security = Command::new(&analyze);
    security.args(["security", "--offline=true", "--threshold=20", "--no-pager"]);
    let output = security.arg(units.join("pagefold.service")).output().expect("a start");
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().rev().find(|line| line.contains("Overall exposure")).unwrap_or_default();
    assert!(output.status.success() && !last.is_empty(), "more than 2.0: {said}");
    let text = |name: &str| fs::read_to_string(units.join(name)).expect("a unit");
    for name in ["pagefold.socket", "pagefold-control.socket"] {
        // No client may start a server with empty disks in place of one that has ended.
        assert!(text(name).lines().any(|line| line == "StopPropagatedFrom=pagefold.service"), "{name}");
    }
    let service = text("pagefold.service");
    assert!(service.lines().any(|line| line == "Requires=pagefold.socket pagefold-control.socket"), "{service}");
    // The program must exist for this check.
    for name in ["pagefold.service", "pagefold.socket", "pagefold-control.socket"] {
        let path = units.join(name);
        let text =
            fs::read_to_string(&path).expect("a unit").replace("/usr/bin/pagefold", env!("CARGO_BIN_EXE_pagefold"));
        fs::write(
            &path,
            text.lines().filter(|line| !line.starts_with("Documentation=")).collect::<Vec<_>>().join("\n"),
        )
        .expect("a unit");
    }
    let mut verify = Command::new(&analyze);
    verify
        .args(["verify", "--recursive-errors=no", "--man=no"])
        .env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()));
    let all = ["pagefold.service", "pagefold.socket", "pagefold-control.socket"].map(|name| units.join(name));
    let output = verify.args(all).output().expect("a start");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let own: Vec<_> = said.lines().filter(|line| line.contains("pagefold")).collect();
    assert!(own.is_empty(), "{said}");
}

#[test]
#[ignore = "takes a quarter of a minute, and only files in packaging/ matter to it; make soak runs it"]
fn the_package_pleases_lintian() {
    let test = "the_package_pleases_lintian";
    let Some([lintian]) = programs(test, ["lintian"]) else { return };
    let Some([package, _]) = packages() else { return };
    let mut command = Command::new(lintian);
    command.args(["--fail-on", "error,warning", "--tag-display-limit", "0", "--allow-root"]);
    let output = command.arg(package).output().expect("a start");
    assert!(output.status.success(), "{}", said(&output));
}

/// The image has only the program, which serves as the image's user. The program under test also
/// needs its libraries.
#[test]
fn the_container_image_serves_without_privileges() {
    let test = "the_container_image_serves_without_privileges";
    if !geteuid().is_root() {
        return skip_for_good(test, "only root changes its root");
    }
    let Some([chroot, ..]) = programs(test, ["chroot", "jq", "tar", "gzip", "sha256sum", "strip", "ldd"]) else {
        return;
    };
    let folder = TempDir::new().expect("a folder");
    let (image, root) = (folder.path().join("image"), folder.path().join("root"));
    run(script("container").env("OUT", &image));
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:")).expect("a digest");
        let path = image.join("blobs/sha256").join(digest);
        assert!(run(Command::new("sha256sum").arg(&path)).starts_with(digest));
        assert_eq!(descriptor["size"], fs::metadata(&path).expect("a blob").len());
        path
    };
    let json = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON") };
    let manifest = json(blob(&json(image.join("index.json"))["manifests"][0]));
    let config = json(blob(&manifest["config"]))["config"].clone();
    fs::create_dir(&root).expect("a folder");
    run(Command::new("tar").arg("-xzpf").arg(blob(&manifest["layers"][0])).arg("-C").arg(&root));
    for line in run(Command::new("ldd").arg(env!("CARGO_BIN_EXE_pagefold"))).lines() {
        let Some(library) = line.split_whitespace().find(|word| word.starts_with('/')) else { continue };
        let to = root.join(&library[1..]);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(library, to).expect("a copy");
    }
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
    };
    let user = config["User"].as_str().expect("a user").to_owned();
    assert_eq!(user, "65532:65532");
    let in_image = |args: &[&str]| {
        let mut command = Command::new(&chroot);
        command.arg(format!("--userspec={user}")).arg(&root).args(texts(&config["Entrypoint"])).args(args).env_clear();
        command.envs(texts(&config["Env"]).iter().map(|text| text.split_once('=').expect("a variable")));
        command
    };
    let volume = config["Volumes"].as_object().and_then(|all| all.keys().next()).expect("a volume").clone();
    let dir = ["--dir", &*volume];
    let mut server = in_image(&["serve", "--size", "1M", "--dir", &volume]);
    let mut server = Ended(server.stderr(Stdio::piped()).spawn().expect("a start"));
    let socket = root.join(&volume[1..]).join("control.sock");
    wait_until(|| socket.exists() || server.0.try_wait().expect("a child").is_some());
    let ask = |args: &[&str]| run(&mut in_image(&[args, &dir].concat()));
    ask(&["add", "disk", "--size", "1M"]);
    ask(&["fork", "disk", "fork"]);
    assert!(ask(&["disks", "--columns", "name"]).contains("fork"));
    ask(&["stop"]);
    assert!(wait(&mut server.0).success());
}

fn wait_until(is_so: impl FnMut() -> bool) {
    let (mut is_so, deadline) = (is_so, Instant::now() + Duration::from_secs(60));
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Steps of an administrator, in a copy of this machine that is thrown away. $1 is a folder with the
/// packages a.deb and b.deb, and with `upper`, where what changes is.
const LIFE: &str = r#"
set -eu
cd "$1"
mount -t tmpfs tmpfs layers
mkdir layers/upper layers/work layers/root
root=$1/layers/root
# The temporary folder itself is not seen below.
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/layers/upper,workdir=$1/layers/work" "$root" || exit 77
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mkdir -p "$root/tmp/packages" "$root/run"
cp a.deb b.deb "$root/tmp/packages"
in_root() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
install() { in_root dpkg --no-triggers --force-unsafe-io --force-confdef --force-confold --install "$1" >dpkg.log 2>&1 || { cat dpkg.log; exit 1; }; }
user() { in_root setpriv --reuid pagefold --regid pagefold --clear-groups "$@"; }

# Without a compiler.
for name in cc gcc c++ rustc cargo; do rm -f "$root/usr/bin/$name"; done
install /tmp/packages/a.deb
echo "installed $(in_root pagefold --version)"
in_root pagefold serve --check-config --config /etc/pagefold/serve.toml | grep ^codec
in_root id -un pagefold
in_root stat -c '%U %G %a' /run/pagefold/disks

# An image, its base and a fork at the start, served as the unit does.
in_root sh -c 'head -c 1000000 /usr/bin/env > /tmp/disk.img; truncate -s 1M /tmp/disk.img
  pagefold pack /tmp/disk.img -o /var/lib/disk.erofs 2>/dev/null; chmod 644 /var/lib/disk.erofs'
cat >>"$root/etc/pagefold/serve.toml" <<END
[[base]]
name = "base"
file = "/var/lib/disk.erofs"
[[fork]]
from = "base"
name = "job-1"
socket = "/run/pagefold/disks/job-1.sock"
END
user pagefold serve --config /etc/pagefold/serve.toml --dir /run/pagefold/disks 2>server.log &
server=$!
for try in $(seq 200); do in_root pagefold disks --dir /run/pagefold/disks >disks 2>/dev/null && break; sleep 0.05; done
in_root pagefold fork base job-2 --dir /run/pagefold/disks >/dev/null || { cat server.log; exit 1; }
in_root pagefold disks --dir /run/pagefold/disks --columns name 2>/dev/null | tr -d ' └├─│' | tr '\n' ' '; echo

# The server, and the edited configuration, outlive an upgrade.
install /tmp/packages/b.deb
in_root dpkg-query -W -f '${Version}\n' pagefold
grep -c job-1.sock "$root/etc/pagefold/serve.toml"
in_root pagefold diff job-2 --dir /run/pagefold/disks >/dev/null && echo serves
in_root pagefold stop --dir /run/pagefold/disks >/dev/null
wait $server || true

# With a stand-in for systemd: a service that was removed starts when it is installed again, also with
# its former configuration, and one that has failed does not.
mkdir -p "$root/run/systemd/system"
for name in systemctl deb-systemd-invoke; do
  rm -f "$root/usr/bin/$name"
done
printf '#!/bin/sh\ncase "$*" in *is-failed*) test -e /tmp/failed ;; *is-active*) false ;; esac\n' >"$root/usr/bin/systemctl"
printf '#!/bin/sh\necho "$*" >>/tmp/invoked\n' >"$root/usr/bin/deb-systemd-invoke"
chmod 755 "$root/usr/bin/systemctl" "$root/usr/bin/deb-systemd-invoke"
in_root dpkg --no-triggers --remove pagefold >/dev/null 2>&1
install /tmp/packages/b.deb
touch "$root/tmp/failed"
install /tmp/packages/b.deb
in_root dpkg --no-triggers --remove pagefold >/dev/null 2>&1
cat "$root/tmp/invoked"
rm -r "$root/tmp/invoked" "$root/tmp/failed" "$root/usr/bin/systemctl" "$root/usr/bin/deb-systemd-invoke" \
  "$root/run/systemd/system"
ls "$root/etc/pagefold"
in_root dpkg --no-triggers --purge pagefold >dpkg.log 2>&1 || { cat dpkg.log; exit 1; }
rm -r "$root/tmp/packages" "$root/tmp/disk.img" "$root/var/lib/disk.erofs"
umount "$root/proc" "$root/dev" "$root"
echo left:
cd layers/upper
# Except whiteouts of what this machine has. Lists of packages and users are not files of the package.
find . ! -type c '(' ! -type d -o -path '*pagefold*' ')' | grep -v -E \
  '^\./(var/lib/dpkg/|var/log/dpkg\.log|etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|etc/\.pwd\.lock|var/cache/debconf/)' || true
"#;

#[test]
fn the_package_installs_serves_upgrades_and_purges() {
    let test = "the_package_installs_serves_upgrades_and_purges";
    if !geteuid().is_root() {
        return skip_for_good(test, "only root installs packages");
    }
    let wanted = ["dpkg", "unshare", "chroot", "setpriv", "systemd-sysusers", "systemd-tmpfiles"];
    if programs(test, wanted).is_none() {
        return;
    }
    let Some(folder) = folder_with_packages(&["layers"]) else { return };
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", LIFE, "sh"]).arg(folder.path());
    let output = command.output().expect("a start");
    if output.status.code() == Some(77) {
        return skip_for_good(test, "no overlay of this machine's files can be mounted");
    }
    if said(&output).contains("dependency problems") {
        return skip(test, "the package needs libraries that are not Debian's packages here");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = "installed pagefold 0.1.0
codec         fold
pagefold
pagefold pagefold 755
NAME base job-1 job-2 
0.1.1
1
serves
stop pagefold.service pagefold.socket pagefold-control.socket
start pagefold.socket pagefold-control.socket pagefold.service
stop pagefold.service pagefold.socket pagefold-control.socket
serve.toml
left:
";
    assert!(output.status.success() && text == expected, "{}", said(&output));
}
