//! Another server continues with a mount.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use rustix::io::Errno;

use crate::mounted::{Mounted, PATIENCE, noise};

const DISK_BYTES: u64 = 4 << 20;

/// Programs that read while it pauses get what they would get otherwise, and what was open stays open.
#[test]
fn files_stay_open() {
    let Some(mut mounted) = Mounted::new("files_stay_open") else { return };
    let [disk, gone] = ["disk", "gone"].map(|name| {
        mounted.disk(name, DISK_BYTES);
        mounted.open(name)
    });
    let data = noise(DISK_BYTES as usize, 1);
    disk.write_all_at(&data, 0).expect("room");
    mounted.exports.remove("gone").expect("an export");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4_u64)
            .map(|reader| {
                let (mounted, disk, data, ended) = (&mounted, &disk, &data, &ended);
                let path = mounted.path("disk");
                scope.spawn(move || {
                    let mut back = vec![0; 64 << 10];
                    let mut at = reader << 16;
                    while !ended.load(SeqCst) {
                        disk.read_exact_at(&mut back, at).expect("data");
                        assert!(back == data[at as usize..][..back.len()]);
                        at = (at + (1 << 16)) % DISK_BYTES;
                        File::open(&path).expect("a file");
                    }
                })
            })
            .collect();
        let mut files = mounted.files();
        for _ in 0..50 {
            let (handed, device) = files.pause(PATIENCE).expect("a pause").expect("a mount");
            // What is refused, and what is given up, leaves the mount as it is.
            let wrong = File::open("/dev/null").expect("a file").into();
            Mounted::continued(&mounted.exports, &handed, wrong).expect_err("no device");
            let copy = device.try_clone().expect("a descriptor");
            drop(Mounted::continued(&mounted.exports, &handed, copy).expect("it could continue"));
            files.go_on();
            let (handed, device) = files.pause(PATIENCE).expect("a pause").expect("a mount");
            let next = Mounted::continued(&mounted.exports, &handed, device).expect("it can continue");
            std::mem::replace(&mut *files, next).give_away();
            files.go_on();
        }
        ended.store(true, SeqCst);
        readers.into_iter().for_each(|reader| reader.join().expect("no error"));
    });
    let error = gone.read_at(&mut [0], 0).expect_err("its disk is gone");
    assert_eq!(error.raw_os_error(), Some(Errno::SHUTDOWN.raw_os_error()));
    drop((disk, gone));
    mounted.unmount();
    assert_eq!(fs::read_dir(mounted.path("")).expect("a directory").count(), 0, "it is mounted");
}

#[test]
fn there_is_nothing_to_hand_over_after_a_user_has_unmounted() {
    let Some(mounted) = Mounted::new("there_is_nothing_to_hand_over_after_a_user_has_unmounted") else { return };
    crate::mounted::run(std::process::Command::new("fusermount3").arg("-u").arg(mounted.path("")));
    assert!(mounted.files().pause(PATIENCE).expect("no obstacle").is_none());
}
