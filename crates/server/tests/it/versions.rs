//! Random forks, snapshots, rollbacks, resizes, limits, images, reads and writes, in process and over
//! NBD, on disks without a base, over a file, and over a device that is slow, fails, stalls and comes
//! back short, compared with plain arrays.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Seek},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use pagefold_disk::{BlockDevice, Error};
use pagefold_faulty::Faulty;
use pagefold_server::{Add, BaseFile, Code, Fork, FreezeError, Manage, Resize, Server, Sockets};
use proptest::{collection::vec, prelude::*};

use crate::{nbd, server};

const PAGE: usize = 4096;
const MOST_PAGES: u64 = 24;

#[derive(Clone, Debug)]
enum Step {
    Write {
        disk: usize,
        page: u64,
        len: usize,
        fill: u8,
        nbd: bool,
    },
    Read {
        disk: usize,
        page: u64,
        len: usize,
    },
    Discard {
        disk: usize,
        page: u64,
    },
    Fork {
        disk: usize,
    },
    Snapshot {
        disk: usize,
    },
    Rollback {
        disk: usize,
    },
    Resize {
        disk: usize,
        pages: u64,
    },
    Reset {
        disk: usize,
    },
    Drop {
        disk: usize,
    },
    Limit {
        disk: usize,
        bytes: Option<u64>,
    },
    Freeze {
        disk: usize,
    },
    /// Every `each`-th read of the faulty base fails, and the `after`-th from now; 0: none. With
    /// `short`, others come back short.
    Fail {
        disk: usize,
        each: u64,
        after: u64,
        short: bool,
    },
    /// The faulty base stalls while this page of a disk is read.
    Stall {
        disk: usize,
        page: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let disk = || 0..8_usize;
    prop_oneof![
        6 => (disk(), 0..MOST_PAGES, 1..3 * PAGE, any::<u8>(), any::<bool>())
            .prop_map(|(disk, page, len, fill, nbd)| Step::Write { disk, page, len, fill, nbd }),
        6 => (disk(), 0..MOST_PAGES, 1..9 * PAGE).prop_map(|(disk, page, len)| Step::Read { disk, page, len }),
        4 => (disk(), prop_oneof![1 => Just(0), 3 => 1..5_u64], 0..5_u64, any::<bool>())
            .prop_map(|(disk, each, after, short)| Step::Fail { disk, each, after, short }),
        1 => (disk(), 0..MOST_PAGES).prop_map(|(disk, page)| Step::Stall { disk, page }),
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

/// The names of the bases, which are read-only: a file, and a device of this process.
const BASES: [&str; 2] = ["base", "faulty"];

/// A disk as a plain array.
#[derive(Clone)]
struct Plain {
    bytes: Vec<u8>,
    base: Option<&'static str>,
}

/// Disks and their snapshots.
type Model = BTreeMap<String, Plain>;

/// Returns the name of a disk that is not a snapshot.
fn name(model: &Model, number: usize) -> Option<String> {
    let names: Vec<_> = model.keys().filter(|name| !name.contains('@')).collect();
    (!names.is_empty()).then(|| names[number % names.len()].clone())
}

/// Bytes with a long period that differ for each fill.
fn bytes(fill: u8, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 24) as u8 ^ fill).collect()
}

/// A server, and where its clients connect.
struct World {
    server: Server,
    socket: PathBuf,
    faulty: Arc<Faulty>,
}

impl World {
    /// Ends the requested failures of the base.
    fn heal(&self) {
        self.faulty.fail_each(0);
        self.faulty.fail_after(0);
    }
}

/// Makes the model follow a write that failed: each page has its old or its new content.
fn follow(world: &World, device: &dyn BlockDevice, content: &mut [u8], at: usize, new: &[u8]) {
    world.heal();
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

/// Returns the bytes from a page on that a disk has.
fn range(content: &[u8], page: u64, len: usize) -> (usize, usize) {
    let at = (page as usize * PAGE).min(content.len() - 1);
    (at, len.min(content.len() - at))
}

/// While its base stalls, a disk's reader waits, and no other client.
fn stall(World { server, faulty, socket }: &World, model: &Model, name: &str, page: u64) {
    let content = &model[name].bytes;
    let (at, len) = range(content, page, PAGE);
    faulty.set_stall(true);
    thread::scope(|scope| {
        let device = server.device(name).expect("a disk");
        let reader = scope.spawn(move || {
            let mut found = vec![0; len];
            device.read(at as u64, &mut found).map(|()| found)
        });
        // It may not need the base.
        while faulty.stalled() == 0 && !reader.is_finished() {
            thread::sleep(Duration::from_micros(50));
        }
        server.list(pagefold_control::Batch { after: None, most: usize::MAX });
        server.add(&Add::new("other", 4096)).expect("a disk");
        assert_eq!(nbd::write(socket, "other", 0, &[8; PAGE]), Ok(vec![8; PAGE]));
        server.fork(&Fork::new(name, ["meantime"])).expect("a fork");
        for name in ["other", "meantime"] {
            server.drop(name, false, true).expect("a disk");
        }
        faulty.set_stall(false);
        match reader.join().expect("no panic") {
            Ok(found) => assert!(found == content[at..at + len], "{name} differs at {at}"),
            Err(error) => assert!(error.to_string().contains("damaged"), "{error}"),
        }
    });
}

fn apply(world: &World, model: &mut Model, number: usize, step: &Step) {
    use Step::{
        Discard, Drop, Fail, Fork as ForkStep, Freeze, Limit, Read as ReadStep, Reset, Resize as ResizeStep, Rollback,
        Snapshot, Stall, Write,
    };
    let World { server, socket, faulty } = world;
    let (Write { disk, .. }
    | ReadStep { disk, .. }
    | Fail { disk, .. }
    | Stall { disk, .. }
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
    let below = model[&name].base.map(|base| model[base].bytes.clone());
    let failures = faulty.failures();
    let has_failed = || faulty.failures() > failures;
    if let Stall { page, .. } = *step {
        return stall(world, model, &name, page);
    }
    let device = server.device(&name).expect("a disk");
    let Plain { bytes: content, base } = model.get_mut(&name).expect("a disk");
    let may_read = matches!(step, ForkStep { .. } | Freeze { .. } | ReadStep { .. } | Fail { .. });
    if BASES.contains(&&*name) && !may_read {
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
                    Err(28) => false,
                    Err(error) => {
                        assert!(error == 5 && has_failed(), "error {error}");
                        false
                    }
                }
            } else {
                match device.write(at as u64, &new) {
                    Ok(()) => true,
                    Err(Error::NoSpace) => false,
                    Err(error) => {
                        assert!(has_failed(), "{error}");
                        false
                    }
                }
            };
            if is_done {
                content[at..end].copy_from_slice(&new);
            } else {
                follow(world, &device, content, at, &new);
            }
        }
        ReadStep { page, len, .. } => {
            let (at, len) = range(content, page, len);
            let mut found = vec![1; len];
            let filled = device.try_read(at as u64, &mut found).expect("a failure is left to a read that waits");
            assert!(found[..filled] == content[at..at + filled], "{filled} bytes of {name} at {at}");
            match device.read(at as u64, &mut found) {
                Ok(()) => assert!(found == content[at..at + len], "{len} bytes of {name} at {at}"),
                Err(error) => assert!(has_failed(), "{error}"),
            }
        }
        Fail { each, after, short, .. } => {
            faulty.fail_each(each);
            faulty.fail_after(after);
            faulty.set_short(short);
        }
        Stall { .. } => {}
        Discard { page, .. } => {
            let at = (page as usize * PAGE).min(content.len() - PAGE);
            match device.discard(at as u64, PAGE as u64) {
                Ok(()) => content[at..at + PAGE].fill(0),
                Err(error) => {
                    assert!(matches!(error, Error::NoSpace) || has_failed(), "{error}");
                    follow(world, &device, content, at, &[0; PAGE]);
                }
            }
        }
        ForkStep { .. } => {
            let names = [format!("fork-{number}-a"), format!("fork-{number}-b")];
            server.fork(&Fork::new(&*name, names.clone())).expect("forks");
            let plain = Plain { bytes: content.clone(), base: *base };
            model.extend(names.map(|name| (name, plain.clone())));
        }
        Snapshot { .. } => {
            server.snapshot(&name, &number.to_string()).expect("a snapshot");
            let plain = Plain { bytes: content.clone(), base: *base };
            model.insert(format!("{name}@{number}"), plain);
        }
        Limit { bytes, .. } => {
            server.limit(Some(&name), bytes).expect("a limit");
        }
        Freeze { .. } => {
            let frozen = server.frozen(&name).expect("an instant");
            let mut file = tempfile::tempfile().expect("a file");
            if let Err(error) = frozen.write_raw(&file, &mut |_, _| {}) {
                assert!(has_failed() && !matches!(error, FreezeError::Refused(_)), "{error}");
                return;
            }
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
            // A disk above its limit may have no room to record pages that it no longer shares.
            server.limit(Some(&name), None).expect("a limit");
            let resize = Resize { name, size_bytes, shrink: true, force: false };
            if let Err(failure) = server.resize(&resize) {
                // The part of the last page that is cut is the base's.
                assert_eq!((failure.code, *base), (Code::Failed, Some(BASES[1])), "{failure}");
                world.heal();
                server.resize(&resize).expect("a size");
            }
            content.resize(size_bytes as usize, 0);
        }
        Reset { .. } => {
            server.limit(Some(&name), None).expect("a limit");
            server.reset(&name, false).expect("a reset");
            content.fill(0);
            if let Some(below) = below {
                let len = below.len().min(content.len());
                content[..len].copy_from_slice(&below[..len]);
            }
        }
        Drop { .. } => {
            server.drop(&name, true, false).expect("a disk");
            model.retain(|other, _| *other != name && !other.starts_with(&format!("{name}@")));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn disks_are_what_arrays_would_be(steps in vec(step(), 1..60)) {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, file) = (folder.path().join("nbd.sock"), folder.path().join("base.raw"));
        let server = server();
        let running = server.listen(Sockets::new().unix(&socket)).expect("a socket").start().expect("a thread");
        let mut model = Model::new();
        for name in ["a", "b"] {
            server.add(&Add::new(name, 8 * PAGE as u64)).expect("a disk");
            model.insert(name.to_owned(), Plain { bytes: vec![0; 8 * PAGE], base: None });
        }
        let base = bytes(77, 12 * PAGE);
        fs::write(&file, &base).expect("a file");
        server.serve_file(&BaseFile::new(BASES[0], &file)).expect("a base");
        let faulty = Arc::new(Faulty::new(bytes(78, 20 * PAGE - 512)).slow(32 << 10));
        server.serve_device(BASES[1], Arc::clone(&faulty) as _).expect("a base");
        for (name, bytes) in BASES.into_iter().zip([base, faulty.bytes().to_vec()]) {
            model.insert(name.to_owned(), Plain { bytes, base: Some(name) });
        }
        let world = World { server: server.clone(), socket, faulty };
        for (number, step) in steps.iter().enumerate() {
            apply(&world, &mut model, number, step);
        }
        world.heal();
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
