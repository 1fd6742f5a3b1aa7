//! The encoder: it finds sequences (literals, then a match), and [`tokens`](super::tokens) writes
//! them.
//!
//! ```text
//! while the page is not covered:
//!     candidate := where the next six bytes were last seen (five in a page of records); remember
//!         that they are here
//!     if three or four bytes repeat at an earlier distance, or six are at the candidate:
//!         record the match and continue behind it
//!     else continue with the next byte, or further on after many misses
//! make tokens and extra bits of all matches
//! code the literals by the palette that contains most of them
//! in a page of words, code the tokens, too
//! if the search found little, or if a sample of the literals repeats four bytes often:
//!     do all of this again with the matches of liblz4, and keep the shorter object
//! ```
//!
//! Deviations from a usual match finder, each with its gain in compression speed
//! (`docs/log/fold.md`):
//!
//! 1. Two loops: one finds matches, the other makes tokens of eight or sixteen matches at a time.
//!    The first has a third of the instructions of a single loop (+5 to +10 % on heaps, +15 % on
//!    average).
//! 2. A repeated distance is a branch of its own. If it matches, the position behind the match does
//!    not depend on the table and the candidate, which take more than twice as long (+4 to +6 % on
//!    heaps).
//! 3. Only one repeated distance is tried at each position. Right behind a match it is the one
//!    before the last, because the last one cannot match there: the match would have been longer.
//!    Everywhere else it is the last one. The position right behind a match has its own code,
//!    because it has no literals before it.
//! 4. Matches at a new distance have six bytes or more. With five, objects are 1.7 % smaller, but
//!    compression and decompression of the additional sequences take 7 % longer. Pages of records
//!    have matches of five: arrays of floats are 6 to 20 % smaller with them, and otherwise larger
//!    than with LZ4. In pages that are not of words, matches at the last distance have four bytes,
//!    not three: 6 % fewer sequences in tables and code for 0.1 % of the bytes.
//! 5. In pages of words, if a position right behind a match begins a word and has no match, the
//!    word's upper bytes are looked up: six at the last distance, seven in a table of words. One
//!    step covers three positions, because words differ in their low bytes (heaps +2 to +25 %,
//!    their decompression up to +9 %, their bytes -4.4 to +2.6 %).
//! 6. The table is small enough to be cleared for each page (4 KiB), so its entries need no check
//!    (+8 %), and the same page always gives the same object.
//! 7. The longer the search finds nothing, the larger its steps (`TRIES`). This also bounds the
//!    time that an incompressible page takes.
//! 8. Where many literals are left and four bytes repeat among them more often than what was found
//!    saves, the page is searched again for the matches that liblz4 takes
//!    ([`liblz4`](super::liblz4)): otherwise it would be up to 28 % larger than with LZ4. Pages
//!    without such repeats pay only for the sample, and pages with few literals not even for that.
//!    A search that finds little is abandoned in favour of the second one, so that noise takes no
//!    longer.
//! 9. Beyond its first 8 bytes, a match is compared 32 or 64 bytes at a time (text +8 %). The first
//!    8 are compared as a word: the next position waits for the length, and a word yields it sooner
//!    than a vector (-5 % on heaps otherwise).
#![allow(unsafe_code)] // Three loads per position, whose bounds are checked once.

use core::hint::select_unpredictable;

use super::{
    Format, Isa,
    compare::{self, Compare},
    fields::{Left, has_fields},
    hashes::{FIELD_HASH_BITS, WORD_HASH_BITS, hash_word},
    kind::kind_of,
    literals::{EMPTY, PALETTE_OF_TOKENS, PALETTES_OF_OTHERS, PALETTES_OF_WORDS, Room, SLACK, room_to_pack},
    shared::Starts,
    tables::{
        CODED_SHIFT, KINDS, Kind, LITERALS_MASK, LONG_HEADER, PALETTE_SHIFT, RECORDS_SHIFT, RUN_MAX, WORDS_SHIFT,
        length_min_new,
    },
    tokens::{Columns, EXTRA_ROOM, Emit, Emitted, TOKENS_ROOM, class_of},
};
use crate::{PAGE_SIZE, Page, mem};

/// Bits of a hash of the bytes of a match at a new offset.
const HASH_BITS: u32 = 11;

