//! Disks as block devices of a kernel.

use std::path::Path;

use sha2::Digest;

use crate::guest::Machine;

/// A server and its devices in a guest, whose kernel has NBD.
const SCRIPT: &str = "
export PATH=/programs:/bin HOME=/tmp
set -e
pagefold serve --dir /tmp/server --export name=job,size=64M --detach
dev=$(pagefold attach job --dir /tmp/server)
echo \"device: $dev\"
cat /sys/block/nbd0/backend
echo \"size: $(cat /sys/block/nbd0/size)\"
seq 30000 | dd of=$dev bs=4k conv=fsync 2>/dev/null
if pagefold attach job --dir /tmp/server; then exit 9; else echo 'twice: refused'; fi
if pagefold drop job --dir /tmp/server; then exit 9; else echo 'drop: refused'; fi
pagefold detach job --dir /tmp/server
if pagefold detach job --dir /tmp/server; then exit 9; else echo 'not attached: refused'; fi
pagefold fork job fork --dir /tmp/server
dev=$(pagefold attach fork --via nbd --connections 3 --timeout 30 --dir /tmp/server)
echo \"sum: $(head -n 30000 $dev | sha256sum)\"
pagefold detach $dev
pagefold snapshot fork before --dir /tmp/server
dev=$(pagefold attach fork@before --dir /tmp/server)
if echo x >$dev; then exit 9; else echo 'written: refused'; fi
pagefold detach $dev
echo \"clients: $(pagefold disks --dir /tmp/server --json | grep -c '\"clients\":0')\"
pagefold stop --dir /tmp/server
";

#[test]
fn a_kernel_with_nbd_gets_devices() {
    let test = "a_kernel_with_nbd_gets_devices";
    let Some(machine) = Machine::find(test) else { return };
    let mut guest = machine.start_with(Path::new(env!("CARGO_BIN_EXE_pagefold")), SCRIPT);
    assert_eq!(guest.wait_for("device: "), "/dev/nbd0");
    assert!(guest.wait_for("pagefold nbd+unix:///job?socket=/tmp/server/").ends_with(".sock"));
    assert_eq!(guest.wait_for("size: "), (64 << 11).to_string());
    guest.wait_for("twice: refused");
    guest.wait_for("drop: refused");
    guest.wait_for("not attached: refused");
    let numbers: String = (1..=30000).map(|number| format!("{number}\n")).collect();
    let sum: String = sha2::Sha256::digest(numbers).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(guest.wait_for("sum: "), format!("{sum}  -"));
    guest.wait_for("written: refused");
    guest.end();
}
