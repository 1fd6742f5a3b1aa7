use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pagefold_serve::{
    Export, Limits, Server,
    client::{Client, ClientError, Target},
    protocol::{CompactReply, option, reply},
};

use crate::{
    device::Ram,
    raw::{HANDSHAKE, Running, quick},
};

const TAKES: Duration = Duration::from_millis(300);

fn server(compacts: Duration, limits: Limits) -> Running {
    let device = Arc::new(Ram { compacts, ..Ram::new(8192) });
    let exports = Server::builder().export(Export::read_only("disk", device));
    Running::start(exports.export(Export::new("plain", Ram::shared(8192))).limits(limits))
}

fn client(server: &Running) -> Client {
    Client::connect(&Target::Unix(server.path.clone()), Duration::from_secs(20)).unwrap()
}

#[test]
fn what_it_did_is_told_and_negotiation_goes_on() {
    let server = server(TAKES, Limits::default());
    let mut client = client(&server);
    let done = CompactReply { before_bytes: 9, after_bytes: 7, more: false };
    assert_eq!(client.compact("").unwrap(), Some(done));
    assert_eq!(client.compact("plain").unwrap(), None, "nothing to compact");
    assert!(matches!(client.compact("none"), Err(ClientError::UnknownExport(name)) if name == "none"));
    assert!(matches!(client.compact(&"x".repeat(5000)), Err(ClientError::UnknownExport(_))));
    assert_eq!(client.list().unwrap(), ["disk", "plain"]);
    assert_eq!(CompactReply::parse(&done.encode()).unwrap(), done);
    assert!(CompactReply::parse(&done.encode()[1..]).is_err());
}

#[test]
fn a_rest_as_long_as_the_work_follows_it() {
    let server = server(TAKES, Limits::default());
    let mut client = client(&server);
    let start = Instant::now();
    for _ in 0..3 {
        client.compact("disk").unwrap();
    }
    assert!(start.elapsed() >= TAKES * 5, "two rests between three times of work: {:?}", start.elapsed());
}

#[test]
fn one_at_a_time_has_an_export_compacted() {
    let server = server(TAKES, Limits::default());
    let mut first = server.greet();
    first.option(option::COMPACT, b"disk");
    std::thread::sleep(TAKES / 3);
    assert!(matches!(client(&server).compact("disk"), Err(ClientError::Refused { kind: reply::ERR_POLICY, .. })));
    assert_eq!(first.option_reply(option::COMPACT).0, reply::COMPACTED);
    first.expect_ack(option::COMPACT);
}

#[test]
fn it_ends_well_before_the_handshake_must() {
    let server = server(Duration::from_secs(60), quick());
    let start = Instant::now();
    let done = client(&server).compact("disk").unwrap();
    assert!(done.is_some_and(|done| done.more), "{done:?}");
    assert!(start.elapsed() < HANDSHAKE * 8, "{:?}", start.elapsed());
}
