//! The command under a clock that advances only when it is read, so the results do not depend on
//! the machine's speed.

use std::{collections::HashSet, fs, os::unix::fs::FileExt, path::Path};

use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};
use pagefold_erofs::{Content, NodeKind, build};
use tempfile::TempDir;

use super::*;
use crate::advise::{
    costs::{empty_tree, memory_file, node},
    images::options,
    stratum::UNIT_BYTES,
};

/// Times of one step: from the end of the first phase after one step, to time for everything.
const STEPS_MS: [u64; 6] = [2500, 900, 400, 150, 60, 3];

/// How often phases ask after their ends: each of them, its threads and choices once.
const ASKED_LATE: u32 = 100;

fn args(path: &Path) -> Args {
    Args {
        path: Some(path.to_owned()),
        pid: None,
        memory: Some(1 << 30),
        sample: None,
        json: true,
        one_file_system: false,
    }
}

/// Returns words and noise, with zeros in places.
fn content(len: usize) -> Vec<u8> {
    let (mut state, mut bytes) = (3u64, Vec::new());
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    while bytes.len() < len {
        let end = bytes.len() + (next() % (900 << 10)) as usize;
        let kind = next() % 3;
        while bytes.len() < end {
            match kind {
                0 => bytes.extend(next().to_le_bytes()),
                1 => bytes.extend(format!("line {} of {}\n", next() % 1000, next() % 97).bytes()),
                _ => bytes.resize(end, 0),
            }
        }
    }
    bytes.truncate(len);
    bytes
}

fn image_bytes(path: &Path, codec: &str, cluster: &str) -> f64 {
    let mut tree = empty_tree();
    let size = fs::metadata(path).expect("a file").len();
    let content = Content::Open(std::sync::Arc::new(fs::File::open(path).expect("a file")), path.into());
    tree.add(tree.root(), b"0", node(NodeKind::Regular { content, size })).expect("a file");
    let options = options(codec, cluster).expect("a codec");
    build(&tree, &options, &memory_file().expect("memory")).expect("an image").image_bytes as f64
}

#[test]
fn it_ends_in_time_and_is_wider_rather_than_wrong() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("a disk");
    let disk = fs::File::create(&path).expect("a file");
    disk.write_all_at(&content(4 << 20), 5 << 20).expect("room");
    disk.set_len(40 << 20).expect("a hole");
    let truth = images::CHOICES.map(|choice| image_bytes(&path, choice.codec, choice.cluster));
    let mut sampled = Vec::new();
    for step in STEPS_MS.map(Duration::from_millis) {
        let clock = Clock::counted(step);
        let (report, verdict) = measure(&args(&path), &clock).expect("a report");
        let in_time = END.div_duration_f64(step) as u32;
        assert!(clock.asked() <= in_time + ASKED_LATE, "{step:?}: {}", clock.asked());
        for (image, truth) in report.images.iter().zip(truth) {
            let (low, high) = (image.bytes.low(), image.bytes.high());
            // Half a block of metadata.
            assert!(low - 2048.0 <= truth && truth <= high + 2048.0, "{step:?}: {truth} {image:?}");
            assert!(image.sampled_bytes <= u64::from(in_time) * UNIT_BYTES, "{step:?}");
        }
        sampled.push(report.images.iter().map(|image| image.sampled_bytes).sum::<u64>());
        let mut text = Vec::new();
        table::write(&mut text, &report, &verdict).expect("memory");
        let text = String::from_utf8(text).expect("text");
        assert!(!text.contains(" 0 ns"), "{text}");
        assert_eq!(text.contains("Sampled completely"), report.is_complete(), "{text}");
        if !report.is_complete() {
            assert!(text.contains(" of data as pages, and "), "{text}");
        }
    }
    assert!(sampled[0] == 0 && sampled.is_sorted(), "{sampled:?}");
}

