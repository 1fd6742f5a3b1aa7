use pagefold_serve::{
    Export, Limits, Server,
    protocol::{option, reply, transmission},
};

use crate::{
    device::Ram,
    raw::{HANDSHAKE, Running, contexts, info, quick, string},
};

fn two() -> Running {
    let exports = Server::builder()
        .export(Export::new("disk", Ram::shared(1 << 20)))
        .export(Export::read_only("second", Ram::shared(8192)));
    Running::start(exports)
}

#[test]
fn list_names_all_exports() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::LIST, b"");
    assert_eq!(raw.option_reply(option::LIST), (reply::SERVER, string(b"disk")));
    assert_eq!(raw.option_reply(option::LIST), (reply::SERVER, string(b"second")));
    raw.expect_ack(option::LIST);
}

#[test]
fn list_with_data_is_invalid_and_the_next_option_works() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::LIST, b"x");
    assert_eq!(raw.option_reply(option::LIST).0, reply::ERR_INVALID);
    raw.option(option::STRUCTURED_REPLY, b"x");
    assert_eq!(raw.option_reply(option::STRUCTURED_REPLY).0, reply::ERR_INVALID);
    raw.go(b"disk");
}

#[test]
fn info_answers_and_negotiation_continues() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::INFO, &info(b"", &[1, 2, 3, 99]));
    let (kind, export) = raw.option_reply(option::INFO);
    assert_eq!((kind, &export[..10]), (reply::INFO, &[0, 0, 0, 0, 0, 0, 0, 16, 0, 0][..]));
    assert_eq!(raw.option_reply(option::INFO), (reply::INFO, b"\0\x01disk".to_vec()));
    let sizes = [&[0, 3][..], &1_u32.to_be_bytes(), &4096_u32.to_be_bytes(), &(32_u32 << 20).to_be_bytes()].concat();
    assert_eq!(raw.option_reply(option::INFO), (reply::INFO, sizes));
    raw.expect_ack(option::INFO);
    raw.option(option::INFO, &info(b"second", &[]));
    assert_eq!(raw.option_reply(option::INFO).0, reply::INFO);
    raw.expect_ack(option::INFO);
    assert_eq!(raw.go(b"second").0, 8192);
}

#[test]
fn flags_describe_the_export() {
    let server = two();
    let mut raw = server.greet();
    let (_, simple) = raw.go(b"disk");
    let mut raw = server.greet();
    raw.option(option::STRUCTURED_REPLY, b"");
    raw.expect_ack(option::STRUCTURED_REPLY);
    let (_, structured) = raw.go(b"disk");
    assert_eq!(structured, simple | transmission::SEND_DF);
    assert_eq!(simple & transmission::SEND_DF, 0);
    for flag in [transmission::HAS_FLAGS, transmission::CAN_MULTI_CONN, transmission::SEND_TRIM] {
        assert_ne!(simple & flag, 0);
    }
    let (_, read_only) = server.greet().go(b"second");
    assert_ne!(read_only & transmission::READ_ONLY, 0);
    assert_eq!(read_only & (transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES), 0);
}

#[test]
fn an_unknown_export_is_an_error_for_go_and_the_end_for_export_name() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::GO, &info(b"none", &[]));
    assert_eq!(raw.option_reply(option::GO).0, reply::ERR_UNKNOWN);
    raw.option(option::EXPORT_NAME, b"none");
    raw.expect_end();
}

#[test]
fn export_name_sends_zeroes_unless_both_sides_agreed_not_to() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::EXPORT_NAME, b"");
    assert_eq!(raw.u64(), 1 << 20);
    raw.u16();
    raw.request(0, 0, 1, 0, 16);
    assert_eq!(raw.simple_reply(), (0, 1));

    let mut raw = crate::raw::Raw { stream: std::os::unix::net::UnixStream::connect(&server.path).unwrap() };
    raw.bytes(18);
    raw.send(&1_u32.to_be_bytes());
    raw.option(option::EXPORT_NAME, b"second");
    assert_eq!(raw.u64(), 8192);
    raw.u16();
    assert_eq!(raw.bytes(124), [0; 124]);
    raw.request(0, 0, 1, 0, 16);
    assert_eq!(raw.simple_reply(), (0, 1));
}

#[test]
fn abort_is_acknowledged_and_ends() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::ABORT, b"");
    raw.expect_ack(option::ABORT);
    raw.expect_end();
}

#[test]
fn unknown_options_are_unsupported_and_their_data_skipped() {
    let server = two();
    let mut raw = server.greet();
    for (unknown, len_bytes) in [(5, 0), (12, 0), (4, 10), (0, 65_536), (u32::MAX, 3)] {
        raw.option(unknown, &vec![7; len_bytes]);
        assert_eq!(raw.option_reply(unknown).0, reply::ERR_UNSUP);
    }
    raw.go(b"disk");
}

#[test]
fn an_option_of_4_gib_is_refused_immediately_and_ends_the_connection() {
    let server = two();
    for (option, kind) in [(99_u32, reply::ERR_UNSUP), (option::GO, reply::ERR_TOO_BIG)] {
        let mut raw = server.greet();
        raw.send(b"IHAVEOPT");
        raw.send(&option.to_be_bytes());
        raw.send(&u32::MAX.to_be_bytes());
        assert_eq!(raw.option_reply(option).0, kind);
        raw.expect_end();
    }
    server.assert_alive();
}

#[test]
fn a_wrong_magic_ends_the_connection() {
    let server = two();
    let mut raw = server.greet();
    raw.send(b"IHAVEOPX\0\0\0\x03\0\0\0\0");
    raw.expect_end();
    server.assert_alive();
}

