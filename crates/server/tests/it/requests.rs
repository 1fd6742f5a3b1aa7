//! Invalid requests of a program are refused like those of clients of the control socket, and
//! change nothing.

use pagefold_disk::BlockDevice;
use pagefold_server::{Add, BaseFile, Code, Failure, Fork, Manage, Quota, Resize};

use crate::server;

#[test]
fn impossible_requests_change_nothing() {
    let server = server();
    server.add(&Add::new("disk", 8192)).expect("a disk");
    server.snapshot("disk", "kept").expect("a snapshot");
    let code = |result: Result<(), Failure>| result.expect_err("a failure").code;
    let fork = |from: &str, names: &[&str]| server.fork(&Fork::new(from, names.iter().copied())).map(drop);
    let resize = |size_bytes, shrink| {
        server.resize(&Resize { name: "disk".to_owned(), size_bytes, shrink, force: false }).map(drop)
    };
    let quota = Quota { name: "disk".to_owned(), connections: Some(0), bytes_per_second: None };
    for (found, expected) in [
        (code(server.add(&Add::new("a@b", 512)).map(drop)), Code::InvalidName),
        (code(server.add(&Add::new("a", 511)).map(drop)), Code::InvalidSize),
        (code(server.add(&Add { limit_bytes: Some(1), ..Add::new("a", 512) }).map(drop)), Code::InvalidLimit),
        (code(server.add(&Add::new("disk", 512)).map(drop)), Code::NameInUse),
        (code(fork("disk", &["x", "x"])), Code::NameInUse),
        (code(fork("disk", &["x", "disk"])), Code::NameInUse),
        (code(fork("disk", &["x", "y@z"])), Code::InvalidName),
        (code(fork("disk", &[])), Code::InvalidRequest),
        (code(fork("none", &["x"])), Code::NoSuchDisk),
        (code(server.snapshot("disk", "").map(drop)), Code::InvalidName),
        (code(server.snapshot("disk", "kept").map(drop)), Code::NameInUse),
        (code(server.snapshot("disk@kept", "more").map(drop)), Code::ReadOnly),
        (code(server.rename("disk", "a@b").map(drop)), Code::InvalidName),
        (code(server.rollback("disk", "none", false).map(drop)), Code::NoSuchDisk),
        (code(resize(0, true)), Code::InvalidSize),
        (code(resize(4096, false)), Code::WouldShrink),
        (code(server.drop("disk", false, false).map(drop)), Code::HasSnapshots),
        (code(server.quota(&quota).map(drop)), Code::InvalidRequest),
        (code(server.limit_connections(0).map(drop)), Code::InvalidRequest),
        (code(server.serve_file(&BaseFile::new("b", "/no/such/file")).map(drop)), Code::InvalidBase),
        (code(server.frozen("none").map(drop)), Code::NoSuchDisk),
    ] {
        assert_eq!(found, expected);
    }
    let all = server.list(pagefold_control::Batch { after: None, most: 100 });
    let all: Vec<_> = all.iter().map(|disk| (&*disk.name, disk.size_bytes)).collect();
    assert_eq!(all, [("disk", 8192), ("disk@kept", 8192)]);
    server.device("disk@kept").expect("a snapshot").write(0, &[1]).expect_err("a snapshot is read-only");
}
