//! liblz4 is the oracle: it must read our blocks, and we must read its blocks.

use lzzzz::{lz4, lz4_hc};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::PAGE_SIZE;

/// Inputs of up to `max` bytes of the kinds that take different paths through the codec.
fn inputs(max: usize) -> impl Strategy<Value = Vec<u8>> {
    let random = vec(any::<u8>(), 0..max);
    let few_symbols = vec(prop_oneof![8 => Just(0_u8), 2 => Just(7), 1 => any::<u8>()], 0..max);
    let words = (vec(any::<[u8; 5]>(), 1..20), vec(any::<prop::sample::Index>(), 0..max / 5))
        .prop_map(|(words, picks)| picks.iter().flat_map(|pick| *pick.get(&words)).collect());
    let pointers = (any::<u64>(), vec(0_u64..1 << 12, 0..max / 8))
        .prop_map(|(base, steps)| steps.iter().flat_map(|step| (base ^ step << 4).to_le_bytes()).collect());
    let runs = vec((any::<u8>(), 0..max / 4), 0..8).prop_map(move |runs| {
        let mut bytes: Vec<u8> = runs.iter().flat_map(|&(byte, len)| vec![byte; len]).collect();
        bytes.truncate(max);
        bytes
    });
    let periods = (vec(any::<u8>(), 1..40), 0..max)
        .prop_map(|(unit, len)| unit.iter().copied().cycle().take(len).collect::<Vec<u8>>());
    prop_oneof![random, few_symbols, words, pointers, runs, periods]
}

fn compressed(encoder: &mut Lz4Encoder, input: &[u8]) -> Vec<u8> {
    let mut out = vec![0; compress_bound(input.len())];
    let len = encoder.compress(input, &mut out).expect("the bound is enough");
    out.truncate(len);
    out
}

/// Returns a buffer that ends with `block` and has `margin` bytes more than the output, and the
/// block's range.
fn tail(block: &[u8], out_len: usize, margin: usize) -> (Vec<u8>, Range<usize>) {
    let len = (out_len + margin).max(block.len());
    let mut buffer = vec![0xA5; len - block.len()];
    buffer.extend_from_slice(block);
    (buffer, len - block.len()..len)
}

/// Checks everything that must hold for any input.
fn check(encoder: &mut Lz4Encoder, input: &[u8]) {
    let block = compressed(encoder, input);
    let mut out = vec![0; input.len()];

    // Our block, read by liblz4 and by us.
    assert_eq!(lz4::decompress(&block, &mut out).expect("liblz4 reads it"), input.len());
    assert_eq!(out, input);
    out.fill(0);
    decompress(&block, &mut out).expect("we read it");
    assert_eq!(out, input);

    // liblz4's blocks, fast and high compression, read by us.
    let mut theirs = vec![0; compress_bound(input.len())];
    if !input.is_empty() {
        for high in [false, true] {
            let len = if high {
                lz4_hc::compress(input, &mut theirs, 9).unwrap()
            } else {
                lz4::compress(input, &mut theirs, lz4::ACC_LEVEL_DEFAULT).unwrap()
            };
            out.fill(0);
            decompress(&theirs[..len], &mut out).expect("we read liblz4's");
            assert_eq!(out, input);
            in_place_agrees(&theirs[..len], input);
        }
    }
    in_place_agrees(&block, input);

    // A prefix of it.
    for wanted in [0, 1, input.len() / 3, input.len().saturating_sub(1), input.len() + 5] {
        let mut front = vec![0xEE; wanted];
        let len = decompress_partial(&block, &mut front).expect("a front decodes");
        assert_eq!(len, wanted.min(input.len()));
        assert_eq!(front[..len], input[..len]);
    }

    // Any output size: all or nothing, and the same bytes.
    for cap in [0, 1, block.len() / 2, block.len().saturating_sub(1), block.len(), block.len() + 1, block.len() + 30] {
        let mut small = vec![0; cap];
        match encoder.compress(input, &mut small) {
            Some(len) => assert_eq!(small[..len], block),
            None => assert!(cap < block.len()),
        }
    }
}

