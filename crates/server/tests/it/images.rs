//! Images of disks, written by the server's own process and by another.

use std::{
    fs::{self, File},
    io::{Read, Seek},
    path::Path,
    time::Duration,
};

use pagefold_control::Client;
use pagefold_disk::BlockDevice;
use pagefold_erofs::{BuildOptions, Image};
use pagefold_output::{Destination, ImageFormat, Inputs};
use pagefold_server::{Add, BaseFile, Fork, FreezeError, Frozen, Manage, Qcow2Options, Server, Sockets};

use crate::server;

/// A page that compresses to about a half.
pub(crate) fn page(salt: u64) -> Vec<u8> {
    let mut state = salt + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..4096).map(|at| if at % 2 == 0 { next() } else { b'x' }).collect()
}

/// A server with a disk that has pages, zeros and holes, and a fork of it.
pub(crate) fn filled() -> Server {
    let server = server();
    server.add(&Add::new("disk", 3 << 20)).expect("a disk");
    let device = server.device("disk").expect("a disk");
    (0..300).for_each(|number| device.write(number * 5 % 700 * 4096, &page(number)).expect("room"));
    server.fork(&Fork::new("disk", ["fork"])).expect("a fork");
    let fork = server.device("fork").expect("a fork");
    (0..50).for_each(|number| fork.write(number * 4096, &page(number + 1000)).expect("room"));
    fork.discard(100 * 4096, 50 * 4096).expect("a discard");
    server
}

fn content(server: &Server, name: &str) -> Vec<u8> {
    let device = server.device(name).expect("a disk");
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read(0, &mut bytes).expect("its content");
    bytes
}

fn bytes(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("an image");
    bytes
}

fn erofs(frozen: &Frozen) -> Vec<u8> {
    let file = tempfile::tempfile().expect("a file");
    let mut done = (0, 1);
    let base = frozen.base_image(&pagefold_storage::open).expect("a readable base, or none");
    let like = base.as_ref().map_or_else(BuildOptions::default, |base| base.options().expect("its options"));
    let options = BuildOptions { threads: 2, ..like };
    let written = frozen.write_erofs(&file, &options, base.as_ref(), &mut |bytes, all| done = (bytes, all));
    let written = written.expect("an image");
    assert_eq!(done.0, done.1);
    let image = Image::open(file.try_clone().expect("a file")).expect("an image");
    assert!(image.compare(&written.tree, 1).differences.is_empty());
    bytes(file)
}

fn qcow2(frozen: &Frozen, level: Option<u32>) -> Vec<u8> {
    let file = tempfile::tempfile().expect("a file");
    let mut options = Qcow2Options::default();
    (options.level, options.threads) = (level, 2);
    frozen.write_qcow2(&file, options, &mut |_, _| {}).expect("an image");
    bytes(file)
}

fn raw(frozen: &Frozen) -> Vec<u8> {
    let file = tempfile::tempfile().expect("a file");
    frozen.write_raw(&file, &mut |_, _| {}).expect("an image");
    bytes(file)
}

#[test]
fn an_image_is_the_same_from_this_process_and_from_a_client() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = filled();
    let (nbd, control) = (folder.path().join("nbd.sock"), folder.path().join("control.sock"));
    let running = server.listen(Sockets::new().unix(nbd).control(&control)).expect("sockets").start();
    let running = running.expect("a thread");
    for name in ["disk", "fork"] {
        let before = content(&server, name);
        let own = server.frozen(name).expect("an instant");
        let client = Client::connect(&control, Duration::from_secs(10)).expect("a connection");
        let other = Frozen::of_client(client, name).expect("an instant");
        // The disk stays in use.
        server.device(name).expect("a disk").write(0, &page(7777)).expect("room");
        assert!(raw(&own) == before && raw(&other) == before, "{name}");
        assert!(erofs(&own) == erofs(&other), "{name}");
        for level in [None, Some(1)] {
            assert!(qcow2(&own, level) == qcow2(&other, level), "{name}");
        }
        assert_eq!((own.name(), own.size_bytes()), (name, before.len() as u64));
    }
    drop(running);
}

/// Packs the disk `name` as an EROFS image of this codec's default cluster, and serves the image.
pub(crate) fn serve_image(server: &Server, name: &str, path: &Path) {
    let destination = Destination::of(path, ImageFormat::Erofs, false, &Inputs::default()).expect("a place");
    let draft = destination.make_draft().expect("a draft");
    let options = BuildOptions { pcluster_bytes: 16 << 10, ..BuildOptions::default() };
    let frozen = server.frozen(name).expect("an instant");
    frozen.write_erofs(draft.file(), &options, None, &mut |_, _| {}).expect("an image");
    destination.take(draft).expect("a name");
    server.serve_file(&BaseFile::new("image", path)).expect("a base");
}

#[test]
fn a_fork_of_an_image_becomes_an_image() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.erofs");
    let server = filled();
    serve_image(&server, "disk", &path);
    assert!(content(&server, "image") == content(&server, "disk"));
    server.fork(&Fork::new("image", ["job"])).expect("a fork");
    let job = server.device("job").expect("a fork");
    job.write(8192, &page(5)).expect("room");
    let frozen = server.frozen("job").expect("an instant");
    assert!(raw(&frozen) == content(&server, "job"));
    let image = erofs(&frozen);
    fs::write(folder.path().join("job.erofs"), image).expect("a file");
    server.serve_file(&BaseFile::new("again", folder.path().join("job.erofs"))).expect("a base");
    assert!(content(&server, "again") == content(&server, "job"));

    // QEMU cannot read this base.
    let mut options = Qcow2Options::default();
    options.backing = true;
    let file = tempfile::tempfile().expect("a file");
    let refused = frozen.write_qcow2(&file, options, &mut |_, _| {}).expect_err("no backing file");
    assert!(matches!(&refused, FreezeError::Refused(what) if what.contains("EROFS")), "{refused}");

    // A base that was replaced is not copied from.
    fs::rename(folder.path().join("job.erofs"), &path).expect("a rename");
    let refused = frozen.base_image(&pagefold_storage::open).expect_err("another file");
    assert!(refused.to_string().contains("cannot reuse the base"), "{refused}");
}
