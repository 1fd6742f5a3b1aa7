//! Sockets between virtual machines and their host.

use std::{os::fd::OwnedFd, sync::mpsc, thread, time::Duration};

use pagefold_serve::{Export, Peer, Server, protocol::command};
use pagefold_testing::skip_for_good;
use vsock::{VMADDR_CID_LOCAL, VsockStream};

use crate::{device::Ram, raw::Raw};

#[test]
fn clients_on_vsock_are_served_and_named() {
    const TEST: &str = "clients_on_vsock_are_served_and_named";
    // Tests of other checkouts may run at the same time.
    let port = 40_000 + std::process::id() % 20_000;
    let (events_to, events) = mpsc::channel();
    let events_to = std::sync::Mutex::new(events_to);
    let builder = Server::builder().export(Export::new("disk", Ram::shared(8192))).vsock(None, port);
    let builder = builder.when_client(move |event| _ = events_to.lock().map(|events_to| events_to.send(event.peer)));
    let server = match builder.bind() {
        Ok(server) => server,
        Err(error) => return skip_for_good(TEST, &format!("the kernel has no vsock: {error:?}")),
    };
    assert_eq!(server.vsock_addresses().map(|(_, port)| port).collect::<Vec<_>>(), [port]);
    let handle = server.handle();
    let running = thread::spawn(move || server.run());
    match VsockStream::connect_with_cid_port(VMADDR_CID_LOCAL, port) {
        Err(error) => skip_for_good(TEST, &format!("the kernel has no loopback for vsock (vsock_loopback): {error}")),
        Ok(client) => {
            // The differences between kinds of stream sockets do not matter here.
            let mut raw = Raw { stream: OwnedFd::from(client).into() };
            raw.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(raw.bytes(18), *b"NBDMAGICIHAVEOPT\0\x03");
            raw.send(&3_u32.to_be_bytes());
            raw.go(b"disk");
            raw.request(command::READ, 0, 1, 0, 512);
            assert_eq!(raw.simple_reply(), (0, 1));
            assert_eq!(raw.bytes(512), [0; 512]);
            assert!(matches!(events.recv().unwrap(), Peer::Vsock { cid: VMADDR_CID_LOCAL, .. }));
        }
    }
    handle.stop();
    running.join().unwrap().unwrap();
}
