//! The decoder: the entry point of all builds, and the loop of those without AVX-512. With AVX-512,
//! [`sequences`] reads the tokens and [`window`] copies their bytes.
//!
//! ```text
//! while the page is not full:
//!     token := the next token, from the last byte of the tokens towards the first
//!     if token is END: stop
//!     length, run, offset field := the token's bases plus its extra bits
//!     offset := the last one, the one before, or the field
//!     copy `run` literals, then `length` bytes from `offset` back
//! the rest of the literals end the page
//! ```
//!
//! How the loop differs from this pseudocode, and the gain in decoding speed (geometric mean over
//! nine kinds of pages; the log in `docs/log/fold.md` has the command):
//!
//! 1. Extra bits and tokens are first copied to the middle of a buffer with room on both sides for
//!    any sequence of tokens, and literals are copied likewise. The tokens of a page of words,
//!    which may be coded, have a buffer of their own. So tokens need no check of the input; one
//!    check at the end verifies that each cursor stopped in the right place. Literals are read in
//!    place only if there are many and they are not coded; then every token checks for their end
//!    (half-random pages +3 to +8 %).
//! 2. Conditional moves select the offset. Which of the three it is cannot be predicted (+28 %).
//! 3. All tokens but the page's last few go through [`fast`], a separate function whose state stays
//!    in registers; the others go through [`careful`] (+5 %). Table and buffer are at fixed offsets
//!    from one pointer, which frees a register for the loop (+3 %).
//! 4. [`fast`] copies 16 bytes of each match before it reads the length in pages of words, and 32
//!    in others: a branch on the length is mispredicted where lengths vary, but unnecessary copies
//!    wait for earlier stores where offsets are short (+4 %).
//! 5. END has a run that never fits, so the loop need not test for it.
#![allow(unsafe_code)] // The cursors and the page are checked once per token, not for each of its copies.

use core::hint::select_unpredictable;

use super::{
    Format, Isa,
    literals::{EMPTY, PALETTE_OF_TOKENS, Palettes, Room, SLACK},
    tables::{
        BITS_MAX, CODED_SHIFT, END, KINDS, Kind, LENGTH_MIN, LITERALS_MASK, LONG_HEADER, PALETTE_MASK, PALETTE_SHIFT,
        RECORDS_SHIFT, Source, TOKENS_MASK, Token, WORDS_SHIFT,
    },
};
#[cfg(target_arch = "x86_64")]
use super::{
    sequences::{self, Sequences},
    tables::Tokens,
    window,
};
use crate::{Corrupt, PAGE_SIZE, Page, mem};

/// Maximum number of tokens, including END: every token but [`END`] fills at least [`LENGTH_MIN`]
/// bytes of the page.
const TOKENS_MAX: usize = PAGE_SIZE / LENGTH_MIN + 2;

/// Room before the object; the tokens are read backwards.
const FRONT: usize = TOKENS_MAX.next_multiple_of(64);

/// Room after the object: for the extra bits of as many tokens and for the width of a load.
const BACK: usize = (FRONT * BITS_MAX / 8 + 128).next_multiple_of(64);

/// With at least this many literals, if they are not coded, copying them costs more than a check
/// for each token ([`fast`]).
const DIRECT_MIN: usize = 1792;

const SHORT: Corrupt = Corrupt { what: "fold object is too short for its header" };
const HEADER: Corrupt = Corrupt { what: "fold header out of range" };
const LITERALS: Corrupt = Corrupt { what: "fold object's literals out of range" };
const TOKENS: Corrupt = Corrupt { what: "fold object's tokens out of range" };
const LENGTHS: Corrupt = Corrupt { what: "fold object's lengths do not add up" };

pub(super) struct Decoder {
    isa: Isa,
    /// The format's tokens. In this structure, the same pointer reaches them and the input. It also
    /// stops the compiler from computing a token's source from the token, which takes more
    /// instructions than the load.
    tokens: [[Token; 256]; KINDS],
    /// The extra bits, and unless the page is one of words, the tokens.
    input: [u8; FRONT + PAGE_SIZE + BACK],
    words_tokens: WordsTokens,
    literals: Room,
    /// Present with AVX-512.
    #[cfg(target_arch = "x86_64")]
    sequences: Option<Box<Sequences>>,
}

/// The tokens of a page of words, and room before them.
#[repr(C)]
struct WordsTokens {
    /// Ends with END, which a page of words does not have.
    front: [u8; FRONT],
    tokens: Room,
}