fn in_place_agrees(block: &[u8], input: &[u8]) {
    let (mut buffer, range) = tail(block, input.len(), in_place_margin(block.len()));
    decompress_in_place(&mut buffer, range, input.len()).expect("the margin is enough");
    assert_eq!(buffer[..input.len()], *input);
}

/// Checks the promises of [`Lz4Encoder::compress_fill`] and the format's end-of-block rules.
fn check_fill(encoder: &mut Lz4Encoder, input: &[u8], cap: usize) {
    for matches in [Matches::Most, Matches::Short, Matches::Long, Matches::LongMost, Matches::Longest] {
        check_fill_with(encoder, input, cap, matches);
    }
}

fn check_fill_with(encoder: &mut Lz4Encoder, input: &[u8], cap: usize, matches: Matches) {
    let mut out = vec![0; cap];
    let Some((taken, len)) = encoder.compress_fill(input, &mut out, matches) else {
        assert_eq!(cap, 0);
        return;
    };
    assert!(taken <= input.len() && len <= cap);
    assert!(taken == input.len() || len + 1 >= cap, "{len} of {cap} filled");
    let mut back = vec![0; taken];
    assert_eq!(lz4::decompress(&out[..len], &mut back).expect("liblz4 reads it"), taken);
    assert_eq!(back, input[..taken]);
    back.fill(0);
    decompress(&out[..len], &mut back).expect("we read it");
    assert_eq!(back, input[..taken]);
    in_place_agrees(&out[..len], &input[..taken]);

    // Walk the sequences: the last match starts 12 before the end, and 5 literals follow it.
    let (mut ip, mut op, mut last) = (0, 0, None);
    loop {
        let token = out[ip];
        ip += 1;
        let length = |ip: &mut usize, nibble: u8| {
            let mut length = usize::from(nibble);
            if nibble == 15 {
                loop {
                    length += usize::from(out[*ip]);
                    *ip += 1;
                    if out[*ip - 1] != 255 {
                        break;
                    }
                }
            }
            length
        };
        let literals = length(&mut ip, token >> 4);
        ip += literals;
        op += literals;
        if ip == len {
            break;
        }
        ip += 2;
        last = Some(op);
        op += 4 + length(&mut ip, token & 15);
        assert!(op + 5 <= taken);
    }
    assert!(last.is_none_or(|start| start + 12 <= taken));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn blocks_go_both_ways(inputs in vec(inputs(6000), 1..4)) {
        let mut encoder = Lz4Encoder::new();
        for input in &inputs {
            check(&mut encoder, input);
        }
    }

    #[test]
    fn fill_takes_a_front_and_fills(inputs in vec(inputs(6000), 1..3), caps in vec(0_usize..600, 4)) {
        let mut encoder = Lz4Encoder::new();
        for input in &inputs {
            for &cap in &caps {
                check_fill(&mut encoder, input, cap);
            }
        }
    }

    #[test]
    fn corrupt_blocks_are_errors_or_bytes_and_decoders_agree(
        input in inputs(5000),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        margin in 0_usize..80,
    ) {
        let mut block = compressed(&mut Lz4Encoder::new(), &input);
        for (at, byte) in flips {
            let at = at.index(block.len());
            block[at] = byte;
        }
        decoders_agree(&block, input.len(), margin);
        block.truncate(cut.index(block.len() + 1));
        decoders_agree(&block, input.len(), margin);
    }

    #[test]
    fn any_bytes_are_an_error_or_bytes(block in vec(any::<u8>(), 0..300), out_len in 0_usize..2000, margin in 0_usize..80) {
        decoders_agree(&block, out_len, margin);
    }
}

