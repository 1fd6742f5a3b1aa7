//! Random forks, snapshots, rollbacks, resizes, limits, images and writes, in process and over NBD,
//! on disks with and without a base, compared with plain arrays.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Seek},
    path::Path,
};

use pagefold_disk::{BlockDevice, Error};
use pagefold_server::{Add, BaseFile, Code, Fork, Manage, Resize, Server, Sockets};
use proptest::{collection::vec, prelude::*};

use crate::{nbd, server};

const PAGE: usize = 4096;
const MOST_PAGES: u64 = 24;

#[derive(Clone, Debug)]
enum Step {
    Write { disk: usize, page: u64, len: usize, fill: u8, nbd: bool },
    Discard { disk: usize, page: u64 },
    Fork { disk: usize },
    Snapshot { disk: usize },
    Rollback { disk: usize },
    Resize { disk: usize, pages: u64 },
    Reset { disk: usize },
    Drop { disk: usize },
    Limit { disk: usize, bytes: Option<u64> },
    Freeze { disk: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let disk = || 0..8_usize;
    prop_oneof![
        6 => (disk(), 0..MOST_PAGES, 1..3 * PAGE, any::<u8>(), any::<bool>())
            .prop_map(|(disk, page, len, fill, nbd)| Step::Write { disk, page, len, fill, nbd }),
        1 => (disk(), 0..MOST_PAGES).prop_map(|(disk, page)| Step::Discard { disk, page }),
        3 => disk().prop_map(|disk| Step::Fork { disk }),
        2 => disk().prop_map(|disk| Step::Snapshot { disk }),
        2 => disk().prop_map(|disk| Step::Rollback { disk }),
        1 => (disk(), 1..=MOST_PAGES).prop_map(|(disk, pages)| Step::Resize { disk, pages }),
        1 => disk().prop_map(|disk| Step::Reset { disk }),
        1 => disk().prop_map(|disk| Step::Drop { disk }),
        1 => (disk(), prop::option::of(8192..65_536_u64)).prop_map(|(disk, bytes)| Step::Limit { disk, bytes }),
        1 => disk().prop_map(|disk| Step::Freeze { disk }),
    ]
}

/// The name of the base, which is read-only.
const BASE: &str = "base";

/// A disk as a plain array.
#[derive(Clone)]
struct Plain {
    bytes: Vec<u8>,
    is_over_base: bool,
}

/// Disks and their snapshots.
type Model = BTreeMap<String, Plain>;

/// Returns the name of a disk that is no snapshot.
fn name(model: &Model, number: usize) -> Option<String> {
    let names: Vec<_> = model.keys().filter(|name| !name.contains('@')).collect();
    (!names.is_empty()).then(|| names[number % names.len()].clone())
}

/// Bytes that do not repeat soon, and differ for each fill.
fn bytes(fill: u8, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 24) as u8 ^ fill).collect()
}

/// Makes the model follow a write that failed: each page has its old or its new content.
fn follow(device: &dyn BlockDevice, content: &mut [u8], at: usize, new: &[u8]) {
    let mut found = vec![0; new.len()];
    device.read(at as u64, &mut found).expect("its content");
    let mut done = 0;
    while done < new.len() {
        let end = new.len().min(done + PAGE - (at + done) % PAGE);
        let (found, old) = (&found[done..end], &mut content[at + done..at + end]);
        assert!(found == &*old || found == &new[done..end], "a page is torn");
        old.copy_from_slice(found);
        done = end;
    }
}

