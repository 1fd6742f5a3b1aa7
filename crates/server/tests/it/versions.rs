//! Random forks, snapshots, rollbacks, resizes and writes, compared with plain arrays.

use std::collections::BTreeMap;

use pagefold_disk::BlockDevice;
use pagefold_server::{Add, Code, Fork, Manage, Resize, Server};
use proptest::{collection::vec, prelude::*};

use crate::server;

const PAGE: usize = 4096;
const MOST_PAGES: u64 = 24;

#[derive(Clone, Debug)]
enum Step {
    Write { disk: usize, page: u64, len: usize, fill: u8 },
    Discard { disk: usize, page: u64 },
    Fork { disk: usize },
    Snapshot { disk: usize },
    Rollback { disk: usize },
    Resize { disk: usize, pages: u64 },
    Reset { disk: usize },
    Drop { disk: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let disk = || 0..8_usize;
    prop_oneof![
        6 => (disk(), 0..MOST_PAGES, 1..3 * PAGE, any::<u8>())
            .prop_map(|(disk, page, len, fill)| Step::Write { disk, page, len, fill }),
        1 => (disk(), 0..MOST_PAGES).prop_map(|(disk, page)| Step::Discard { disk, page }),
        3 => disk().prop_map(|disk| Step::Fork { disk }),
        2 => disk().prop_map(|disk| Step::Snapshot { disk }),
        2 => disk().prop_map(|disk| Step::Rollback { disk }),
        1 => (disk(), 1..=MOST_PAGES).prop_map(|(disk, pages)| Step::Resize { disk, pages }),
        1 => disk().prop_map(|disk| Step::Reset { disk }),
        1 => disk().prop_map(|disk| Step::Drop { disk }),
    ]
}

/// Disks and their snapshots as plain arrays.
type Model = BTreeMap<String, Vec<u8>>;

/// Returns the name of a disk that is no snapshot.
fn name(model: &Model, number: usize) -> Option<String> {
    let names: Vec<_> = model.keys().filter(|name| !name.contains('@')).collect();
    (!names.is_empty()).then(|| names[number % names.len()].clone())
}

fn apply(server: &Server, model: &mut Model, number: usize, step: &Step) {
    use Step::{Discard, Drop, Fork as ForkStep, Reset, Resize as ResizeStep, Rollback, Snapshot, Write};
    let (Write { disk, .. }
    | Discard { disk, .. }
    | ForkStep { disk }
    | Snapshot { disk }
    | Rollback { disk }
    | ResizeStep { disk, .. }
    | Reset { disk }
    | Drop { disk }) = step;
    let Some(name) = name(model, *disk) else { return };
    let device = server.device(&name).expect("a disk");
    let content = model.get_mut(&name).expect("a disk");
    match *step {
        Write { page, len, fill, .. } => {
            let at = (page as usize * PAGE + usize::from(fill)).min(content.len() - 1);
            let end = (at + len).min(content.len());
            content[at..end].fill(fill);
            device.write(at as u64, &content[at..end]).expect("room");
        }
        Discard { page, .. } => {
            let at = (page as usize * PAGE).min(content.len() - PAGE);
            content[at..at + PAGE].fill(0);
            device.discard(at as u64, PAGE as u64).expect("a discard");
        }
        ForkStep { .. } => {
            let names = [format!("fork-{number}-a"), format!("fork-{number}-b")];
            server.fork(&Fork::new(&*name, names.clone())).expect("forks");
            let content = content.clone();
            model.extend(names.map(|name| (name, content.clone())));
        }
        Snapshot { .. } => {
            server.snapshot(&name, &number.to_string()).expect("a snapshot");
            let content = content.clone();
            model.insert(format!("{name}@{number}"), content);
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
            server.resize(&Resize { name, size_bytes, shrink: true, force: false }).expect("a size");
            content.resize(size_bytes as usize, 0);
        }
        Reset { .. } => {
            server.reset(&name, false).expect("a reset");
            content.fill(0);
        }
        Drop { .. } => {
            server.drop(&name, true, false).expect("a disk");
            model.retain(|other, _| *other != name && !other.starts_with(&format!("{name}@")));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn disks_are_what_arrays_would_be(steps in vec(step(), 1..60)) {
        let server = server();
        let mut model = Model::new();
        for name in ["a", "b"] {
            server.add(&Add::new(name, 8 * PAGE as u64)).expect("a disk");
            model.insert(name.to_owned(), vec![0; 8 * PAGE]);
        }
        for (number, step) in steps.iter().enumerate() {
            apply(&server, &mut model, number, step);
        }
        let disks = server.list(pagefold_control::Batch { after: None, most: usize::MAX });
        let names: Vec<_> = disks.iter().map(|disk| &disk.name).collect();
        prop_assert_eq!(names, model.keys().collect::<Vec<_>>());
        for (name, content) in &model {
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
    }
}
