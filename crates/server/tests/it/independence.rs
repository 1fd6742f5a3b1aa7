//! Servers of one process share nothing.

use std::sync::Arc;

use pagefold_codec::Lz4;
use pagefold_disk::BlockDevice;
use pagefold_server::{Add, Fork, Level, Manage, Server, Sockets};

use crate::{Lines, config, nbd};

#[test]
fn one_server_goes_on_when_another_is_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = |name: &str| {
        let lines = Lines::default();
        let mut config = config();
        config.observer = lines.observer();
        if name == "first" {
            config.codec = Arc::new(Lz4);
        }
        let server = Server::new(config).expect("a server");
        server.add(&Add::new("disk", 1 << 20)).expect("a disk");
        let [nbd, control] = ["nbd", "control"].map(|kind| folder.path().join(format!("{name}-{kind}.sock")));
        let sockets = Sockets::new().unix(&nbd).control(&control);
        let running = server.listen(sockets).and_then(|listening| listening.start()).expect("it listens");
        (server, running, nbd, control, lines)
    };
    let (first, first_running, first_nbd, first_control, first_lines) = start("first");
    let (second, second_running, second_nbd, second_control, second_lines) = start("second");
    assert_eq!(nbd::write(&first_nbd, "disk", 4096, &[1; 8192]), Ok(vec![1; 8192]));
    assert_eq!(nbd::write(&second_nbd, "disk", 4096, &[2; 8192]), Ok(vec![2; 8192]));
    assert_eq!((first.server().codec, second.server().codec), ("lz4".to_owned(), "fold".to_owned()));

    drop(first_running);
    assert!(!first_nbd.exists() && !first_control.exists() && second_control.exists());
    // Its disks belong to the remaining value.
    let mut byte = [0];
    first.device("disk").expect("a disk").read(4096, &mut byte).expect("a byte");
    assert_eq!(byte, [1]);
    drop(first);

    second.fork(&Fork::new("disk", ["fork"])).expect("a fork");
    assert_eq!(nbd::write(&second_nbd, "fork", 0, &[3; 512]), Ok(vec![3; 512]));
    second.device("fork").expect("a disk").read(4096, &mut byte).expect("a byte");
    assert_eq!(byte, [2]);
    drop(second_running);

    assert_eq!(first_lines.count(Level::Info, "second-nbd.sock"), 0);
    assert_eq!(second_lines.count(Level::Info, "first-nbd.sock"), 0);
    for lines in [first_lines, second_lines] {
        assert_eq!(lines.count(Level::Info, "the server was dropped, stopping"), 1);
    }
}