/// Pages of different [`Kind`]s use different tables, so liblz4 reads one of each, in outputs of
/// different sizes.
#[test]
fn pages_of_every_kind_go_to_liblz4() {
    let units: [&[u8]; 11] = [
        b"\x9C\x12\x81\x50\x07",
        b"He sat down and said nothing at all for a long while. ",
        b"        return name\n    found\n",
        b"if not (name or value): return [first, second]\n",
        b"<row id=\"31\" name=\"x\">&lt;</row>\n",
        b"\x48\x8B\x05\x11\x20\0\xE8\x84\xC3\x0F\x55",
        b"some_name\0\x04other\0\x11",
        b"\x10\x92\x33\x71\xFE\x7F\x88\0",
        b"\x10\x92\x33\x71\x7F\0\0\0",
        b"\x10\x92\x33\x71\x5E\x7F\0\0\x20\x13\0\0\0\0\0\0\x10\0\0\0\x33\x01\0\0",
        b"\x10\x92\x33\x71\x5E\x7F\0\0",
    ];
    let mut stream = Lz4.stream().unwrap();
    let mut kinds = [0; 11];
    for (seed, unit) in (1..60).flat_map(|seed| units.map(|unit| (seed, unit))) {
        let noise = mixed(PAGE_SIZE, seed);
        let mut page: Page = std::array::from_fn(|at| unit[at % unit.len()]);
        page.iter_mut().zip(noise).step_by(120 / seed as usize).for_each(|(byte, noise)| *byte ^= noise);
        kinds[Kind::of(&page) as usize] += 1;
        let mut out = [0; 2 * PAGE_SIZE];
        let len = stream.compress(&page, &mut out).expect("two pages are room enough");
        let mut back = [1; PAGE_SIZE];
        assert_eq!(lz4::decompress(&out[..len], &mut back), Ok(PAGE_SIZE));
        assert_eq!(back, page);
        for cap in [0, len / 2, len - 1, len, len + 1, len + 45] {
            let mut small = vec![0; cap];
            assert_eq!(stream.compress(&page, &mut small), (cap >= len).then_some(len));
            assert!(cap < len || small[..len] == out[..len]);
        }
    }
    assert!(kinds.iter().all(|&count| count > 0), "{kinds:?}");
}

/// Decodes the block format byte by byte, without the rules for a block's end, which only bind
/// encoders. Returns `None` if the block is malformed or does not give `out_len` bytes.
fn reference(block: &[u8], out_len: usize) -> Option<Vec<u8>> {
    let mut bytes = block.iter().copied();
    let mut out = Vec::new();
    loop {
        let token = usize::from(bytes.next()?);
        let length = |bytes: &mut dyn Iterator<Item = u8>, nibble: usize| {
            let mut length = nibble;
            let mut byte = if nibble == 15 { 255 } else { 0 };
            while byte == 255 {
                byte = bytes.next()?;
                length += usize::from(byte);
            }
            Some(length)
        };
        for _ in 0..length(&mut bytes, token >> 4)? {
            out.push(bytes.next()?);
        }
        let Some(low) = bytes.next() else { break };
        let offset = usize::from(u16::from_le_bytes([low, bytes.next()?]));
        let matched = 4 + length(&mut bytes, token & 15)?;
        if offset == 0 || out.len() + matched > out_len {
            return None;
        }
        for _ in 0..matched {
            out.push(out[out.len().checked_sub(offset)?]);
        }
    }
    (out.len() == out_len).then_some(out)
}

/// The value of every byte around an output, before and after.
const GUARD: u8 = 0xC3;

/// Runs `decode` on an output with guards around it, which must not change.
fn guarded<R>(out_len: usize, decode: impl FnOnce(&mut [u8]) -> R) -> (R, Vec<u8>) {
    let mut buffer = vec![GUARD; 64 + out_len + 64];
    let result = decode(&mut buffer[64..64 + out_len]);
    let (front, rest) = buffer.split_at(64);
    let (out, back) = rest.split_at(out_len);
    assert!([front, back].concat().iter().all(|&byte| byte == GUARD), "written outside the output");
    (result, out.to_vec())
}