/// Positions without a match after which the step to the next one grows by a byte, by [`Kind`].
/// Pages of words need more: arrays of 4-byte floats with few digits would be larger than with LZ4.
/// In pages of fields, steps that divide the size of a record miss its fields.
const TRIES: [usize; KINDS - 1] = [20, 40, 24];

/// If the object of a page of fields has no coded literals and is shorter than this, the abandoned
/// search may give a shorter one, because repeated distances save more there.
const SHORT: usize = 1536;

/// A search of a page that is not of words is abandoned where its step becomes longer than this, if
/// it has found less than one match in [`LEAVE_SHARE`] bytes so far. With a shorter step, it would
/// be abandoned in XML.
const LEAVE_STEP: usize = 4;
const LEAVE_SHARE: usize = 64;

/// Last bytes of a page where no match begins: a search loads eight bytes.
const UNSEARCHED: usize = 8;

/// Bytes before and after the window that [`Compare`] may read.
pub(super) const FRONT: usize = compare::BACK;
pub(super) const BACK: usize = 64 + 8;

/// A sequence found by the encoder.
pub(super) struct Sequence {
    pub(super) class: usize,
    pub(super) run: usize,
    pub(super) length: usize,
}

/// The bytes that are searched: the page behind the `REACH` bytes of the window.
struct Search<'a, const REACH: usize> {
    format: &'a Format,
    starts: &'a Starts,
    window: &'a [u8],
}

/// The match finder's results; the data are in the encoder.
pub(super) struct Matches {
    /// Number of tokens written, including END if it is needed.
    pub(super) tokens: usize,
    /// Length of the extra bits in bytes.
    pub(super) extra: usize,
    pub(super) literals: usize,
    pub(super) sequences: usize,
    /// Bytes by which coded literals are shorter.
    pub(super) saved: usize,
}

pub(super) struct Encoder {
    pub(super) isa: Isa,
    /// By hash, the window position where six bytes (five in a page of records, four in one of
    /// fields) with this hash were last seen; 0 also means none.
    pub(super) seen: [u16; 1 << FIELD_HASH_BITS],
    /// In a page of words, by hash, the position of the last word whose upper seven bytes have this
    /// hash; 0 also means none.
    seen_words: [u16; 1 << WORD_HASH_BITS],
    pub(super) literals: Room,
    packed: Room,
    /// Room for an object that may be longer than another: a page.
    shorter: Box<[u8]>,
    /// The last search: its kind, number of sequences, number of literals.
    found: (Kind, usize, usize),
    pub(super) columns: Columns,
    pub(super) extra: [u8; EXTRA_ROOM],
    /// Filled from the end of the first TOKENS_ROOM bytes.
    pub(super) tokens: [u8; TOKENS_ROOM + SLACK],
}