/// Clusters end in other places where zeros surround short stretches of data.
#[test]
fn short_stretches_of_data_in_a_hole_are_forecast() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("disk.img");
    let disk = fs::File::create(&path).expect("a file");
    disk.set_len(300 << 20).expect("a hole");
    let mut state = 12u64;
    for _ in 0..40 {
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let at = noise() % (299 << 8) * 4096;
        let data: Vec<u8> = (0..64 << 10).map(|_| noise() as u8).collect();
        disk.write_all_at(&data, at).expect("room");
    }
    let (report, verdict) = measure(&args(&path), &Clock::counted(Duration::from_micros(1))).expect("figures");
    for (image, choice) in report.images.iter().zip(images::CHOICES) {
        let truth = image_bytes(&path, choice.codec, choice.cluster);
        assert!((image.bytes.value - truth).abs() <= 4096.0, "{truth} {image:?}");
        assert!(image.bytes.low() <= truth && truth <= image.bytes.high(), "{truth} {image:?}");
    }
    assert!(verdict.commands[0].ends_with(" -o disk.erofs"), "{verdict:?}");
    // Less is sampled if that is asked for.
    let args = Args { sample: Some(1 << 20), ..args(&path) };
    let (report, _) = measure(&args, &Clock::counted(Duration::from_micros(1))).expect("figures");
    assert!(report.images.iter().all(|image| image.bytes.low() < image.bytes.value - 5000.0));
}

/// In regular text, zstd at level 9 finds worse matches than at level 3.
#[test]
fn more_effort_may_take_more() {
    let mut text = String::new();
    for time in (0..).step_by(15).take_while(|time| time / 15 < 500) {
        for cpu in 0..220 {
            let mode = ["idle", "user", "system"][cpu % 3];
            text += &format!("node_cpu_seconds_total{{cpu=\"{}\",instance=\"host-{}:9100\",", cpu % 8, cpu / 8);
            text += &format!("job=\"node\",mode=\"{mode}\"}} {}\n", time + cpu);
        }
    }
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("metrics");
    fs::write(&path, text).expect("room");
    let truth = images::CHOICES.map(|choice| image_bytes(&path, choice.codec, choice.cluster));
    assert!(truth[5] > 1.5 * truth[4], "{truth:?}");
    for sample in [None, Some(2 * UNIT_BYTES), Some(4 * UNIT_BYTES)] {
        let args = Args { sample, ..args(&path) };
        let (report, _) = measure(&args, &Clock::counted(Duration::from_micros(1))).expect("figures");
        for (image, truth) in report.images.iter().zip(truth) {
            let (low, high) = (image.bytes.low(), image.bytes.high());
            // Half a block of metadata.
            assert!(low - 2048.0 <= truth && truth <= high + 2048.0, "{sample:?}: {truth} {low} {high} {image:?}");
            assert!(sample.is_none() || !image.bytes.is_exact(), "{sample:?}: {image:?}");
        }
    }
}

/// In data that repeats with changes, each cluster has all of what repeats once, so that clusters cut
/// short take more. In data that repeats exactly, a cluster covers as much as it may.
#[test]
fn clusters_longer_than_a_unit_are_forecast() {
    let mut state = 7u64;
    let mut next = |count: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % count
    };
    let mut line = |at: usize| format!("{at} {:x} and {:x} of {:x}\n", next(1 << 30), next(1 << 20), next(1 << 10));
    for changed in [0, 16] {
        let mut lines: Vec<_> = (0..400).map(&mut line).collect();
        let mut text = String::new();
        while text.len() < 11 << 20 {
            text += &lines.concat();
            for number in 0..changed {
                let at = (text.len() / 97 + number * 41) % lines.len();
                lines[at] = line(at);
            }
        }
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("a log");
        fs::write(&path, text).expect("room");
        let truth = images::CHOICES.map(|choice| image_bytes(&path, choice.codec, choice.cluster));
        for sample in [None, Some(6 * UNIT_BYTES)] {
            let args = Args { sample, ..args(&path) };
            let (report, _) = measure(&args, &Clock::counted(Duration::from_micros(1))).expect("figures");
            for (image, truth) in report.images.iter().zip(truth) {
                let (low, high) = (image.bytes.low() - 2048.0, image.bytes.high() + 2048.0);
                assert!(low <= truth && truth <= high, "{changed} {sample:?}: {truth} {low} {high} {image:?}");
                assert!(sample.is_some() || high - low < 0.3 * truth + 32_768.0, "{changed}: {truth} {image:?}");
            }
        }
    }
}