/// Where the tokens are.
#[derive(Clone, Copy)]
struct TokensAt {
    /// The end of the tokens, of which the first is the last byte.
    end: *const u8,
    /// Number of tokens, without END, if it is known.
    count: Option<usize>,
}

/// The state of the three streams and the page between two tokens.
struct Cursor {
    /// The next byte of the page to write.
    at: usize,
    /// The next literal, and the end of the literals.
    literals: *const u8,
    literals_end: *const u8,
    /// The next token.
    token: *const u8,
    /// The start of the extra bits, and how many are used.
    bits: *const u8,
    bit: usize,
    last: usize,
    before: usize,
}

impl Decoder {
    pub(super) fn new(isa: Isa, format: &Format) -> Box<Self> {
        Box::new(Self {
            isa,
            tokens: decoder_tokens(format),
            input: [0; FRONT + PAGE_SIZE + BACK],
            words_tokens: WordsTokens { front: [END; FRONT], tokens: EMPTY },
            literals: EMPTY,
            #[cfg(target_arch = "x86_64")]
            sequences: (isa == Isa::Avx512).then(|| Box::new(Sequences::new())),
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        let sequences = self.sequences.as_ref().map_or(0, |_| size_of::<Sequences>());
        #[cfg(not(target_arch = "x86_64"))]
        let sequences = 0;
        size_of::<Self>() + sequences
    }

    /// Returns whether all tokens are read before any byte is copied, so that literals need no
    /// check.
    fn reads_tokens_first(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.sequences.is_some();
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// Switches to objects of `format`.
    pub(super) fn set_format(&mut self, format: &Format) {
        self.tokens = decoder_tokens(format);
    }

    /// See [`Stream::decompress`](crate::Stream::decompress). `format` must be the one that was set
    /// last.
    pub(super) fn decode(&mut self, format: &Format, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let page = page.as_mut_ptr();
        // SAFETY: `page` is a page, and matches reach nothing before it.
        unsafe { self.decode_to::<0>(format, object, page, page) }
    }

    /// Does the same as [`decode`](Self::decode) for an object whose matches may begin in the first
    /// `REACH` bytes of `window`. The page after those bytes may be overwritten.
    pub(super) fn decode_after<const REACH: usize>(
        &mut self,
        format: &Format,
        object: &[u8],
        window: &mut [u8],
        page: &mut Page,
    ) -> Result<(), Corrupt> {
        assert!(window.len() >= REACH + PAGE_SIZE);
        // SAFETY: the window has REACH bytes and a page.
        unsafe { self.decode_to::<REACH>(format, object, window.as_mut_ptr().add(REACH), page.as_mut_ptr()) }
    }

    /// # Safety
    /// `to` and `page` are writable pages, the same or disjoint. `REACH` bytes before `to` can be
    /// read.
    unsafe fn decode_to<const REACH: usize>(
        &mut self,
        format: &Format,
        object: &[u8],
        to: *mut u8,
        page: *mut u8,
    ) -> Result<(), Corrupt> {
        let Some((&[low, high], body)) = object.split_first_chunk::<2>() else { return Err(SHORT) };
        let header = usize::from(u16::from_le_bytes([low, high]));
        if object.len() > PAGE_SIZE {
            return Err(HEADER);
        }
        let literals = header & LITERALS_MASK;
        let (kind, palette, body) = match header & !LITERALS_MASK {
            LONG_HEADER => {
                let Some((&second, body)) = body.split_first() else { return Err(SHORT) };
                let kind = match second >> RECORDS_SHIFT {
                    0 => Kind::Fields,
                    1 => Kind::Records,
                    _ => return Err(HEADER),
                };
                (kind, usize::from(second & PALETTE_MASK), body)
            }
            upper if upper >> WORDS_SHIFT & 1 == 1 => (Kind::Words, header >> PALETTE_SHIFT, body),
            _ => (Kind::Others, header >> PALETTE_SHIFT, body),
        };
        let (count, body) = if kind == Kind::Words {
            let (count, rest) = self.words_tokens.read(self.isa, &format.palettes, body).ok_or(TOKENS)?;
            (Some(count), rest)
        } else {
            (None, body)
        };
        let coded = if palette == 0 {
            literals
        } else {
            format.palettes.unpack(self.isa, palette, body, literals, &mut self.literals).ok_or(LITERALS)?
        };
        let (coded, rest) = body.split_at_checked(coded).ok_or(LITERALS)?;
        let direct = palette == 0 && rest.len() >= SLACK && (literals >= DIRECT_MIN || self.reads_tokens_first());
        if palette == 0 && !direct {
            self.literals[..literals].copy_from_slice(coded);
        }
        let Some(input) = self.input.get_mut(FRONT..FRONT + rest.len()) else { return Err(HEADER) };
        input.copy_from_slice(rest);
        let this = &raw const *self;
        // SAFETY: both are in the structure.
        let end = unsafe {
            match count {
                Some(count) => (&raw const (*this).words_tokens.tokens).cast::<u8>().add(count),
                None => (&raw const (*this).input).cast::<u8>().add(FRONT + rest.len()),
            }
        };
        let tokens_at = TokensAt { end, count };
        let rest_len = rest.len();
        #[cfg(target_arch = "x86_64")]
        if let Some(sequences) = &mut self.sequences {
            let from = if direct { body } else { &self.literals[..] };
            let tokens = &format.tokens[kind as usize];
            // SAFETY: the stream detected the features before it selected the build. The rest of
            // the object is at `FRONT` in `input`, which has room for `parse` on both sides, as the
            // tokens of a page of words have before them. `from` has `literals` bytes plus SLACK.
            // The pages are the caller's.
            return unsafe {
                decode_by_window::<REACH>(
                    sequences,
                    tokens,
                    &self.input,
                    rest.len(),
                    tokens_at,
                    from,
                    literals,
                    to,
                    page,
                )
            }
            .ok_or(LENGTHS);
        }

        // SAFETY: the rest of the object is at `FRONT` in `input`; `literals` bytes are in `coded`
        // or were put in `self.literals`.
        let mut cursor = unsafe {
            let bits = (&raw const (*this).input).cast::<u8>().add(FRONT);
            let literals_start = if direct { coded.as_ptr() } else { (&raw const (*this).literals).cast() };
            Cursor {
                at: 0,
                literals: literals_start,
                literals_end: literals_start.add(literals),
                token: tokens_at.end.sub(1),
                bits,
                bit: 0,
                last: 1,
                before: 1,
            }
        };
        let mut ends = 0;
        loop {
            // SAFETY: the cursor belongs to `input`, or in a page of words for its tokens to
            // `words_tokens`, and only moves by whole tokens. Each token but END fills at least
            // LENGTH_MIN bytes of the page, and both functions stop when it is full. That bounds
            // the total: TOKENS_MAX tokens, BITS_MAX bits each, and a page of literals. `input` has
            // room for that before and after, `words_tokens` before, `self.literals` after;
            // `direct` literals have SLACK bytes of the object after them, and their end is
            // checked.
            unsafe { (*this).isa.fast::<REACH>(kind, direct, this, &mut cursor, to) };
            if cursor.at >= PAGE_SIZE {
                break;
            }
            // SAFETY: as above.
            match unsafe { careful::<REACH>(this, kind, &mut cursor, to) } {
                Step::Token => {}
                Step::End => {
                    ends = 1;
                    break;
                }
                Step::Corrupt => return Err(LENGTHS),
            }
        }
        let rest = PAGE_SIZE.wrapping_sub(cursor.at);
        let literals_left = cursor.literals_end.addr().wrapping_sub(cursor.literals.addr());
        let tokens = tokens_at.end.addr() - (cursor.token.addr() + 1) - ends;
        let is_whole = tokens_at.is_whole(tokens, ends, cursor.bit.div_ceil(8), rest_len);
        if rest > PAGE_SIZE || literals_left != rest || !is_whole {
            return Err(LENGTHS);
        }
        // SAFETY: `rest` bytes of the page and `rest` literals are left. The caller owns both
        // pages.
        unsafe {
            cursor.literals.copy_to_nonoverlapping(to.add(cursor.at), rest);
            if REACH > 0 {
                to.copy_to_nonoverlapping(page, PAGE_SIZE);
            }
        }
        Ok(())
    }
}

impl WordsTokens {
    /// Reads the tokens of a page of words. Returns their number and what follows them.
    fn read<'a>(&mut self, isa: Isa, palettes: &Palettes, from: &'a [u8]) -> Option<(usize, &'a [u8])> {
        let (header, body) = from.split_first_chunk::<2>()?;
        let header = usize::from(u16::from_le_bytes(*header));
        let count = header & TOKENS_MASK;
        if count >= TOKENS_MAX {
            return None;
        }
        let len = if header >> CODED_SHIFT == 0 {
            self.tokens[..count].copy_from_slice(body.get(..count)?);
            count
        } else {
            palettes.unpack(isa, PALETTE_OF_TOKENS, body, count, &mut self.tokens)?
        };
        Some((count, &body[len..]))
    }
}

impl TokensAt {
    /// Returns whether these tokens and, in the `rest_len` bytes after the literals, these bytes of
    /// extra bits are all there is. Unless the page is one of words, the tokens and `ends` ENDs are
    /// in the rest, too.
    fn is_whole(&self, tokens: usize, ends: usize, bits: usize, rest_len: usize) -> bool {
        match self.count {
            Some(count) => tokens == count && bits == rest_len,
            None => tokens + ends + bits == rest_len,
        }
    }
}

/// Decodes all sequences and the literals after them. The rest of the object is `rest_len` bytes at
/// [`FRONT`] in `input`.
///
/// # Safety
/// `rest_len` is at most a page; [`FRONT`] bytes before the tokens' end can be read; `literals` has
/// `literals_len` bytes plus [`SLACK`]. `to` and `page` are as for [`Decoder::decode_to`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512vbmi")]
#[expect(clippy::too_many_arguments)] // The caller has computed all of these.
unsafe fn decode_by_window<const REACH: usize>(
    sequences: &mut Sequences,
    tokens: &Tokens,
    input: &[u8; FRONT + PAGE_SIZE + BACK],
    rest_len: usize,
    tokens_at: TokensAt,
    literals: &[u8],
    literals_len: usize,
    to: *mut u8,
    page: *mut u8,
) -> Option<()> {
    const { assert!(FRONT >= sequences::FRONT && BACK >= sequences::BACK) };
    // SAFETY: `input` extends far enough for `parse` on both sides of the rest.
    let sums = unsafe { sequences.parse(&tokens.fields, REACH, input.as_ptr().add(FRONT), tokens_at.end)? };
    let left = PAGE_SIZE.checked_sub(sums.bytes)?;
    let is_whole = tokens_at.is_whole(sums.tokens, usize::from(sums.end), sums.bits.div_ceil(8), rest_len);
    if sums.literals + left != literals_len || !is_whole {
        return None;
    }
    // SAFETY: the tokens produce `sums.bytes`, at most a page, and there are as many literals as
    // they and the end need. No match begins more than REACH bytes before the page, and none before
    // it if the sums say so.
    unsafe {
        let (readable, literals) = (literals.len(), literals.as_ptr());
        // A single call: with two, the copy of long tokens would not be inlined.
        let in_dict = REACH > 0 && sums.in_dict;
        let made = if in_dict { to } else { page };
        window::copy(sequences, sums.tokens, in_dict, literals, readable, made);
        literals.add(sums.literals).copy_to_nonoverlapping(made.add(sums.bytes), left);
        if in_dict {
            made.copy_to_nonoverlapping(page, PAGE_SIZE);
        }
    }
    Some(())
}

fn decoder_tokens(format: &Format) -> [[Token; 256]; KINDS] {
    format.tokens.each_ref().map(|tokens| tokens.decoder)
}

impl Isa {
    /// # Safety
    /// As for [`fast`].
    unsafe fn fast<const REACH: usize>(
        self,
        kind: Kind,
        direct: bool,
        decoder: *const Decoder,
        cursor: &mut Cursor,
        page: *mut u8,
    ) {
        // SAFETY: upheld by the caller; the stream detected BMI and AVX2 before it selected the
        // build.
        unsafe {
            match kind {
                Kind::Others => self.fast_of::<{ Kind::Others as usize }, REACH>(direct, decoder, cursor, page),
                Kind::Words => self.fast_of::<{ Kind::Words as usize }, REACH>(direct, decoder, cursor, page),
                Kind::Records => self.fast_of::<{ Kind::Records as usize }, REACH>(direct, decoder, cursor, page),
                Kind::Fields => self.fast_of::<{ Kind::Fields as usize }, REACH>(direct, decoder, cursor, page),
            }
        }
    }

    /// # Safety
    /// As for [`fast`].
    unsafe fn fast_of<const KIND: usize, const REACH: usize>(
        self,
        direct: bool,
        decoder: *const Decoder,
        cursor: &mut Cursor,
        page: *mut u8,
    ) {
        // SAFETY: upheld by the caller; the stream detected BMI and AVX2 before it selected the
        // build.
        unsafe {
            match (self, direct) {
                #[cfg(target_arch = "x86_64")]
                (Self::Avx2 | Self::Avx512, false) => fast_avx2::<KIND, false, REACH>(decoder, cursor, page),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx2 | Self::Avx512, true) => fast_avx2::<KIND, true, REACH>(decoder, cursor, page),
                (Self::Portable, false) => fast_portable::<KIND, false, REACH>(decoder, cursor, page),
                (Self::Portable, true) => fast_portable::<KIND, true, REACH>(decoder, cursor, page),
            }
        }
    }
}

/// # Safety
/// As for [`fast`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,avx2")]
#[inline(never)] // Inlined, it would compete with `decode` for registers.
unsafe fn fast_avx2<const KIND: usize, const CHECKED: bool, const REACH: usize>(
    decoder: *const Decoder,
    cursor: &mut Cursor,
    page: *mut u8,
) {
    // SAFETY: upheld by the caller.
    unsafe { fast::<KIND, CHECKED, REACH>(decoder, cursor, page) }
}

/// # Safety
/// As for [`fast`].
#[inline(never)] // Inlined, it would compete with `decode` for registers.
unsafe fn fast_portable<const KIND: usize, const CHECKED: bool, const REACH: usize>(
    decoder: *const Decoder,
    cursor: &mut Cursor,
    page: *mut u8,
) {
    // SAFETY: upheld by the caller.
    unsafe { fast::<KIND, CHECKED, REACH>(decoder, cursor, page) }
}

/// Returns at least 57 bits from `bit` on.
///
/// # Safety
/// 8 bytes can be read from the byte that contains `bit`.
#[inline(always)]
unsafe fn extra_bits(bits: *const u8, bit: usize) -> u64 {
    // SAFETY: upheld by the caller.
    unsafe { mem::load64(bits.add(bit >> 3)) >> (bit & 7) }
}

impl Token {
    #[inline(always)]
    fn length(&self, extra: u64) -> usize {
        (extra as u32 & self.length_mask) as usize + self.length_base as usize
    }

