//! The package's service under a systemd of its own: restarts, upgrades and crashes.

use std::{fs, process::Command};

use pagefold_testing::{programs, skip_for_good};
use rustix::process::geteuid;

use crate::package::{folder_with_packages, said};

/// Starts a systemd in a copy of this machine that is thrown away, with only the package's service and
/// the steps below. $1 is a folder with a.deb, b.deb, steps.sh, and the empty folders layers and results.
const BOOT: &str = r#"
set -eu
cd "$1"
mount -t tmpfs tmpfs layers
mkdir layers/upper layers/work layers/root
root=$1/layers/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/layers/upper,workdir=$1/layers/work" "$root" || exit 77
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
# Nothing of this machine's services.
for units in /etc/systemd/system /lib/systemd/system/sysinit.target.wants /lib/systemd/system/sockets.target.wants \
  /lib/systemd/system/timers.target.wants /lib/systemd/system/multi-user.target.wants; do
  mkdir -p "$root$units"
  mount -t tmpfs tmpfs "$root$units"
done
cp a.deb b.deb steps.sh "$root/root"
# A container's, which forbids that packages start services.
rm -f "$root/usr/sbin/policy-rc.d"
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
  dpkg --no-triggers --force-unsafe-io --install /root/a.deb >results/dpkg 2>&1 || { cat results/dpkg; exit 1; }
cat >"$root/etc/systemd/system/steps.service" <<END
[Unit]
Wants=systemd-journald.service pagefold.service
After=pagefold.service
[Service]
Type=oneshot
Environment=DEBIAN_FRONTEND=noninteractive
ExecStart=/bin/sh -eu /root/steps.sh
StandardOutput=append:/results/said
StandardError=append:/results/said
ExecStopPost=/bin/sh -c 'journalctl --no-pager -u pagefold >/results/journal; systemctl --force --force poweroff >/dev/null 2>&1'
TimeoutStartSec=300
END
umount "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts" "$root/results" "$root/old"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount --bind results "$root/results"
mount -t sysfs sysfs "$root/sys" || exit 77
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup" || exit 77
cd "$root"
pivot_root . old
umount -l /old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=steps.service --log-target=console
"#;

/// Steps of an administrator.
const STEPS: &str = r#"
main() { systemctl show -p MainPID --value pagefold; }
# The old process names the new one once that serves, which may be after the command has ended.
changed() {
  for _ in $(seq 600); do
    [ "$(main)" = "$1" ] || return 0
    sleep .1
  done
  return 1
}
systemctl is-active pagefold
pagefold add data --size 1G >/dev/null
pagefold add own --size 1M --socket /run/pagefold/disks/own.sock --mode 0660 --group pagefold >/dev/null
stat -c '%U %G %a' /run/pagefold/disks/own.sock

# A restart that its clients do not notice, and an upgrade.
uri='nbd+unix:///data?socket=/run/pagefold/nbd.sock'
fio --name=load --ioengine=nbd "--uri=$uri" --rw=randrw --bs=4k --size=64M --time_based --runtime=6 --verify=crc32c \
  --verify_backlog=64 --iodepth=8 --output=/results/fio &
load=$!
sleep 1
before=$(main)
systemctl reload pagefold
changed "$before" && echo reloaded
before=$(main)
systemctl restart pagefold
changed "$before" && echo restarted
[ "$(systemctl show -p NFileDescriptorStore --value pagefold)" = 0 ] && echo nothing stored
before=$(main)
dpkg --no-triggers --force-unsafe-io --force-confold --install /root/b.deb >/results/upgrade 2>&1 || { cat /results/upgrade; exit 1; }
changed "$before" && echo upgraded
wait $load && echo verified
pagefold disks --columns name 2>/dev/null | tr '\n' ' '; echo

# Clients that connect while the service restarts wait. What a stop leaves is closed.
for _ in 1 2; do
  # Starts are counted.
  systemctl reset-failed pagefold
  systemctl restart pagefold &
  for _ in 1 2 3 4 5 6 7 8; do
    nbdinfo --size "$uri" >/dev/null || echo refused
  done
  wait $!