/// Content that hardly takes room does not take a share of what the content around it takes, whichever
/// of it lies within one cluster, and wherever their borders are.
#[test]
fn content_that_shrinks_to_nothing_is_forecast_next_to_noise() {
    let text: Vec<u8> =
        (0..).flat_map(|line| format!("line {line} of {}\n", line * 7).into_bytes()).take(30_000).collect();
    let cases = [
        (&b"\xff"[..], 1 << 20, 1 << 20),
        (&b"\xff"[..], 5 << 20, 3 << 20),
        (&text[..], 1_300_000, 700_001),
        // Indexes take as much as the one cluster of 4 MiB.
        (&text[..], 14 << 20, 0),
    ];
    for (repeated, same_bytes, noise_bytes) in cases {
        let (mut state, mut bytes) = (3u64, Vec::new());
        while bytes.len() < 14 << 20 {
            let end = bytes.len() + noise_bytes;
            while bytes.len() < end {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bytes.push((state >> 33) as u8);
            }
            bytes.extend(repeated.iter().cycle().take(same_bytes));
        }
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("a dump");
        fs::write(&path, bytes).expect("room");
        let truth = images::CHOICES.map(|choice| image_bytes(&path, choice.codec, choice.cluster));
        let (report, _) = measure(&args(&path), &Clock::counted(Duration::from_micros(1))).expect("figures");
        for (image, truth) in report.images.iter().zip(truth) {
            let error = (image.bytes.value - truth).abs();
            assert!(error <= 0.015 * truth + 16384.0, "{same_bytes}: {truth} {image:?}");
        }
    }
}

/// The image writer stores such files without their zeros, whichever of them are holes.
#[test]
fn long_files_of_zeros_cost_next_to_nothing() {
    const GIB: u64 = 1 << 30;
    let folder = TempDir::new().expect("a folder");
    let file = |name: &str, len: u64, data: &[(u64, usize)]| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let file = fs::File::create(&path).expect("a file");
        file.set_len(len).expect("a hole");
        let write = |(at, len): &(u64, usize)| file.write_all_at(&content(*len), *at).expect("room");
        data.iter().for_each(write);
        path
    };
    let scattered: Vec<_> = (0..300u64).map(|number| (number * 9 * 1_000_003 / 4096 * 4096, 4096)).collect();
    let cases = [
        ("empty", 4 << 40, vec![]),
        ("a page", 100 * GIB, vec![(12_345 << 12, 4096)]),
        ("just long", GIB, vec![(5 << 20, 3_000_000)]),
        ("just short", GIB - 4096, vec![(5 << 20, 3_000_000)]),
        ("scattered", 20 * GIB, scattered),
    ];
    for (name, len, data) in cases {
        let path = file(name, len, &data);
        let (report, _) = measure(&args(&path), &Clock::counted(Duration::from_micros(1))).expect("figures");
        for image in &report.images {
            let truth = image_bytes(&path, image.codec, image.cluster);
            // Half a block of metadata, and the error of adding up small images.
            let slack = 2048.0 + truth * 0.015;
            let (low, high) = (image.bytes.low() - slack, image.bytes.high() + slack);
            assert!(low <= truth && truth <= high, "{name}: {truth} {low} {high} {image:?}");
            let is_narrow = high <= 1.2 * truth + 50_000.0;
            assert!(is_narrow || name == "just short", "{name}: {truth} {image:?}");
        }
    }
    // Several in a directory.
    for number in 0..3 {
        file(&format!("some/{number}"), 2 * GIB, &[(number << 20, 50_000)]);
    }
    let (report, _) =
        measure(&args(&folder.path().join("some")), &Clock::counted(Duration::from_micros(1))).expect("figures");
    assert!(report.images.iter().all(|image| image.bytes.high() < 400_000.0), "{:?}", report.images);
}

/// Zeros between pieces of a unit are packed with them, so they do not cost more.
#[test]
fn zeros_between_close_pieces_count_once() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("a disk");
    let disk = fs::File::create(&path).expect("a file");
    disk.set_len(64 << 20).expect("a hole");
    let bytes = content(12 << 20);
    let pages = bytes.chunks(4096).filter(|page| page.iter().any(|byte| *byte != 0)).take(1600);
    for (number, page) in (0u64..).zip(pages) {
        disk.write_all_at(page, (number * 10 + number * number % 7) << 12).expect("room");
    }
    let (report, _) = measure(&args(&path), &Clock::counted(Duration::from_micros(1))).expect("figures");
    for image in &report.images {
        let truth = image_bytes(&path, image.codec, image.cluster);
        let error = (image.bytes.value - truth).abs();
        assert!(error <= 2048.0 + truth * 0.035, "{truth} {image:?}");
        assert!(image.bytes.low() - 2048.0 <= truth && truth <= image.bytes.high() + 2048.0, "{truth} {image:?}");
    }
}