#[test]
fn unknown_client_flags_end_the_connection() {
    let server = two();
    let mut raw = crate::raw::Raw { stream: std::os::unix::net::UnixStream::connect(&server.path).unwrap() };
    raw.bytes(18);
    raw.send(&7_u32.to_be_bytes());
    raw.expect_end();
}

#[test]
fn lengths_that_contradict_each_other_are_invalid() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::STRUCTURED_REPLY, b"");
    raw.expect_ack(option::STRUCTURED_REPLY);
    let bad: &[(u32, Vec<u8>)] = &[
        (option::GO, vec![]),
        (option::GO, vec![0xff; 4]),
        (option::GO, string(b"disk")),
        (option::GO, [info(b"disk", &[]), vec![0]].concat()),
        (option::INFO, [string(b"disk"), vec![0xff, 0xff, 0, 0]].concat()),
        (option::SET_META_CONTEXT, string(b"disk")),
        (option::SET_META_CONTEXT, [string(b"disk"), vec![0xff; 4]].concat()),
        (option::LIST_META_CONTEXT, [contexts(b"disk", &[b"base:"]), vec![1]].concat()),
    ];
    for (option, data) in bad {
        raw.option(*option, data);
        assert_eq!(raw.option_reply(*option).0, reply::ERR_INVALID, "{option} {data:?}");
    }
    raw.go(b"disk");
}

#[test]
fn metadata_contexts_need_structured_replies() {
    let server = two();
    let mut raw = server.greet();
    for option in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        raw.option(option, &contexts(b"disk", &[b"base:allocation"]));
        assert_eq!(raw.option_reply(option).0, reply::ERR_INVALID);
    }
}

#[test]
fn metadata_contexts_are_listed_by_name_and_wildcard_and_set_by_name_alone() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::STRUCTURED_REPLY, b"");
    raw.expect_ack(option::STRUCTURED_REPLY);
    let (list, set) = (option::LIST_META_CONTEXT, option::SET_META_CONTEXT);
    let cases: &[(u32, &[&[u8]], bool)] = &[
        (list, &[], true),
        (list, &[b"base:"], true),
        (list, &[b"other:", b"base:allocation"], true),
        (list, &[b"base:other"], false),
        (set, &[b"base:allocation", b"base:allocation"], true),
        (set, &[b"base:"], false),
        (set, &[], false),
    ];
    for (option, queries, found) in cases {
        raw.option(*option, &contexts(b"", queries));
        if *found {
            let id = if *option == set { 1 } else { 0 };
            let expected = [&[0, 0, 0, id][..], b"base:allocation"].concat();
            assert_eq!(raw.option_reply(*option), (reply::META_CONTEXT, expected), "{queries:?}");
        }
        raw.expect_ack(*option);
    }
    raw.option(set, &contexts(b"none", &[b"base:allocation"]));
    assert_eq!(raw.option_reply(set).0, reply::ERR_UNKNOWN);
}

#[test]
fn contexts_hold_for_the_export_they_were_set_for() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::STRUCTURED_REPLY, b"");
    raw.expect_ack(option::STRUCTURED_REPLY);
    raw.option(option::SET_META_CONTEXT, &contexts(b"disk", &[b"base:allocation"]));
    raw.option_reply(option::SET_META_CONTEXT);
    raw.expect_ack(option::SET_META_CONTEXT);
    raw.go(b"second");
    raw.request(7, 0, 9, 0, 4096);
    assert_eq!(raw.chunk().error().0, 22);
}

#[test]
fn contexts_that_are_set_again_take_the_place_of_the_first() {
    let server = two();
    let mut raw = server.greet();
    raw.option(option::STRUCTURED_REPLY, b"");
    raw.expect_ack(option::STRUCTURED_REPLY);
    raw.option(option::SET_META_CONTEXT, &contexts(b"disk", &[b"base:allocation"]));
    raw.option_reply(option::SET_META_CONTEXT);
    raw.expect_ack(option::SET_META_CONTEXT);
    raw.option(option::SET_META_CONTEXT, &contexts(b"disk", &[b"other:context"]));
    raw.expect_ack(option::SET_META_CONTEXT);
    raw.go(b"disk");
    raw.request(7, 0, 9, 0, 4096);
    assert_eq!(raw.chunk().error().0, 22);
}

#[test]
fn a_silent_peer_is_dropped_in_the_handshake() {
    let server = Running::limited(Ram::shared(8192), quick());
    server.greet().expect_end_after(HANDSHAKE);
    let mut half = server.greet();
    half.send(b"IHAVEOPT\0\0");
    half.expect_end_after(HANDSHAKE);
    server.assert_alive();
}

#[test]
fn the_handshake_has_one_deadline_however_busy_the_peer_is() {
    let server = Running::limited(Ram::shared(8192), quick());
    let mut raw = server.greet();
    let start = std::time::Instant::now();
    use std::io::{Read, Write};
    loop {
        let asked = raw.stream.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0");
        if asked.is_err() || raw.stream.read(&mut [0; 4096]).is_ok_and(|count| count == 0) {
            break;
        }
        assert!(start.elapsed() < HANDSHAKE * 20, "a peer may list for ever");
    }
}

#[test]
fn names_are_checked_before_the_server_starts() {
    let start = |names: &[&str]| {
        let mut builder = Server::builder().limits(Limits::default());
        for name in names {
            builder = builder.export(Export::new(*name, Ram::shared(512)));
        }
        builder.tcp(([127, 0, 0, 1], 0).into()).bind().map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(start(&["a", "a"]), Err("duplicate export name `a`: give each export its own name".into()));
    assert!(start(&[&"n".repeat(4097)]).is_err());
    assert_eq!(start(&["a", ""]), Ok(()));
}
