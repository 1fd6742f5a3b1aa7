//! Shrinks a failing case.

use pagefold_erofs::{BuildOptions, ClusterCodec, Fragments, Indexes};

use crate::case::{Case, EntryKind, Facts};
use crate::segment::{Segment, Stuff};

/// Removes and simplifies everything in a case that is not needed for it to fail. Tries at most
/// `most_tries` cases.
pub fn shrink(case: &Case, most_tries: usize, fails: &mut dyn FnMut(&Case) -> bool) -> Case {
    let mut smallest = case.clone();
    let mut tries = 0;
    loop {
        let mut candidates = entries(&smallest).chain(options(&smallest)).chain(parts(&smallest));
        let smaller = candidates.find(|candidate| {
            tries += 1;
            tries > most_tries || fails(candidate)
        });
        drop(candidates);
        match smaller {
            Some(candidate) if tries <= most_tries => smallest = candidate,
            _ => return smallest,
        }
    }
}

/// Returns cases without a run of entries, the longest runs first.
fn entries(case: &Case) -> impl Iterator<Item = Case> + '_ {
    let count = case.entries.len();
    let lens = std::iter::successors(Some(count), |len| (*len > 1).then(|| len / 2)).filter(|len| *len > 0);
    lens.flat_map(move |len| (0..count).step_by(len).map(move |from| without(case, from..(from + len).min(count))))
}

/// Returns the case without some entries, everything in them and links to them.
fn without(case: &Case, gone: std::ops::Range<usize>) -> Case {
    let mut places: Vec<Option<usize>> = Vec::with_capacity(case.entries.len());
    let mut kept = Vec::new();
    for (place, entry) in case.entries.iter().enumerate() {
        let mut entry = entry.clone();
        let mut stays = !gone.contains(&place);
        if let Some(directory) = entry.directory {
            stays &= places[directory].is_some();
            entry.directory = places[directory];
        }
        if let EntryKind::Link(to) = &mut entry.kind {
            match places[*to] {
                Some(there) => *to = there,
                None => stays = false,
            }
        }
        places.push(stays.then_some(kept.len()));
        if stays {
            kept.push(entry);
        }
    }
    Case { entries: kept, ..case.clone() }
}

/// Returns cases with one option simplified each.
fn options(case: &Case) -> impl Iterator<Item = Case> + '_ {
    let old = &case.options;
    let mut simpler: Vec<BuildOptions> = Vec::new();
    let mut add = |is: bool, change: &dyn Fn(&mut BuildOptions)| {
        if is {
            let mut options = old.clone();
            change(&mut options);
            simpler.push(options);
        }
    };
    add(!old.hints.is_empty(), &|options| options.hints.clear());
    for place in 0..old.hints.len() {
        add(true, &|options| drop(options.hints.remove(place)));
    }
    add(old.chunk_bytes.is_some(), &|options| options.chunk_bytes = None);
    add(old.chunk_bytes.is_some_and(|bytes| bytes > old.block_bytes), &|options| {
        options.chunk_bytes = Some(options.block_bytes);
    });
    add(!old.xattr_prefixes.is_empty(), &|options| options.xattr_prefixes.clear());
    add(old.dedupe, &|options| options.dedupe = false);
    add(old.ztailpacking, &|options| options.ztailpacking = false);
    add(old.fragments != Fragments::Off, &|options| options.fragments = Fragments::Off);
    add(old.fragments == Fragments::All, &|options| options.fragments = Fragments::Tails);
    add(old.indexes != Indexes::Compact, &|options| options.indexes = Indexes::Compact);
    add(old.pcluster_bytes != old.block_bytes, &|options| options.pcluster_bytes = options.block_bytes);
    add(old.codec.is_some_and(|codec| codec != ClusterCodec::Lz4), &|options| options.codec = Some(ClusterCodec::Lz4));
    simpler.into_iter().map(|options| Case { options, ..case.clone() })
}

/// Returns cases with one entry, or the root, simplified each.
fn parts(case: &Case) -> impl Iterator<Item = Case> + '_ {
    let root = facts(&case.root, 0o755).map(|root| Case { root, ..case.clone() });
    let below = case.entries.iter().enumerate().flat_map(move |(place, entry)| {
        let mut kinds = Vec::new();
        match &entry.kind {
            EntryKind::Regular(segments) => {
                for (number, segment) in segments.iter().enumerate() {
                    let mut fewer = segments.clone();
                    fewer.remove(number);
                    kinds.push(fewer);
                    for simpler in simpler(*segment) {
                        let mut other = segments.clone();
                        other[number] = simpler;
                        kinds.push(other);
                    }
                }
            }
            EntryKind::Symlink(_) | EntryKind::Link(_) => kinds.push(Vec::new()),
            _ => {}
        }
        let kinds = kinds.into_iter().map(EntryKind::Regular).map(|kind| (kind, entry.facts.clone()));
        let usual = if entry.kind == EntryKind::Directory { 0o755 } else { 0o644 };
        let facts = facts(&entry.facts, usual).map(|facts| (entry.kind.clone(), facts));
        let mut moved = case.clone();
        moved.entries[place].directory = None;
        let moved = (entry.directory.is_some()
            && case.entries.iter().all(|other| other.directory.is_some() || other.name != entry.name))
        .then_some(moved);
        kinds
            .chain(facts)
            .map(move |(kind, facts)| {
                let mut other = case.clone();
                other.entries[place].kind = kind;
                other.entries[place].facts = facts;
                other
            })
            .chain(moved)
    });
    root.chain(below)
}

fn simpler(segment: Segment) -> Vec<Segment> {
    let Segment { stuff, from, len } = segment;
    let mut simpler: Vec<_> = [len / 2, len / 4096 * 4096, len / 512 * 512, len - len / 8, len.saturating_sub(1)]
        .into_iter()
        .filter(|shorter| *shorter < len)
        .map(|len| Segment { len, ..segment })
        .collect();
    if from > 0 {
        simpler.push(Segment { from: 0, ..segment });
    }
    if stuff != Stuff::Zeros {
        simpler.push(Segment { stuff: Stuff::Zeros, from: 0, len });
    }
    simpler
}

fn facts(old: &Facts, permissions: u16) -> impl Iterator<Item = Facts> + use<> {
    let usual = Facts { permissions, ..Facts::default() };
    let mut simpler = Vec::new();
    if *old != usual {
        simpler.push(usual.clone());
        simpler.push(Facts { xattrs: Vec::new(), ..old.clone() });
        simpler.push(Facts { xattrs: old.xattrs.clone(), ..usual });
        for place in 0..old.xattrs.len().min(8) {
            let mut fewer = old.clone();
            fewer.xattrs.remove(place);
            simpler.push(fewer);
            let mut shorter = old.clone();
            let len = shorter.xattrs[place].value.len();
            shorter.xattrs[place].value.truncate(len / 2);
            simpler.push(shorter);
            let mut shorter = old.clone();
            shorter.xattrs[place].value.truncate(len.saturating_sub(1));
            simpler.push(shorter);
        }
    }
    simpler.retain(|facts| facts != old);
    simpler.into_iter()
}