/// Their zeros share blocks with the data, and each has an inode.
#[test]
fn forecasts_hold_for_many_files_of_zeros() {
    let piece = |at: u64| (at, 4096);
    // With one piece of data or none, with a longer one; with several; with zeros that are not holes.
    let sparse = |number: u64| {
        let len = (2 << 20) + (number % 4) * (3 << 20);
        let pieces = match number % 10 {
            0..8 => vec![piece(len / 4096 * (number % 7) / 7 * 4096)],
            8 => vec![(number << 12, 300_000)],
            _ => vec![],
        };
        (len, pieces)
    };
    let several = |number: u64| (10 << 20, (0..3).map(|at| piece((number % 90 + at * 900) << 12)).collect());
    let full = |number: u64| (2 << 20, vec![piece(number * 7 % 512 * 4096)]);
    check_many_files("sparse", false, 0.02, sparse);
    check_many_files("several", false, 0.1, several);
    check_many_files("full", true, 0.2, full);
}

/// Compares forecasts for a directory of files with an image of it. A file has a length, and pieces of
/// data between zeros, which are holes unless the file `is_full`. Forecasts are as `close`, as a
/// fraction.
fn check_many_files(name: &str, is_full: bool, close: f64, file_of: impl Fn(u64) -> (u64, Vec<(u64, usize)>)) {
    let folder = TempDir::new().expect("a folder");
    let mut tree = empty_tree();
    for number in 0..120 {
        let path = folder.path().join(number.to_string());
        let file = fs::File::create(&path).expect("a file");
        let (len, pieces) = file_of(number);
        if is_full {
            file.write_all_at(&vec![0; len as usize], 0).expect("room");
        }
        file.set_len(len).expect("a hole");
        for (at, len) in pieces {
            file.write_all_at(&content(len), at).expect("room");
        }
        let content = Content::Open(std::sync::Arc::new(fs::File::open(&path).expect("a file")), path.as_path().into());
        tree.add(tree.root(), number.to_string().as_bytes(), node(NodeKind::Regular { content, size: len }))
            .expect("a file");
    }
    let (report, _) = measure(&args(folder.path()), &Clock::counted(Duration::from_micros(1))).expect("figures");
    for image in &report.images {
        let options = options(image.codec, image.cluster).expect("a codec");
        let truth = build(&tree, &options, &memory_file().expect("memory")).expect("an image").image_bytes as f64;
        let (low, high) = (image.bytes.low() - 8192.0, image.bytes.high() + 8192.0);
        assert!(low <= truth && truth <= high, "{name}: {truth} {low} {high} {image:?}");
        let error = (image.bytes.value - truth).abs();
        assert!(error <= 8192.0 + truth * close, "{name}: {truth} {image:?}");
    }
}

/// Changes are anywhere on a disk, also in its holes, and take parts of its tables.
#[test]
fn forks_of_disks_with_holes_are_forecast() {
    const DISK_BYTES: u64 = 512 << 20;
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("a disk");
    let data = content(12 << 20);
    let file = fs::File::create(&path).expect("a file");
    file.write_all_at(&data, 40 << 20).expect("room");
    file.set_len(DISK_BYTES).expect("a hole");
    let file = fs::File::open(&path).expect("a file");
    let (report, _) = measure(&args(&path), &Clock::counted(Duration::from_micros(1))).expect("figures");
    let forecast = report.forks.expect("forks");
    let mut state = 11u64;
    let mut any_page = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) % (DISK_BYTES / PAGE_BYTES) * PAGE_BYTES
    };
    for (part, figure) in [(100, forecast.of_hundredth_bytes), (10, forecast.of_tenth_bytes)] {
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        let disk = RamDisk::new(&pool, DISK_BYTES).expect("a disk");
        disk.write(40 << 20, &data).expect("room");
        let before = pool.stats().spent_bytes;
        let forks: Vec<_> = (0..8).map(|_| disk.fork().expect("a fork")).collect();
        for fork in &forks {
            let mut changed = HashSet::new();
            while (changed.len() as u64) < DISK_BYTES / PAGE_BYTES / part {
                let (at, mut page) = (any_page(), [0; PAGE_BYTES as usize]);
                file.read_exact_at(&mut page, any_page()).expect("a page");
                if changed.insert(at) {
                    fork.write(at, &page).expect("room");
                }
            }
        }
        let truth = (pool.stats().spent_bytes - before) as f64 / forks.len() as f64;
        let figure = figure.expect("enough time");
        assert!((figure.value - truth).abs() <= 0.1 * truth, "1/{part}: {truth} {figure:?}");
    }
}