fn apply(server: &Server, socket: &Path, model: &mut Model, number: usize, step: &Step) {
    use Step::{
        Discard, Drop, Fork as ForkStep, Freeze, Limit, Reset, Resize as ResizeStep, Rollback, Snapshot, Write,
    };
    let (Write { disk, .. }
    | Discard { disk, .. }
    | ForkStep { disk }
    | Snapshot { disk }
    | Rollback { disk }
    | ResizeStep { disk, .. }
    | Reset { disk }
    | Drop { disk }
    | Limit { disk, .. }
    | Freeze { disk }) = step;
    let Some(name) = name(model, *disk) else { return };
    let base = model[BASE].bytes.clone();
    let device = server.device(&name).expect("a disk");
    let Plain { bytes: content, is_over_base } = model.get_mut(&name).expect("a disk");
    if name == BASE && !matches!(step, ForkStep { .. } | Freeze { .. }) {
        assert!(matches!(device.write(0, &[1]), Err(Error::ReadOnly)));
        return;
    }
    match *step {
        Write { page, len, fill, nbd, .. } => {
            let at = (page as usize * PAGE + usize::from(fill)).min(content.len() - 1);
            let end = (at + len).min(content.len());
            let new = bytes(fill, end - at);
            let is_done = if nbd {
                match nbd::write(socket, &name, at as u64, &new) {
                    Ok(found) => {
                        assert!(found == new, "what was written is read");
                        true
                    }
                    Err(error) => {
                        assert_eq!(error, 28, "ENOSPC");
                        false
                    }
                }
            } else {
                match device.write(at as u64, &new) {
                    Ok(()) => true,
                    Err(Error::NoSpace) => false,
                    Err(error) => panic!("{error}"),
                }
            };
            if is_done {
                content[at..end].copy_from_slice(&new);
            } else {
                follow(&device, content, at, &new);
            }
        }
        Discard { page, .. } => {
            let at = (page as usize * PAGE).min(content.len() - PAGE);
            match device.discard(at as u64, PAGE as u64) {
                Ok(()) => content[at..at + PAGE].fill(0),
                Err(Error::NoSpace) => follow(&device, content, at, &[0; PAGE]),
                Err(error) => panic!("{error}"),
            }
        }
        ForkStep { .. } => {
            let names = [format!("fork-{number}-a"), format!("fork-{number}-b")];
            server.fork(&Fork::new(&*name, names.clone())).expect("forks");
            let plain = Plain { bytes: content.clone(), is_over_base: *is_over_base };
            model.extend(names.map(|name| (name, plain.clone())));
        }
        Snapshot { .. } => {
            server.snapshot(&name, &number.to_string()).expect("a snapshot");
            let plain = Plain { bytes: content.clone(), is_over_base: *is_over_base };
            model.insert(format!("{name}@{number}"), plain);
        }
        Limit { bytes, .. } => {
            server.limit(Some(&name), bytes).expect("a limit");
        }
        Freeze { .. } => {
            let frozen = server.frozen(&name).expect("an instant");
            let mut file = tempfile::tempfile().expect("a file");
            frozen.write_raw(&file, &mut |_, _| {}).expect("an image");
            let mut found = Vec::new();
            file.rewind().and_then(|()| file.read_to_end(&mut found)).expect("an image");
            assert!(found == *content, "{name}'s image differs");
        }
        Rollback { .. } => {
            let kept = model.keys().find_map(|other| other.strip_prefix(&format!("{name}@")).map(str::to_owned));
            let Some(kept) = kept else {
                let failure = server.rollback(&name, "none", false).expect_err("no snapshot");
                return assert_eq!(failure.code, Code::NoSuchDisk);
            };
            server.rollback(&name, &kept, false).expect("a rollback");
            model.insert(name.clone(), model[&format!("{name}@{kept}")].clone());
        }
        ResizeStep { pages, .. } => {
            let size_bytes = pages * PAGE as u64;
            // A disk beyond its limit may have no room to record what it no longer shares.
            server.limit(Some(&name), None).expect("a limit");
            server.resize(&Resize { name, size_bytes, shrink: true, force: false }).expect("a size");
            content.resize(size_bytes as usize, 0);
        }
        Reset { .. } => {
            server.limit(Some(&name), None).expect("a limit");
            server.reset(&name, false).expect("a reset");
            content.fill(0);
            if *is_over_base {
                let len = base.len().min(content.len());
                content[..len].copy_from_slice(&base[..len]);
            }
        }
        Drop { .. } => {
            server.drop(&name, true, false).expect("a disk");
            model.retain(|other, _| *other != name && !other.starts_with(&format!("{name}@")));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn disks_are_what_arrays_would_be(steps in vec(step(), 1..60)) {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, file) = (folder.path().join("nbd.sock"), folder.path().join("base.raw"));
        let server = server();
        let running = server.listen(Sockets::new().unix(&socket)).expect("a socket").start().expect("a thread");
        let mut model = Model::new();
        for name in ["a", "b"] {
            server.add(&Add::new(name, 8 * PAGE as u64)).expect("a disk");
            model.insert(name.to_owned(), Plain { bytes: vec![0; 8 * PAGE], is_over_base: false });
        }
        let base = bytes(77, 12 * PAGE);
        fs::write(&file, &base).expect("a file");
        server.serve_file(&BaseFile::new(BASE, &file)).expect("a base");
        model.insert(BASE.to_owned(), Plain { bytes: base, is_over_base: true });
        for (number, step) in steps.iter().enumerate() {
            apply(&server, &socket, &mut model, number, step);
        }
        let disks = server.list(pagefold_control::Batch { after: None, most: usize::MAX });
        let names: Vec<_> = disks.iter().map(|disk| &disk.name).collect();
        prop_assert_eq!(names, model.keys().collect::<Vec<_>>());
        for (name, Plain { bytes: content, .. }) in &model {
            let device = server.device(name).expect("a disk");
            prop_assert_eq!(device.size_bytes(), content.len() as u64);
            let mut found = vec![0; content.len()];
            device.read(0, &mut found).expect("its content");
            prop_assert!(found == *content, "{} differs", name);
        }
        for disk in disks.iter().filter(|disk| !disk.name.contains('@')) {
            server.drop(&disk.name, true, false).expect("a disk");
        }
        prop_assert_eq!(server.server().disks, 0);
        drop(running);
    }
}