/// Decodes a hostile `block`: the format's reference, liblz4 and our decoder give the same bytes,
/// or all give an error; likewise in place, if it does not overrun.
fn decoders_agree(block: &[u8], out_len: usize, margin: usize) {
    let mut theirs = vec![0; out_len];
    let (result, ours) = guarded(out_len, |out| decompress(block, out));
    assert!(result.ok().map(|()| &ours) == reference(block, out_len).as_ref(), "{result:?} of {block:x?}");
    let oracle = lz4::decompress(block, &mut theirs);
    // liblz4 rejects blocks that break the rules for the end of a block, which only bind encoders,
    // and accepts offset 0, which the format forbids.
    if let Ok(len) = oracle
        && !block.is_empty()
        && result != Err(decode::BAD_OFFSET)
    {
        assert_eq!(result.is_ok(), len == out_len, "{result:?}");
        assert!(result.is_err() || ours == theirs);
    }
    let (mut buffer, range) = tail(block, out_len, margin);
    if decompress_in_place(&mut buffer, range, out_len).is_ok() {
        assert!(result.is_ok());
        assert_eq!(buffer[..out_len], ours);
    }
    let (part, front) = guarded(out_len / 2, |out| decompress_partial(block, out));
    if result.is_ok() {
        assert_eq!(part, Ok(out_len / 2));
        assert_eq!(front, ours[..out_len / 2]);
    }
}

