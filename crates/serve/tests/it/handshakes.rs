//! TLS handshakes that stop, break, or take long, among those of other clients.

use std::{
    io::{Read, Write},
    sync::{Arc, mpsc},
    time::Duration,
};

use pagefold_serve::{
    Export, Limits, Server,
    protocol::{OptionHeader, option},
};
use proptest::prelude::*;

use crate::{
    device::Ram,
    memory::{Strict, wait_until},
    raw::{Running, info, quick},
    secure::{PKI, ask, certificates, client, shake_hands},
    tls::{go, in_hand, sealed, secure_server},
};

/// Handshakes that stop do not keep others out, and end like other negotiations.
#[test]
fn clients_that_stop_in_the_handshake_are_closed_and_others_are_served() {
    let builder = Server::builder().export(Export::new("disk", Ram::shared(8192))).limits(quick()).tls(certificates());
    let server = Running::start(builder);
    let mut hello = Vec::new();
    client(&PKI).write_tls(&mut hello).unwrap();
    let stopped: Vec<_> = (0..100)
        .map(|number| {
            let mut raw = server.greet();
            ask(&mut raw);
            raw.send(&hello[..hello.len() * (number % 3) / 2]);
            raw
        })
        .collect();
    in_hand(&server);
    for mut raw in stopped {
        // The server's part of the handshake that was sent is lost.
        let _ = raw.stream.read_to_end(&mut Vec::new());
    }
    wait_until("all have ended", || server.handle.connections() == 0);
}

/// Neither a client's handshake nor data that arrive with its end occupy the thread that serves all
/// others.
#[test]
fn handshakes_are_computed_apart_from_the_servers_thread() {
    let (open, gate) = mpsc::channel();
    let (begins, begun) = mpsc::channel();
    let (gate, begins) = (std::sync::Mutex::new(gate), std::sync::Mutex::new(begins));
    let builder = Server::builder()
        .export(Export::new("disk", Ram::shared(8192)))
        .export(Export::new("other", Ram::shared(8192)))
        .when_client(move |event| {
            if event.begins && &*event.export == "disk" {
                begins.lock().unwrap().send(()).unwrap();
                let () = gate.lock().unwrap().recv().unwrap();
            }
        })
        .tls(certificates());
    let server = Running::start(builder);
    let mut raw = server.greet();
    ask(&mut raw);
    let mut tls = client(&PKI);
    tls.write_tls(&mut raw.stream).unwrap();
    while tls.is_handshaking() {
        tls.read_tls(&mut raw.stream).unwrap();
        tls.process_new_packets().unwrap();
    }
    // The end of the handshake and the choice of the export arrive together.
    raw.send(&sealed(&mut tls, &go()));
    begun.recv_timeout(Duration::from_secs(60)).expect("the client has chosen");
    // The thread that computed the handshake is stuck; the server is not.
    let mut plain = server.greet();
    let choice = info(b"other", &[]);
    plain.send(&OptionHeader { option: option::GO, len_bytes: choice.len() as u32 }.encode());
    plain.send(&choice);
    plain.stream.read_exact(&mut [0; 20 + 12 + 20]).expect("another client is served");
    open.send(()).unwrap();
    let mut stream = rustls::Stream::new(&mut tls, &mut raw.stream);
    stream.read_exact(&mut [0; 20 + 12 + 20]).unwrap();
}

/// All options in one record are answered, however many there are.
#[test]
fn many_options_in_one_record_are_answered() {
    let server = secure_server(Ram::shared(8192), Limits::default());
    let mut raw = server.greet();
    ask(&mut raw);
    let mut tls = client(&PKI);
    shake_hands(&mut tls, &mut raw.stream).unwrap();
    const COUNT: u32 = 200;
    let options: Vec<u8> =
        (0..COUNT).flat_map(|number| OptionHeader { option: 1000 + number, len_bytes: 0 }.encode()).collect();
    let mut stream = rustls::Stream::new(&mut tls, &mut raw.stream);
    stream.write_all(&options).unwrap();
    for number in 0..COUNT {
        let mut head = [0; 20];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(head[8..12], (1000 + number).to_be_bytes());
        let len = u32::from_be_bytes(head[16..].try_into().unwrap());
        stream.read_exact(&mut vec![0; len as usize]).unwrap();
    }
}

/// What a client does in its handshake.
#[derive(Clone, Debug)]
enum Broken {
    /// It sends this many bytes of its first message, and then nothing.
    Stops(usize),
    /// The same, and leaves.
    Leaves(usize),
    /// It sends its first message, and then this.
    Continues(Vec<u8>),
    Nonsense(Vec<u8>),
}

fn broken() -> impl Strategy<Value = Broken> {
    let bytes = || proptest::collection::vec(any::<u8>(), 1..600);
    prop_oneof![
        2 => (0_usize..400).prop_map(Broken::Stops),
        1 => Just(Broken::Stops(usize::MAX)),
        2 => (0_usize..400).prop_map(Broken::Leaves),
        1 => Just(Broken::Leaves(usize::MAX)),
        2 => bytes().prop_map(Broken::Continues),
        1 => bytes().prop_map(Broken::Nonsense),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, ..ProptestConfig::default() })]

    /// Whatever many clients do in their handshakes, and even while the oldest are closed because
    /// of their number, others are served and nothing is left of them.
    #[test]
    fn broken_handshakes_keep_no_other_out(clients in proptest::collection::vec(broken(), 1..50)) {
        let account = Strict::new(400, 8);
        let mut limits = Limits::default();
        limits.negotiating = 20;
        let builder = Server::builder().export(Export::new("disk", Ram::shared(8192))).limits(limits);
        let server = Running::start(builder.tls(certificates()).account(Arc::clone(&account) as _));
        let mut stopped = Vec::new();
        for broken in &clients {
            let mut raw = server.greet();
            ask(&mut raw);
            let mut hello = Vec::new();
            client(&PKI).write_tls(&mut hello).unwrap();
            let (bytes, leaves) = match broken {
                Broken::Stops(len) => (hello[..hello.len().min(*len)].to_vec(), false),
                Broken::Leaves(len) => (hello[..hello.len().min(*len)].to_vec(), true),
                Broken::Continues(bytes) => ([&hello[..], bytes].concat(), false),
                Broken::Nonsense(bytes) => (bytes.clone(), false),
            };
            // The server may have closed it.
            let _ = raw.stream.write_all(&bytes);
            stopped.extend((!leaves).then_some(raw));
        }
        in_hand(&server);
        let mut plain = server.greet();
        plain.send(&go());
        plain.stream.read_exact(&mut [0; 20 + 12 + 20]).unwrap();
        drop((plain, stopped));
        wait_until("the memory comes back", || account.idle_bytes_taken() == 0);
    }
}
