//! Load that verifies what it reads.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

/// Starts fio, which writes and verifies through four connections.
pub(crate) fn load(fio: &Path, folder: &Path, uri: &str, seconds: u32) -> Child {
    Command::new(fio)
        .current_dir(folder)
        .args(["--name=verify", "--ioengine=nbd", "--thread", "--numjobs=4", "--rw=randrw", "--iodepth=16"])
        .args(["--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64", "--size=8M", "--offset_increment=16M"])
        .args(["--buffer_compress_percentage=60", "--refill_buffers", "--bsrange=512-64k", "--time_based"])
        .args([format!("--runtime={seconds}"), format!("--uri={uri}")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fio starts")
}

/// Waits for a client, which must find no error.
pub(crate) fn succeeds(client: Child) {
    let output = client.wait_with_output().expect("an end");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{}: {text}", output.status);
}
