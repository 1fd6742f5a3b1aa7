use std::{
    io,
    sync::Mutex,
    time::{Duration, Instant},
};

use pagefold_serve::{
    Export, Exports, Limits, Transport,
    protocol::{ContextQuery, InfoQuery, InfoReply, OptionHeader, OptionReplyHeader, Request, parse_server_reply},
    serve_stream,
};
use proptest::prelude::*;

use crate::{
    device::Ram,
    raw::{contexts, info},
};

/// A stream in memory: everything that the peer sends is available from the start; then the stream
/// ends.
struct Script {
    /// The maximum number of bytes received at a time.
    most_bytes: usize,
    input: Mutex<io::Cursor<Vec<u8>>>,
    output: std::sync::Arc<Mutex<Vec<u8>>>,
}

impl Transport for Script {
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let most_bytes = buf.len().min(self.most_bytes);
        io::Read::read(&mut *self.input.lock().unwrap(), &mut buf[..most_bytes])
    }

    fn try_recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.recv(buf).map(Some)
    }

    fn send(&self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        self.output.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn set_recv_timeout(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn shutdown(&self) {}
}

/// Returns the server's output for a peer that sends `input`.
fn serve(input: Vec<u8>) -> Vec<u8> {
    serve_in_pieces(input, usize::MAX)
}

/// The same if the input arrives in pieces.
fn serve_in_pieces(input: Vec<u8>, most_bytes: usize) -> Vec<u8> {
    let script = Script { most_bytes, input: Mutex::new(io::Cursor::new(input)), output: Default::default() };
    let output = std::sync::Arc::clone(&script.output);
    let exports = Exports::new();
    exports.add(Export::new("disk", Ram::shared(1 << 20))).unwrap();
    serve_stream(script, &exports, Limits::default());
    std::mem::take(&mut *output.lock().unwrap())
}

fn transmission() -> Vec<u8> {
    let go = info(b"disk", &[]);
    let mut input = 3_u32.to_be_bytes().to_vec();
    for (option, data) in [(8, vec![]), (10, contexts(b"disk", &[b"base:allocation"])), (7, go)] {
        input.extend(OptionHeader { option, len_bytes: data.len() as u32 }.encode());
        input.extend(data);
    }
    input
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![0_u64..3 << 20, (1_u64 << 20) - 10..(1 << 20) + 10, any::<u64>()];
    let length = prop_oneof![0_u32..8192, 0_u32..200_000, any::<u32>()];
    (0_u16..10, prop_oneof![Just(0), 0_u16..32, any::<u16>()], any::<u64>(), offset, length).prop_map(
        |(kind, flags, cookie, offset, len_bytes)| {
            let mut bytes = Request { flags, kind, cookie, offset, len_bytes: len_bytes.into() }.encode().to_vec();
            if kind == 1 && len_bytes < 300_000 {
                bytes.extend(vec![kind as u8; len_bytes as usize]);
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn parsers_take_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = InfoQuery::parse(&bytes);
        let _ = ContextQuery::parse(&bytes);
        let _ = InfoReply::parse(&bytes);
        let _ = parse_server_reply(&bytes);
    }

    #[test]
    fn headers_survive_a_round_trip(a in any::<u32>(), b in any::<u32>(), c in any::<u32>(), d in any::<u64>(), e in any::<u64>()) {
        let option = OptionHeader { option: a, len_bytes: b };
        prop_assert_eq!(OptionHeader::parse(&option.encode()), Ok(option));
        let reply = OptionReplyHeader { option: a, kind: b, len_bytes: c };
        prop_assert_eq!(OptionReplyHeader::parse(&reply.encode()), Ok(reply));
        let request = Request { flags: a as u16, kind: b as u16, cookie: d, offset: e, len_bytes: c.into() };
        prop_assert_eq!(Request::parse(&request.encode()), Ok(request));
    }

    #[test]
    fn info_queries_survive_a_round_trip(name in proptest::collection::vec(any::<u8>(), 0..50), kinds in proptest::collection::vec(any::<u16>(), 0..9)) {
        let query = InfoQuery { name: &name, kinds };
        let encoded = query.encode();
        prop_assert_eq!(InfoQuery::parse(&encoded), Ok(query));
    }

    #[test]
    fn random_negotiations_end(bytes in proptest::collection::vec(any::<u8>(), 0..2000), flags in 0_u8..4) {
        serve([&[0, 0, 0, flags], &bytes[..]].concat());
    }

    #[test]
    fn random_options_end(options in proptest::collection::vec((0_u32..12, proptest::collection::vec(any::<u8>(), 0..40)), 0..20)) {
        let mut input = vec![0, 0, 0, 3];
        for (option, data) in options {
            input.extend(OptionHeader { option, len_bytes: data.len() as u32 }.encode());
            input.extend(data);
        }
        let whole = serve(input.clone());
        prop_assert_eq!(serve_in_pieces(input.clone(), 1), whole.clone());
        prop_assert_eq!(serve_in_pieces(input, 7), whole);
    }

    #[test]
    fn random_requests_end_and_are_answered_with_whole_messages(
        requests in proptest::collection::vec(request(), 0..20),
        cut in 0_usize..100,
    ) {
        let negotiated = serve(transmission()).len();
        let mut input = [transmission(), requests.concat()].concat();
        input.truncate(input.len() - cut.min(input.len() - transmission().len()));
        let start = Instant::now();
        let output = serve(input);
        prop_assert!(start.elapsed() < Duration::from_secs(10));
        let mut rest = &output[negotiated..];
        while !rest.is_empty() {
            let magic = u32::from_be_bytes(rest[..4].try_into().unwrap());
            let whole = match magic {
                0x6744_6698 => 16,
                0x668e_33ef => 20 + u32::from_be_bytes(rest[16..20].try_into().unwrap()) as usize,
                other => return Err(TestCaseError::fail(format!("magic {other:#x}"))),
            };
            prop_assert!(whole <= rest.len(), "half a message");
            rest = &rest[whole..];
        }
    }
}