/// Returns bytes that contain matches of all lengths and distances, the same on every run.
fn mixed(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let mut bytes = Vec::with_capacity(len + 400);
    while bytes.len() < len {
        if bytes.len() < 16 || next(3) == 0 {
            for _ in 0..=next(20) {
                bytes.push(next(256) as u8);
            }
        } else {
            let reach = [16, 300, 70_000][next(3)];
            let distance = 1 + next(reach.min(bytes.len()));
            let longest = [20, 300][next(2)];
            for _ in 0..4 + next(longest) {
                bytes.push(bytes[bytes.len() - distance]);
            }
        }
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn lengths_around_every_limit() {
    let mut encoder = Lz4Encoder::new();
    let long = mixed(300, 3);
    for len in 0..=long.len() {
        check(&mut encoder, &long[..len]);
        check(&mut encoder, &vec![9; len]);
    }
}

#[test]
fn long_blocks() {
    let mut encoder = Lz4Encoder::new();
    for len in [65_535, 65_536, 65_537, 300_000, 1 << 20, (1 << 20) + 77] {
        check(&mut encoder, &mixed(len, len as u64));
        for cap in [4096, 8192, 65_536] {
            check_fill(&mut encoder, &mixed(len, len as u64), cap);
        }
    }
    check(&mut encoder, &vec![0; 1 << 20]);
    check_fill(&mut encoder, &vec![0; 1 << 20], 4096);
}

/// The base moves within and after a match longer than the maximum offset, and while nothing is
/// found.
#[test]
fn positions_of_long_blocks_keep_to_sixteen_bits() {
    let mut encoder = Lz4Encoder::new();
    let mut input = Vec::new();
    for (number, run) in [100, 60_000, 64_800, 65_000, 65_400, 70_000, 200_000].into_iter().enumerate() {
        input.extend(mixed(5_000 * number, number as u64 + 1));
        input.resize(input.len() + run, number as u8);
    }
    input.extend((0..50_000u32).flat_map(|n| n.wrapping_mul(0x9E37_79B1).to_le_bytes()));
    for start in [0, 1, 17, 64_000, 64_990, 65_100] {
        check(&mut encoder, &input[start..]);
        for cap in [4096, 60_000, 1 << 20] {
            check_fill(&mut encoder, &input[start..], cap);
        }
    }
}

#[test]
fn every_output_bound_of_a_page() {
    let mut encoder = Lz4Encoder::new();
    let page = mixed(PAGE_SIZE, 11);
    let block = compressed(&mut encoder, &page);
    for cap in 0..block.len() + 50 {
        let mut out = vec![0; cap];
        assert_eq!(encoder.compress(&page, &mut out).is_some(), cap >= block.len(), "cap {cap}");
        check_fill(&mut encoder, &page, cap);
    }
}

#[test]
fn a_block_does_not_depend_on_the_blocks_before_it() {
    let mut used = Lz4Encoder::new();
    for seed in 1..40 {
        let input = mixed(if seed % 5 == 0 { 100_000 } else { PAGE_SIZE }, seed);
        assert_eq!(compressed(&mut used, &input), compressed(&mut Lz4Encoder::new(), &input));
    }
}

#[test]
fn offsets_of_long_blocks_stay_in_reach() {
    let mut encoder = Lz4Encoder::new();
    // Content that repeats at, just before and just after the longest offset.
    for period in [65_534, 65_535, 65_536, 65_537, 131_072] {
        let noise = mixed(period, 5);
        check(&mut encoder, &noise.repeat(3));
        check_fill(&mut encoder, &noise.repeat(3), 100_000);
    }
    // Nothing ever repeats.
    check(&mut encoder, &(0..80_000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
    check(&mut encoder, &vec![0; 300_000]);
}

#[test]
fn offsets_of_every_size_and_match_lengths() {
    for offset in 1..40_u16 {
        for extra in 0..250_u8 {
            let mut block = vec![0xF0 | extra.min(15), 40 - 15];
            block.extend(0..40);
            block.extend(offset.to_le_bytes());
            if extra >= 15 {
                block.push(extra - 15);
            }
            block.extend([0x50, 1, 2, 3, 4, 5]);
            let mut want: Vec<u8> = (0..40).collect();
            for _ in 0..4 + extra {
                want.push(want[want.len() - usize::from(offset)]);
            }
            want.extend([1, 2, 3, 4, 5]);
            // With more room than the block needs, the decoder may write past its end.
            for more in [0, 200] {
                let mut out = vec![0; want.len() + more];
                assert_eq!(decode::separate(&block, &mut out, Extent::Whole), Ok(want.len()));
                assert_eq!(out[..want.len()], want, "offset {offset} length {}", 4 + extra);
            }
        }
    }
}

/// A sequence at every distance from the output's end, with matches that begin at the output's
/// start or one byte before.
#[test]
fn a_sequence_at_every_distance_from_the_end() {
    for literals in [1, 7, 8, 9, 13, 14, 15, 16, 40] {
        for offset in 1..=literals + 1 {
            for code in [0, 1, 14, 15, 16, 60] {
                for last in 0..70_u8 {
                    let length = |block: &mut Vec<u8>, length: u8| block.extend(length.checked_sub(15));
                    let mut block = vec![literals.min(15) << 4 | code.min(15)];
                    length(&mut block, literals);
                    block.extend(1..=literals);
                    block.extend([offset, 0]);
                    length(&mut block, code);
                    block.push(last.min(15) << 4);
                    length(&mut block, last);
                    block.extend(vec![7; usize::from(last)]);
                    let out_len = usize::from(literals + 4 + code + last);
                    assert_eq!(reference(&block, out_len).is_some(), offset <= literals);
                    decoders_agree(&block, out_len, 40);
                }
            }
        }
    }
}

#[test]
fn in_place_refuses_to_overrun_its_input() {
    // 100 zeros, then 60 literals: the zeros would overwrite the literals.
    let mut block = vec![0x1F, 0, 1, 0, 99 - 19, 0xF0, 60 - 15];
    block.extend(1..=60);
    let mut want = vec![0; 100];
    want.extend(1..=60);
    let mut out = vec![9; want.len()];
    decompress(&block, &mut out).unwrap();
    assert_eq!(out, want);
    let mut overruns = 0;
    for margin in 0..200 {
        let len = block.len() + margin;
        let mut buffer = vec![0; len];
        buffer[margin..].copy_from_slice(&block);
        buffer.resize(len.max(want.len()), 0);
        match decompress_in_place(&mut buffer, margin..len, want.len()) {
            Ok(()) => assert_eq!(buffer[..want.len()], want),
            Err(_) => overruns += 1,
        }
    }
    assert!((90..=110).contains(&overruns), "{overruns}");
}

/// With too small a margin or too little output, at any distance from its input, a block is
/// rejected or decoded correctly.
#[test]
fn in_place_every_margin_and_every_end() {
    let mut encoder = Lz4Encoder::new();
    for seed in 1..40 {
        let input = mixed(200 + 40 * seed as usize, seed);
        let ours = compressed(&mut encoder, &input);
        let mut theirs = vec![0; compress_bound(input.len())];
        let len = lz4_hc::compress(&input, &mut theirs, 9).unwrap();
        for block in [&ours, &theirs[..len]] {
            for margin in 0..90 {
                let (mut buffer, range) = tail(block, input.len(), margin);
                let end = buffer.len();
                buffer.resize(end + 64, GUARD);
                if decompress_in_place(&mut buffer, range, input.len()).is_ok() {
                    assert!(buffer[..input.len()] == input, "margin {margin}");
                }
                assert!(buffer[end..].iter().all(|&byte| byte == GUARD), "written behind the block");
            }
            for out_len in (0..input.len()).step_by(7) {
                let (mut buffer, range) = tail(block, input.len(), 900);
                assert!(decompress_in_place(&mut buffer, range, out_len).is_err(), "{out_len} of {}", input.len());
            }
        }
    }
}

/// A match overwrites the next token, which then encodes other lengths. The sequence has enough
/// length bytes after it that literals have room.
#[test]
fn in_place_an_overwritten_token_is_detected() {
    // Literals that end in 0xF0, and a match of 4 of them; 4 times the last byte, for which 24 are
    // written; then 0xF5 instead of 0xF0.
    let mut block = vec![0x80, 1, 2, 3, 0xF0, 5, 6, 7, 8, 8, 0, 0x00, 1, 0, 0xF5];
    block.extend([255; 11]);
    block.push(0);
    block.extend([9; 15 + 11 * 255]);
    block.extend([1, 0, 0xF0, 45]);
    block.extend([7; 60]);
    let whole = 12 + 4 + 15 + 11 * 255 + 9 + 60;
    assert!(reference(&block, whole).is_some());
    for out_len in whole - 9..whole + 9 {
        for before in 0..60 {
            let mut buffer = vec![0; before];
            buffer.extend(&block);
            let range = before..buffer.len();
            if out_len <= buffer.len() && decompress_in_place(&mut buffer, range, out_len).is_ok() {
                assert!(reference(&block, out_len).as_deref() == Some(&buffer[..out_len]), "{before} bytes before");
            }
        }
    }
}

#[test]
fn a_front_needs_no_more_of_the_block_than_it_has_itself() {
    // A literal and a match of 4, and nothing else; then the same with a truncated literal.
    let block = [0x10, b'a', 1, 0, 0x20, b'b'];
    for len in 4..=block.len() {
        let mut front = [0; 5];
        assert_eq!(decompress_partial(&block[..len], &mut front), Ok(5));
        assert_eq!(front, *b"aaaaa");
    }
    assert!(decompress_partial(&block, &mut [0; 8]).is_err());
}

#[test]
fn in_place_ranges_outside_the_buffer_are_errors() {
    let mut buffer = [0; 64];
    for (block, out_len) in [(60..65, 10), (0..10, 65), (usize::MAX - 1..usize::MAX, 1)] {
        assert!(decompress_in_place(&mut buffer, block, out_len).is_err());
    }
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = 10..5;
    assert!(decompress_in_place(&mut buffer, reversed, 10).is_err());
}