impl Encoder {
    pub(super) fn new(isa: Isa) -> Box<Self> {
        Box::new(Self {
            isa,
            seen: [0; 1 << FIELD_HASH_BITS],
            seen_words: [0; 1 << WORD_HASH_BITS],
            literals: EMPTY,
            packed: EMPTY,
            shorter: vec![0; PAGE_SIZE].into_boxed_slice(),
            found: (Kind::Others, 0, 0),
            columns: Columns::NEW,
            extra: [0; EXTRA_ROOM],
            tokens: [0; TOKENS_ROOM + SLACK],
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.shorter.len()
    }

    /// Implements [`Stream::compress`](crate::Stream::compress). An object is shorter than a page.
    /// Overwrites the last page of `window`, which precedes its BACK last bytes.
    pub(super) fn encode(&mut self, format: &Format, window: &mut [u8], page: &Page, out: &mut [u8]) -> Option<usize> {
        let kind = kind_of(page);
        if kind == Kind::Words {
            self.seen_words.fill(0);
        }
        self.encode_after::<0>(format, Starts::NONE, window, kind, page, out)
    }

    /// Like [`encode`](Self::encode), but matches may also begin in the `REACH` bytes before the
    /// page, which `starts` indexes.
    pub(super) fn encode_with<const REACH: usize>(
        &mut self,
        format: &Format,
        starts: &Starts,
        window: &mut [u8],
        page: &Page,
        out: &mut [u8],
    ) -> Option<usize> {
        let kind = kind_of(page);
        if kind == Kind::Words {
            self.seen_words.copy_from_slice(&starts.words);
        }
        self.encode_after::<REACH>(format, starts, window, kind, page, out)
    }

    /// Returns the kind of the last search, its sequences and its literals, even if it gave no
    /// object or a longer one.
    pub(super) fn found(&self) -> (Kind, impl Iterator<Item = Sequence>, &[u8]) {
        let Columns { runs, lengths, offsets, befores } = &self.columns;
        let (kind, sequences, literals) = self.found;
        let sequences = (0..sequences).map(|at| {
            let [run, length, last, offset, before] =
                [runs[at], lengths[at], offsets[at], offsets[at + 1], befores[at]].map(usize::from);
            Sequence { class: class_of(run, offset, last, before), run, length }
        });
        (kind, sequences, &self.literals[..literals])
    }

    fn encode_after<const REACH: usize>(
        &mut self,
        format: &Format,
        starts: &Starts,
        window: &mut [u8],
        kind: Kind,
        page: &Page,
        out: &mut [u8],
    ) -> Option<usize> {
        assert!(window.len() == FRONT + REACH + PAGE_SIZE + BACK);
        window[FRONT + REACH..][..PAGE_SIZE].copy_from_slice(page);
        let room = out.len().min(PAGE_SIZE - 1);
        let search = Search::<REACH> { format, starts, window };
        let Some(mut found) = self.find(&search, kind, true) else {
            let mut of_fields = self.find_fields(format, &search.window[REACH..]);
            let len = self.write(format, Kind::Fields, &mut of_fields, &mut out[..room])?;
            if len >= SHORT || of_fields.saved > 0 {
                return Some(len);
            }
            let mut found = self.find(&search, kind, false).unwrap_or(of_fields);
            return Some(self.write_if_shorter(format, kind, &mut found, out, len).unwrap_or(len));
        };
        let len = self.write(format, kind, &mut found, &mut out[..room]);
        let Matches { literals: count, sequences, saved, .. } = found;
        if !has_fields(
            self.isa,
            &Left { kind, literals: &self.literals, count, sequences, saved },
            &mut self.seen_words,
        ) {
            return len;
        }
        let mut found = self.find_fields(format, &search.window[REACH..]);
        self.write_if_shorter(format, Kind::Fields, &mut found, out, len.unwrap_or(room + 1)).or(len)
    }

    /// Returns the length of the object of the page in `window` as one of fields, which it writes to
    /// `out`.
    #[cfg(test)]
    pub(super) fn encode_of_fields(&mut self, format: &Format, window: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut found = self.find_fields(format, window);
        self.write(format, Kind::Fields, &mut found, &mut out[..PAGE_SIZE - 1])
    }

    /// Writes an object of the found matches to `out`, if it is shorter than `len`, and completes
    /// `found`.
    fn write_if_shorter(
        &mut self,
        format: &Format,
        kind: Kind,
        found: &mut Matches,
        out: &mut [u8],
        len: usize,
    ) -> Option<usize> {
        let mut shorter = core::mem::take(&mut self.shorter);
        let len = self.write(format, kind, found, &mut shorter[..len - 1]);
        if let Some(len) = len {
            out[..len].copy_from_slice(&shorter[..len]);
        }
        self.shorter = shorter;
        len
    }

    /// Writes an object of the found matches to `out`, if it fits, and completes `found`.
    fn write(&mut self, format: &Format, kind: Kind, found: &mut Matches, out: &mut [u8]) -> Option<usize> {
        self.found = (kind, found.sequences, found.literals);
        if found.literals > LITERALS_MASK {
            return None;
        }
        let literals = found.literals;
        let palette = match kind {
            Kind::Others | Kind::Fields => format.palettes.choose(&self.literals[..literals], PALETTES_OF_OTHERS),
            Kind::Words => format.palettes.choose(&self.literals[..literals], PALETTES_OF_WORDS),
            Kind::Records => 0,
        };
        let room = out.len();
        let (header, mut left) = out.split_first_chunk_mut::<2>()?;
        let second = match kind {
            Kind::Others | Kind::Words => None,
            Kind::Records | Kind::Fields => Some(left.split_off_first_mut()?),
        };
        let mut rest = Rest { left, isa: self.isa, format, spare: &mut self.packed, last: 0 };
        let tokens = &self.tokens[TOKENS_ROOM - found.tokens..];
        // Whether the object fits does not matter for `found`.
        let mut fits = Some(());
        if kind == Kind::Words {
            let (tokens_header, left) = core::mem::take(&mut rest.left).split_first_chunk_mut::<2>()?;
            rest.left = left;
            fits = rest.put_coded(PALETTE_OF_TOKENS, tokens, found.tokens).map(|is_coded| {
                *tokens_header = ((found.tokens | usize::from(is_coded) << CODED_SHIFT) as u16).to_le_bytes();
            });
        }
        let is_coded = if palette == 0 {
            rest.put(&self.literals[..literals])?;
            false
        } else {
            let put = rest.put_coded(palette, &self.literals, literals);
            found.saved = literals - rest.last;
            put?
        };
        fits?;
        let palette = if is_coded { palette } else { 0 };
        let upper = match kind {
            Kind::Others => palette << PALETTE_SHIFT,
            Kind::Words => palette << PALETTE_SHIFT | 1 << WORDS_SHIFT,
            Kind::Records | Kind::Fields => LONG_HEADER,
        };
        if let Some(second) = second {
            *second = palette as u8 | u8::from(kind == Kind::Records) << RECORDS_SHIFT;
        }
        *header = ((literals | upper) as u16).to_le_bytes();
        rest.put(&self.extra[..found.extra])?;
        if kind != Kind::Words {
            rest.put(&tokens[..found.tokens])?;
        }
        Some(room - rest.left.len())
    }

    /// Searches a page of a kind other than [`Kind::Fields`]. If `leaves`, returns `None` where it
    /// finds little.
    fn find<const REACH: usize>(&mut self, search: &Search<'_, REACH>, kind: Kind, leaves: bool) -> Option<Matches> {
        match self.isa {
            // SAFETY: the stream detected these CPU features when it chose the build.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { self.find_avx2(search, kind, leaves) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { self.find_avx512(search, kind, leaves) },
            Isa::Portable => self.find_portable(search, kind, leaves),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt,avx2")]
    #[inline(never)]
    fn find_avx2<const REACH: usize>(
        &mut self,
        search: &Search<'_, REACH>,
        kind: Kind,
        leaves: bool,
    ) -> Option<Matches> {
        self.find_by::<compare::Avx2, REACH>(search, kind, leaves)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt,avx2,avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline(never)]
    fn find_avx512<const REACH: usize>(
        &mut self,
        search: &Search<'_, REACH>,
        kind: Kind,
        leaves: bool,
    ) -> Option<Matches> {
        self.find_by::<compare::Avx512, REACH>(search, kind, leaves)
    }

    #[inline(never)]
    fn find_portable<const REACH: usize>(
        &mut self,
        search: &Search<'_, REACH>,
        kind: Kind,
        leaves: bool,
    ) -> Option<Matches> {
        self.find_by::<compare::Words, REACH>(search, kind, leaves)
    }

    #[inline(always)]
    fn find_by<C: Compare + Emit, const REACH: usize>(
        &mut self,
        search: &Search<'_, REACH>,
        kind: Kind,
        leaves: bool,
    ) -> Option<Matches> {
        match kind {
            Kind::Others | Kind::Fields => self.find_matches::<C, { Kind::Others as usize }, REACH>(search, leaves),
            Kind::Words => self.find_matches::<C, { Kind::Words as usize }, REACH>(search, leaves),
            Kind::Records => self.find_matches::<C, { Kind::Records as usize }, REACH>(search, leaves),
        }
    }

    /// Fills `literals`, `extra` and `tokens` from the page behind the `REACH` bytes of the window.
    /// In a page of words (`WORDS`) `seen_words` must be all zero or hold positions in these bytes.
    #[inline(always)]
    fn find_matches<C: Compare + Emit, const KIND: usize, const REACH: usize>(
        &mut self,
        &Search { format, starts, window }: &Search<'_, REACH>,
        mut leaves: bool,
    ) -> Option<Matches> {
        mem::clear(&mut self.seen[..1 << HASH_BITS]);
        let searched = const { REACH + PAGE_SIZE - UNSEARCHED };
        let page_end = const { REACH + PAGE_SIZE };
        let is_of_words = const { KIND == Kind::Words as usize };
        let unused = const { unused(KIND) };
        let last_bytes = if is_of_words { 0xFF_FFFF } else { u32::MAX };
        // The window's start, from which positions are counted. The pointer is derived from the
        // whole slice because bytes before the window are read, too.
        let page = window.as_ptr().wrapping_add(FRONT);
        let seen = self.seen.as_mut_ptr();
        let seen_words = self.seen_words.as_mut_ptr();
        let literals = self.literals.as_mut_ptr();
        let mut literals_end = literals;
        let runs = self.columns.runs.as_mut_ptr();
        let lengths = self.columns.lengths.as_mut_ptr();
        let offsets = self.columns.offsets.as_mut_ptr();
        let befores = self.columns.befores.as_mut_ptr();
        let mut at = 0;
        let mut anchor = REACH;
        let mut pos = REACH + 1;
        let (mut last, mut before) = (1, 1);
        // SAFETY: for each load and store here:
        // - `1 <= pos < searched`, and the window has FRONT bytes before and BACK bytes after it;
        // - an entry of `seen` is 0, a position before the page, an earlier `pos`, or two bytes
        //   before one, so it is below `pos`; an entry of `seen_words` is 0, a position before the
        //   page or an earlier `pos`; a hash has HASH_BITS bits, a word's WORD_HASH_BITS;
        // - `last` and `before` are between 1 and `pos`: they start as 1 and then are offsets, which
        //   are at most the `pos` at which they were found;
        // - a match begins at `start`, `anchor <= start`, and its source at 0 or later: `pos -
        //   start` is at most `candidate`;
        // - all runs together are at most a page, and copying them overshoots by less than 32 bytes
        //   at both ends;
        // - every sequence covers LENGTH_MIN bytes of the page or more, and only the last one, which
        //   ends the loop, may reach past its end: the columns have room for all.
        unsafe {
            *offsets = 1;
            let put = |at: usize, run: usize, length: usize, offset: usize, before: usize| {
                *runs.add(at) = run as u16;
                *lengths.add(at) = length as u16;
                *offsets.add(at + 1) = offset as u16;
                *befores.add(at) = before as u16;
            };
            'page: loop {
                // Here, the last match ended before `pos`.
                let (offset, difference, start);
                'found: {
                    // `last_page.add(pos)` is the position at the last distance. (Otherwise the
                    // compiler subtracts at each position.)
                    let last_page = page.wrapping_sub(last);
                    let mut step = 1;
                    let mut stop = (pos + TRIES[KIND]).min(searched);
                    loop {
                        while pos < stop {
                            let (here, candidate) = look_up::<KIND>(seen, page, pos);
                            let at_last = here ^ mem::load64(last_page.add(pos));
                            if at_last as u32 & last_bytes == 0 {
                                // A longer run needs a class with matches of LENGTH_MIN_NEW bytes
                                // or more.
                                if pos - anchor > RUN_MAX && at_last << unused != 0 {
                                    pos += 1;
                                    continue;
                                }
                                (offset, difference, start) = (last, at_last, pos);
                                break 'found;
                            }
                            if mem::load32(page.add(candidate)) == here as u32 {
                                let at_candidate = here ^ mem::load64(page.add(candidate));
                                if at_candidate << unused == 0 {
                                    start = begin::<C>(page, pos, candidate, anchor);
                                    (offset, difference) = (pos - candidate, at_candidate);
                                    break 'found;
                                }
                            }
                            if REACH > 0
                                && let Some(candidate) = find_shared(starts, page, here)
                            {
                                start = begin::<C>(page, pos, candidate, anchor);
                                (offset, difference) = (pos - candidate, 0);
                                break 'found;
                            }
                            pos += step;
                        }
                        if pos >= searched {
                            break 'page;
                        }
                        step += 1;
                        // The search of fields does not look into a dictionary.
                        if REACH == 0 && leaves && !is_of_words && step > LEAVE_STEP && LEAVE_SHARE * at <= pos {
                            // Text has few long matches, too, but its literals can be coded.
                            if format.palettes.choose(&window[FRONT..FRONT + pos], PALETTES_OF_OTHERS) == 0 {
                                return None;
                            }
                            leaves = false;
                        }
                        stop = (pos + TRIES[KIND] * step).min(searched);
                    }
                }
                {
                    let length = length_of::<C>(page, pos, offset, difference, page_end);
                    let run = start - anchor;
                    mem::copy::<32>(page.add(anchor), literals_end);
                    if run > 32 {
                        mem::wild_copy::<32>(page.add(anchor + 32), literals_end.add(32), run - 32);
                    }
                    literals_end = literals_end.add(run);
                    let end = pos + length;
                    pos = end;
                    put(at, run, end - start, offset, before);
                    before = select_unpredictable(offset == last && run <= RUN_MAX, before, last);
                    last = offset;
                    at += 1;
                    anchor = end;
                }
                // Right behind matches.
                loop {
                    if pos >= searched {
                        break 'page;
                    }
                    if !is_of_words {
                        look_up::<KIND>(seen, page, pos - 2);
                    }
                    let (here, candidate) = look_up::<KIND>(seen, page, pos);
                    let at_before = here ^ mem::load64(page.add(pos - before));
                    let (offset, difference);
                    if at_before as u32 & 0xFF_FFFF == 0 {
                        (offset, difference) = (before, at_before);
                    } else {
                        let at_candidate = here ^ mem::load64(page.add(candidate));
                        if at_candidate << unused == 0 {
                            (offset, difference) = (pos - candidate, at_candidate);
                        } else if REACH > 0
                            && let Some(candidate) = find_shared(starts, page, here)
                        {
                            (offset, difference) = (pos - candidate, 0);
                        } else {
                            if is_of_words && pos.is_multiple_of(8) {
                                let slot = seen_words.add(hash_word(here));
                                let candidate = usize::from(*slot);
                                *slot = pos as u16;
                                let at_last = here ^ mem::load64(page.add(pos - last));
                                let at_candidate = here ^ mem::load64(page.add(candidate));
                                // A match of upper bytes at `last` follows literals; otherwise the
                                // match before would have been longer.
                                let upper = if at_last >> 16 == 0 {
                                    Some((last, at_last))
                                } else if at_candidate >> 8 == 0 {
                                    Some((pos - candidate, at_candidate))
                                } else {
                                    None
                                };
                                if let Some((offset, difference)) = upper {
                                    let run = 8 - difference.leading_zeros() as usize / 8;
                                    let end = pos + common_length::<C>(page, pos, offset, page_end);
                                    mem::store64(literals_end, here);
                                    literals_end = literals_end.add(run);
                                    put(at, run, end - pos - run, offset, before);
                                    before = select_unpredictable(offset == last, before, last);
                                    last = offset;
                                    at += 1;
                                    pos = end;
                                    anchor = end;
                                    continue;
                                }
                            }
                            pos += 1;
                            break;
                        }
                    }
                    let length = length_of::<C>(page, pos, offset, difference, page_end);
                    put(at, 0, length, offset, before);
                    before = last;
                    last = offset;
                    at += 1;
                    pos += length;
                    anchor = pos;
                }
            }
            if anchor > page_end {
                *lengths.add(at - 1) -= (anchor - page_end) as u16;
                anchor = page_end;
            }
            page.add(anchor).copy_to_nonoverlapping(literals_end, page_end - anchor);
        }
        let literals = literals_end.addr() - literals.addr() + page_end - anchor;
        // SAFETY: the first `at` sequences are the page's, and the caller chose `C` for this CPU.
        let Emitted { tokens, extra } = unsafe {
            let end = !is_of_words && anchor < page_end;
            let tokens = self.tokens.first_chunk_mut().expect("TOKENS_ROOM bytes");
            C::emit(&self.columns, &format.tokens[KIND].codes, at, end, tokens, &mut self.extra)
        };
        Some(Matches { tokens, extra, literals, sequences: at, saved: 0 })
    }
}

/// The rest of an object, which is not written yet.
struct Rest<'a> {
    left: &'a mut [u8],
    isa: Isa,
    format: &'a Format,
    /// For coded literals that may not fit.
    spare: &'a mut Room,
    /// Length of what [`put_coded`](Self::put_coded) put last, even if it did not fit.
    last: usize,
}

impl Rest<'_> {
    /// Returns `None` if the bytes do not fit.
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let (front, left) = core::mem::take(&mut self.left).split_at_mut_checked(bytes.len())?;
        front.copy_from_slice(bytes);
        self.left = left;
        Some(())
    }

    /// Puts the first `count` of `literals`, after which there are [`SLACK`] bytes. They are coded
    /// by a palette, numbered from 1, if that makes them shorter. Returns whether they are, or `None` if
    /// they do not fit.
    fn put_coded(&mut self, palette: usize, literals: &[u8], count: usize) -> Option<bool> {
        let fits = self.left.len() >= room_to_pack(count);
        let to = if fits { &mut *self.left } else { &mut self.spare[..] };
        let len = self.format.palettes.pack(self.isa, palette, literals, count, to);
        self.last = len.min(count);
        if len >= count {
            self.put(&literals[..count])?;
            return Some(false);
        }
        if !fits {
            self.left.get_mut(..len)?.copy_from_slice(&self.spare[..len]);
        }
        self.left = core::mem::take(&mut self.left).split_at_mut(len).1;
        Some(true)
    }
}