done
pagefold disks --columns name 2>/dev/null | tr '\n' ' '; echo
systemctl stop pagefold 2>/dev/null
# Its sockets stop after it.
while systemctl -q is-active pagefold.socket || systemctl -q is-active pagefold-control.socket; do sleep 0.05; done
ls /run/pagefold/*.sock 2>/dev/null || echo no sockets
[ "$(systemctl show -p NFileDescriptorStore --value pagefold)" = 0 ] && echo nothing stored
systemctl start pagefold
pagefold disks 2>/dev/null || echo none
pagefold add data --size 1G >/dev/null

# After a crash no server with empty disks takes its place.
kill -9 "$(main)"
while systemctl -q is-active pagefold; do sleep 0.05; done
pagefold disks 2>/dev/null || echo none
ls /run/pagefold/*.sock 2>/dev/null || echo no sockets
systemctl start pagefold
pagefold disks 2>/dev/null
systemctl is-active pagefold

# If its memory is kept, the next one has the disks.
systemctl stop pagefold 2>/dev/null
echo 'keep-memory = true' | cat - /etc/pagefold/serve.toml >/root/serve.toml
cp /root/serve.toml /etc/pagefold/serve.toml
mkdir -p /etc/systemd/system/pagefold.service.d
printf '[Service]\nRestart=on-failure\nRestartSec=0\n' >/etc/systemd/system/pagefold.service.d/restart.conf
systemctl daemon-reload
systemctl reset-failed pagefold
systemctl start pagefold
pagefold add data --size 64M >/dev/null
[ "$(systemctl show -p NFileDescriptorStore --value pagefold)" = 1 ] && echo memory stored
check="fio --name=kept --ioengine=nbd --uri=$uri --rw=write --bs=4k --size=8M --verify=crc32c --output=/results/kept"
$check --do_verify=0
for _ in 1 2; do
  before=$(main)
  kill -9 "$before"
  until [ "$(main)" != 0 ] && changed "$before" && systemctl -q is-active pagefold; do sleep 0.05; done
  pagefold disks --columns name 2>/dev/null | tr '\n' ' '; echo
  $check --verify_only && echo verified
done
systemctl restart pagefold
$check --verify_only && echo verified
before=$(main)
systemctl reload pagefold
changed "$before"
kill -9 "$(main)"
until [ "$(main)" != 0 ] && systemctl -q is-active pagefold && $check --verify_only; do sleep 0.1; done
[ "$(systemctl show -p NFileDescriptorStore --value pagefold)" = 1 ] && echo memory stored
systemctl stop pagefold 2>/dev/null
[ "$(systemctl show -p NFileDescriptorStore --value pagefold)" = 0 ] && echo nothing stored
"#;

#[test]
fn a_service_is_replaced_under_load_and_never_by_an_empty_one() {
    let test = "a_service_is_replaced_under_load_and_never_by_an_empty_one";
    if !geteuid().is_root() {
        return skip_for_good(test, "only root installs packages");
    }
    let wanted = [
        "dpkg",
        "unshare",
        "chroot",
        "pivot_root",
        "systemctl",
        "systemd-sysusers",
        "systemd-tmpfiles",
        "fio",
        "nbdinfo",
    ];
    if programs(test, wanted).is_none() {
        return;
    }
    let Some(folder) = folder_with_packages(&["layers", "results"]) else { return };
    let results = folder.path().join("results");
    fs::write(folder.path().join("steps.sh"), STEPS).expect("a file");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]);
    command.args(["--ipc", "--uts", "--cgroup", "sh", "-c", BOOT, "sh"]).arg(folder.path());
    let output = command.output().expect("a start");
    if output.status.code() == Some(77) {
        return skip_for_good(test, "this machine does not let a systemd start in namespaces");
    }
    let of = |name: &str| fs::read_to_string(results.join(name)).unwrap_or_default();
    let expected = "active
pagefold pagefold 660
reloaded
restarted
nothing stored
upgraded
verified
NAME data own 
NAME data own 
no sockets
nothing stored
none
no sockets
active
memory stored
NAME data 
verified
NAME data 
verified
verified
memory stored
nothing stored
";
    let found = of("said");
    assert!(found == expected, "{found}\n{}\n{}\n{}", of("journal"), of("dpkg"), said(&output));
}