#[test]
fn listing_ends_in_time() {
    let folder = TempDir::new().expect("a folder");
    for number in 0..40 {
        let below = folder.path().join(format!("{}", number % 5));
        fs::create_dir_all(&below).expect("a folder");
        fs::write(below.join(number.to_string()), [1; 5000]).expect("room");
        let sparse = fs::File::create(below.join(format!("sparse-{number}"))).expect("a file");
        sparse.set_len(3 << 20).expect("a hole");
    }
    let mut found = Vec::new();
    for step in [700, 100, 20, 1] {
        let clock = Clock::counted(Duration::from_millis(step));
        let ends = [clock.until(LIST_END), clock.until(MAP_END)];
        match walk::look_at(folder.path(), false, ends, 2) {
            Ok(input) => {
                assert_eq!(input.skipped.more, step >= 100, "{step}");
                assert!(step > 1 || input.hole_bytes == 40 * ((3 << 20) - 4096), "{step}: {input:?}");
                found.push(input.names.files);
            }
            Err(error) => assert!(step == 700 && error.to_string().contains("no file in it was found"), "{error}"),
        }
    }
    assert!(found.is_sorted() && found.last() == Some(&80), "{found:?}");
}

#[test]
fn figures_of_a_part_of_the_files_have_no_upper_bound() {
    let folder = TempDir::new().expect("a folder");
    for number in 0..40 {
        let below = folder.path().join(format!("{}", number % 5));
        fs::create_dir_all(&below).expect("a folder");
        fs::write(below.join(number.to_string()), content(5000)).expect("room");
    }
    for (step, has_more) in [(100, true), (1, false)] {
        let clock = Clock::counted(Duration::from_millis(step));
        let (report, verdict) = measure(&args(folder.path()), &clock).expect("a report");
        let mut texts = [Vec::new(), Vec::new()];
        table::write(&mut texts[0], &report, &verdict).expect("memory");
        figures::write(&mut texts[1], &report, &verdict).expect("memory");
        let [table, lines] = texts.map(|text| String::from_utf8(text).expect("text"));
        assert_eq!(table.contains("cut short") && table.contains(" or more"), has_more, "{table}");
        assert_eq!(!lines.contains("_bytes_high"), has_more, "{lines}");
        assert!(lines.contains("_bytes_low"), "{lines}");
    }
}

#[test]
fn scanning_ends_in_time() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("a disk");
    fs::write(&path, content(8 << 20)).expect("room");
    // Each unit is read in eight steps.
    for (steps, scanned) in [(0, 0), (7, 0), (24, 3), (100, 8)] {
        let clock = Clock::counted(Duration::from_secs(1));
        let never = clock.until(Duration::from_secs(1_000_000));
        let mut input = walk::look_at(&path, false, [never; 2], 1).expect("a file");
        let end = never.or_after(Duration::from_secs(steps + 1));
        scan::scan(&mut input, u64::MAX, [end; 2], 1);
        let stratum = &input.strata[0];
        assert_eq!((stratum.is_scanned(), stratum.data_bytes().is_exact()), (scanned > 0, scanned % 8 == 0));
        let pages = stratum.scanned_zero_pages();
        assert!(pages <= scanned * 256, "{pages}");
    }
}

/// Slow storage may take milliseconds for each file and each page.
#[test]
fn reading_and_packing_end_in_time() {
    let folder = TempDir::new().expect("a folder");
    for number in 0..64 {
        fs::write(folder.path().join(number.to_string()), content(5000)).expect("room");
    }
    let second = Duration::from_secs(1);
    for (seconds, is_enough) in [(30, false), (10_000, true)] {
        let clock = Clock::counted(second);
        let never = clock.until(second * 1_000_000);
        let input = walk::look_at(folder.path(), false, [never; 2], 1).expect("a folder");
        let pages = pages::look_at(&input, u64::MAX, never, 1).expect("pages");
        let images = images::measure(&input, &pages, u64::MAX, never.or_after(second * seconds), 1).expect("images");
        let sampled = images.iter().filter(|image| image.sampled_bytes == 64 * 5000).count();
        assert_eq!(sampled, if is_enough { images.len() } else { 0 }, "{images:?}");
    }
    let path = folder.path().join("a disk");
    fs::write(&path, content(1 << 20)).expect("room");
    for (steps, is_enough) in [(3, false), (100, true)] {
        let clock = Clock::counted(second);
        let never = clock.until(second * 1_000_000);
        let input = walk::look_at(&path, false, [never; 2], 1).expect("a file");
        let unit = input.strata[0].nth(0).expect("a unit");
        let before = clock.asked();
        let read = input.read(unit, &mut Vec::new(), never.or_after(second * steps));
        assert_eq!(read.is_ok(), is_enough, "{read:?}");
        assert!(clock.asked() - before <= steps + 2);
    }
}
