//! A straightforward decoder, written from `docs/fold.md`, against which tests compare all builds.

use super::{
    Format,
    literals::Palette,
    tables::{END, Source},
};
use crate::PAGE_SIZE;

/// Reads bytes from the first up, bits from the lowest up.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, count: usize) -> Option<usize> {
        let mut value = 0;
        for bit in 0..count {
            value |= usize::from(self.bytes.get(self.at / 8)? >> (self.at % 8) & 1) << bit;
            self.at += 1;
        }
        Some(value)
    }

    fn bytes_taken(&self) -> usize {
        self.at.div_ceil(8)
    }
}

/// Returns the literals and the rest of the object.
fn plain_literals<'a>(palettes: &[Palette], header: usize, body: &'a [u8]) -> Option<(Vec<u8>, &'a [u8])> {
    let count = header & 0xFFF;
    let palette = header >> 13;
    if palette == 0 {
        let (literals, rest) = body.split_at_checked(count)?;
        return Some((literals.to_vec(), rest));
    }
    let palette = &palettes[palette - 1];
    let (bits, mut rest) = body.split_at_checked(count.div_ceil(8))?;
    let bits: Vec<bool> = bits.iter().flat_map(|byte| (0..8).map(move |at| byte >> at & 1 == 1)).collect();
    if bits[count..].contains(&true) {
        return None;
    }
    let mut literals = Vec::new();
    for group in bits[..count].chunks(64) {
        let rare = group.iter().filter(|&&is_rare| is_rare).count();
        let (halves, after) = rest.split_at_checked((group.len() - rare).div_ceil(2))?;
        let (seconds, after) = after.split_at_checked(rare.div_ceil(8))?;
        let seconds: Vec<bool> = seconds.iter().flat_map(|byte| (0..8).map(move |at| byte >> at & 1 == 1)).collect();
        if seconds[rare..].contains(&true) {
            return None;
        }
        let whole = seconds.iter().filter(|&&is_whole| is_whole).count();
        let (codes, after) = after.split_at_checked((5 * (rare - whole)).div_ceil(8))?;
        let (whole, after) = after.split_at_checked(whole)?;
        rest = after;
        let (mut halves, mut codes) = (Bits { bytes: halves, at: 0 }, Bits { bytes: codes, at: 0 });
        let (mut seconds, mut whole) = (seconds.iter(), whole.iter());
        for &is_rare in group {
            literals.push(if !is_rare {
                palette.first[halves.take(4)?]
            } else if *seconds.next()? {
                *whole.next()?
            } else {
                palette.second[codes.take(5)?]
            });
        }
    }
    Some((literals, rest))
}

/// Decodes `docs/fold.md` bit by bit. Matches may begin in `front`.
pub(super) fn plain_decode(format: &Format, front: &[u8], object: &[u8]) -> Option<Vec<u8>> {
    let (header, body) = object.split_first_chunk::<2>()?;
    let header = usize::from(u16::from_le_bytes(*header));
    if object.len() > PAGE_SIZE {
        return None;
    }
    // Bits 12 to 15, all set: a byte with the palette and, above it, the kind follows.
    let (kind, header, body) = if header >> 12 == 15 {
        let (&second, body) = body.split_first()?;
        let kind = [3, 2].get(usize::from(second >> 3))?;
        (*kind, header & 0xFFF | usize::from(second & 7) << 13, body)
    } else {
        (header >> 12 & 1, header, body)
    };
    let (tokens, body) = if kind == 1 {
        let (count, body) = body.split_first_chunk::<2>()?;
        let count = usize::from(u16::from_le_bytes(*count));
        if count & 0x7FFF > 1366 {
            return None;
        }
        let header = if count < 1 << 15 { count } else { 8 << 13 | count & 0xFFF };
        let (mut tokens, rest) = plain_literals(&format.palettes.values, header, body)?;
        // As if END followed.
        tokens.insert(0, END);
        (Some(tokens), rest)
    } else {
        (None, body)
    };
    let (literals, rest) = plain_literals(&format.palettes.values, header, body)?;
    let said = &format.tokens[kind].decoder;
    let mut literals = literals.iter();
    let tokens = tokens.unwrap_or_else(|| rest.to_vec());
    let mut tokens = tokens.iter().rev();
    let mut bits = Bits { bytes: rest, at: 0 };
    let mut window = front.to_vec();
    let end = front.len() + PAGE_SIZE;
    let (mut last, mut before) = (1, 1);
    let mut has_ended = false;
    while window.len() < end {
        let &token = tokens.next()?;
        if token == END {
            has_ended = true;
            break;
        }
        let t = said[usize::from(token)];
        let length = t.length_base as usize + bits.take(t.length_mask.count_ones() as usize)?;
        let run = t.run_base as usize + bits.take(t.run_mask.count_ones() as usize)?;
        let new = bits.take(t.offset_mask.count_ones() as usize)? << t.offset_mask.trailing_zeros().min(3);
        let source = t.source;
        let offset = match source {
            source if source == Source::Last as u8 => last,
            source if source == Source::Before as u8 => before,
            _ => new,
        };
        if source != Source::Last as u8 {
            (last, before) = (offset, last);
        }
        for _ in 0..run {
            window.push(*literals.next()?);
        }
        if offset == 0 || offset > window.len() || window.len() + length > end {
            return None;
        }
        for _ in 0..length {
            window.push(window[window.len() - offset]);
        }
    }
    window.extend(literals);
    let is_whole = if kind == 1 {
        tokens.len() == usize::from(!has_ended) && bits.bytes_taken() == bits.bytes.len()
    } else {
        bits.bytes_taken() == tokens.len()
    };
    (window.len() == end && is_whole).then(|| window.split_off(front.len()))
}