/// Returns how many bits of eight bytes a match at a new offset need not include.
const fn unused(kind: usize) -> u32 {
    64 - 8 * length_min_new(kind) as u32
}

/// Returns the eight bytes at `pos`, and the last position of those of them that a match at a new
/// offset includes. Records `pos` as their position.
///
/// # Safety
/// 8 bytes can be read from `pos`, and `seen` has a place for each hash.
#[inline(always)]
unsafe fn look_up<const KIND: usize>(seen: *mut u16, page: *const u8, pos: usize) -> (u64, usize) {
    // SAFETY: the caller lets 8 bytes be read; a hash has HASH_BITS bits.
    unsafe {
        let here = mem::load64(page.add(pos));
        // By the golden ratio.
        let hash = (here << const { unused(KIND) }).wrapping_mul(0x9E37_79B1_85EB_CA87);
        let slot = seen.add((hash >> (64 - HASH_BITS)) as usize);
        (here, usize::from(slot.replace(pos as u16)))
    }
}

/// Extends a match of `pos` with `candidate` backwards, at most to `anchor`, and returns its start.
///
/// # Safety
/// That of [`Compare::backward`].
#[inline(always)]
pub(super) unsafe fn begin<C: Compare>(page: *const u8, pos: usize, candidate: usize, anchor: usize) -> usize {
    // SAFETY: upheld by the caller.
    let back = unsafe {
        let equal = mem::load64(page.add(pos).sub(8)) ^ mem::load64(page.add(candidate).sub(8));
        if equal == 0 { C::backward(page.add(pos), pos - candidate) } else { equal.leading_zeros() as usize / 8 }
    };
    pos - back.min(pos - anchor).min(candidate)
}