    #[inline(always)]
    fn run(&self, extra: u64) -> usize {
        ((extra >> (self.run_shift & 63)) as u32 & self.run_mask) as usize + self.run_base as usize
    }

    /// Returns the new offset, or 0 if the token has none.
    #[inline(always)]
    fn offset(&self, extra: u64) -> usize {
        (((extra << 3) >> (self.offset_shift & 63)) as u32 & self.offset_mask) as usize
    }
}

/// Decodes tokens until the page is nearly full or a run ends too near the page's end, as END's
/// does. With `CHECKED`, also stops when no literals are left. Leaves `at` past [`PAGE_SIZE`] if a
/// token was corrupt.
///
/// # Safety
/// `page` is a writable page, REACH bytes can be read before it, and the cursor belongs to
/// `decoder`'s `input`. The cursor's streams can be read up to the tokens that fill the page
/// reach; with `CHECKED`, literals SLACK bytes past their end.
#[inline(always)]
unsafe fn fast<const KIND: usize, const CHECKED: bool, const REACH: usize>(
    decoder: *const Decoder,
    cursor: &mut Cursor,
    page: *mut u8,
) {
    let copied = const { if KIND == Kind::Words as usize { 16 } else { 32 } };
    let Cursor { mut at, mut literals, literals_end, mut token, bits, mut bit, mut last, mut before } = *cursor;
    // SAFETY: the caller upholds the reads of the streams; less than 64 bytes are read past a run,
    // and 48 after `CHECKED` found literals left. For the page, in each round:
    // - `at + 16 + copied <= PAGE_SIZE` at its start. 16 literals fit, and with a run of at most
    //   16, copied bytes of the match after it.
    // - With a run of at most 48, `at + 48 + 32 <= PAGE_SIZE`: 48 literals fit, and copied bytes
    //   after them.
    // - With a longer run, `at + run + 64 + copied <= PAGE_SIZE`: the run fits, rounded up, and
    //   copied bytes after it.
    // - A match begins at `op`, and `1 <= offset <= at + REACH` there, so its source is in the page
    //   or before it, and before `op`.
    // - More than copied bytes of a match are only written after a check that its end, and 64 bytes
    //   after it, are in the page.
    unsafe {
        while at <= PAGE_SIZE - 16 - copied {
            let t = &(*decoder).tokens[KIND][usize::from(*token)];
            let extra = extra_bits((&raw const (*decoder).input).cast::<u8>().add(FRONT), bit);
            if CHECKED && literals > literals_end {
                break;
            }
            mem::copy::<16>(literals, page.add(at));
            let run = t.run(extra);
            if run > 16 {
                if run > 48 {
                    if at + run + 64 + copied > PAGE_SIZE || CHECKED && run > literals_end.addr() - literals.addr() {
                        break;
                    }
                    let mut done = 16;
                    while done < run {
                        mem::copy::<32>(literals.add(done), page.add(at + done));
                        mem::copy::<32>(literals.add(done + 32), page.add(at + done + 32));
                        done += 64;
                    }
                } else {
                    if at > PAGE_SIZE - 48 - 32 {
                        break;
                    }
                    mem::copy::<32>(literals.add(16), page.add(at + 16));
                }
            }
            at += run;
            literals = literals.add(run);
            token = token.sub(1);
            let source = t.source;
            let offset = select_unpredictable(source == Source::Before as u8, before, t.offset(extra));
            let offset = select_unpredictable(source == Source::Last as u8, last, offset);
            before = select_unpredictable(source == Source::Last as u8, before, last);
            last = offset;
            bit += usize::from(t.bits);
            if offset.wrapping_sub(1) >= at + REACH {
                at = usize::MAX;
                break;
            }
            let length = t.length(extra);
            let op = page.add(at);
            at += length;
            if offset < 8 {
                if at <= PAGE_SIZE {
                    copy_match(op, offset, length, PAGE_SIZE - at);
                }
                continue;
            }
            let src = op.sub(offset);
            mem::copy::<8>(src, op);
            mem::copy::<8>(src.add(8), op.add(8));
            if copied == 32 {
                mem::copy::<8>(src.add(16), op.add(16));
                mem::copy::<8>(src.add(24), op.add(24));
            }
            if length > copied {
                if at > PAGE_SIZE - 64 {
                    if at <= PAGE_SIZE {
                        copy_match(op, offset, length, PAGE_SIZE - at);
                    }
                    continue;
                }
                if copied == 16 {
                    mem::copy::<8>(src.add(16), op.add(16));
                    mem::copy::<8>(src.add(24), op.add(24));
                }
                mem::copy::<8>(src.add(32), op.add(32));
                mem::copy::<8>(src.add(40), op.add(40));
                mem::copy::<8>(src.add(48), op.add(48));
                mem::copy::<8>(src.add(56), op.add(56));
                if length > 64 {
                    if offset < 32 {
                        extend_match(op, offset, length);
                        continue;
                    }
                    mem::copy::<32>(src.add(64), op.add(64));
                    mem::copy::<32>(src.add(96), op.add(96));
                    let mut done = 128;
                    while done < length {
                        mem::copy::<32>(src.add(done), op.add(done));
                        done += 32;
                    }
                }
            }
        }
    }
    *cursor = Cursor { at, literals, literals_end, token, bits, bit, last, before };
}

/// The result of [`careful`].
enum Step {
    Token,
    End,
    Corrupt,
}

/// Decodes a single token of any kind, with every bound checked.
///
/// # Safety
/// As for [`fast`]; the page is not full.
#[cold]
#[inline(never)]
unsafe fn careful<const REACH: usize>(decoder: *const Decoder, kind: Kind, cursor: &mut Cursor, page: *mut u8) -> Step {
    // SAFETY: the caller upholds the reads of the streams. `at + run + length <= PAGE_SIZE`, and `1
    // <= offset <= at + REACH` where the match begins.
    unsafe {
        let token = *cursor.token;
        cursor.token = cursor.token.sub(1);
        if token == END {
            return Step::End;
        }
        let t = &(*decoder).tokens[kind as usize][usize::from(token)];
        let extra = extra_bits(cursor.bits, cursor.bit);
        cursor.bit += usize::from(t.bits);
        let (run, length) = (t.run(extra), t.length(extra));
        let offset = match t.source {
            source if source == Source::Last as u8 => cursor.last,
            source if source == Source::Before as u8 => cursor.before,
            _ => t.offset(extra),
        };
        if t.source != Source::Last as u8 {
            cursor.before = cursor.last;
        }
        cursor.last = offset;
        let literals_left = cursor.literals_end.addr().saturating_sub(cursor.literals.addr());
        if run > literals_left
            || run + length > PAGE_SIZE - cursor.at
            || offset.wrapping_sub(1) >= cursor.at + run + REACH
        {
            return Step::Corrupt;
        }
        if cursor.at + run + 16 <= PAGE_SIZE {
            mem::wild_copy::<16>(cursor.literals, page.add(cursor.at), run);
        } else {
            cursor.literals.copy_to_nonoverlapping(page.add(cursor.at), run);
        }
        cursor.literals = cursor.literals.add(run);
        cursor.at += run + length;
        copy_match(page.add(cursor.at - length), offset, length, PAGE_SIZE - cursor.at);
        Step::Token
    }
}

/// Copies a match of any offset and length to `op`. May overwrite `room` bytes after it.
///
/// # Safety
/// `1 <= offset`; `op - offset` to `op + length + room` is inside one buffer.
#[cold]
#[inline(never)]
unsafe fn copy_match(op: *mut u8, offset: usize, length: usize, room: usize) {
    let mut done = 0;
    // SAFETY: `start_match` writes 32 bytes, which fit in `length + room`; `extend_match` writes
    // less than 32 bytes past the length that it is given; the rest is written to the byte.
    unsafe {
        if room >= 32 {
            start_match(op, offset);
            if length > 32 {
                extend_match(op, offset, length);
            }
            return;
        }
        if length > 64 {
            start_match(op, offset);
            done = length - 32;
            extend_match(op, offset, done);
        }
        if offset >= 8 {
            while done + 8 <= length {
                mem::copy::<8>(op.add(done).sub(offset), op.add(done));
                done += 8;
            }
        }
        while done < length {
            *op.add(done) = *op.add(done).sub(offset);
            done += 1;
        }
    }
}

/// The smallest multiple of an offset below 8 that is at least 8.
static MULTIPLE_FROM_8: [u8; 8] = [0, 8, 8, 9, 8, 10, 12, 14];

/// The largest multiple of an offset below 16 that is at most 16.
static MULTIPLE_TO_16: [u8; 16] = [0, 16, 16, 15, 16, 15, 12, 14, 16, 9, 10, 11, 12, 13, 14, 15];

/// Writes the first 32 bytes of a match.
///
/// # Safety
/// `1 <= offset`; `op - offset` to `op + 32` is inside one buffer.
#[inline(always)]
unsafe fn start_match(op: *mut u8, offset: usize) {
    // SAFETY: upheld by the caller. Each step reads earlier bytes: `back` is a multiple of the
    // offset, at least 8, and at most 8 bytes beyond the offset, which are written by then.
    unsafe {
        let mut back = offset;
        let mut done = 0;
        if offset < 8 {
            while done < 8 {
                *op.add(done) = *op.add(done).sub(offset);
                done += 1;
            }
            back = usize::from(MULTIPLE_FROM_8[offset]);
        }
        while done < 32 {
            mem::copy::<8>(op.add(done).sub(back), op.add(done));
            done += 8;
        }
    }
}

/// Continues a match whose first 32 bytes are written, and writes less than 32 bytes past its end.
///
/// # Safety
/// `1 <= offset`, `32 < length`; `op - offset` to `op + length + 32` is inside one buffer.
#[cold]
#[inline(never)]
unsafe fn extend_match(op: *mut u8, offset: usize, length: usize) {
    let mut done = 32;
    // SAFETY: upheld by the caller; each step begins before the match's end. A step of 32 bytes
    // reads bytes at least 32 before it, a step of 16 bytes at least 16 before it.
    unsafe {
        if offset >= 32 {
            while done < length {
                mem::copy::<32>(op.add(done).sub(offset), op.add(done));
                done += 32;
            }
        } else if offset >= 16 {
            while done < length {
                mem::copy::<16>(op.add(done).sub(offset), op.add(done));
                done += 16;
            }
        } else {
            // The 16 bytes at `op` repeat at every multiple of the offset: keep them in a register
            // instead of reading them back.
            let pattern = op.cast::<[u8; 16]>().read();
            let step = usize::from(MULTIPLE_TO_16[offset]);
            done = step;
            while done < length {
                op.add(done).cast::<[u8; 16]>().write(pattern);
                done += step;
            }
        }
    }
}