/// Returns a position in the dictionary of the bytes of `here`.
///
/// # Safety
/// `window` can be read 8 bytes beyond its places in `starts`.
#[inline(always)]
unsafe fn find_shared(starts: &Starts, window: *const u8, here: u64) -> Option<usize> {
    let place = starts.probable(here)?;
    // SAFETY: upheld by the caller.
    let is_here = here == unsafe { mem::load64(window.add(place)) };
    is_here.then_some(place)
}

/// Returns how many bytes from `pos` on equal those `offset` bytes back; `difference` is that of the
/// first eight.
///
/// # Safety
/// That of [`common_length`].
#[inline(always)]
pub(super) unsafe fn length_of<C: Compare>(
    page: *const u8,
    pos: usize,
    offset: usize,
    difference: u64,
    page_end: usize,
) -> usize {
    if difference == 0 {
        // SAFETY: upheld by the caller.
        unsafe { common_length::<C>(page, pos, offset, page_end) }
    } else {
        difference.trailing_zeros() as usize / 8
    }
}

/// Returns how many bytes from `pos` on equal those `offset` bytes back. The first 8 must be equal,
/// or at least those that matter. The result may include bytes past the page's end.
///
/// # Safety
/// That of [`Compare::forward`] for any place of the page from `pos + 8` on.
#[inline(always)]
unsafe fn common_length<C: Compare>(page: *const u8, pos: usize, offset: usize, page_end: usize) -> usize {
    // SAFETY: upheld by the caller; what is compared begins in the page.
    unsafe {
        let length = 8 + C::forward(page.add(pos + 8), offset);
        if length < 8 + C::BYTES {
            return length;
        }
        length + C::forward_long(page.add(pos + length), offset, page.add(page_end))
    }
}
