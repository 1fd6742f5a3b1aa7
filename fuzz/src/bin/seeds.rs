//! Writes the initial inputs of each target into a folder, with a folder per target and codec, as
//! starting points for `run`.

use std::{fs, io, path::Path, sync::Arc};

use pagefold_codec::{FoldTables, Lz4Encoder, PAGE_SIZE, Tables};
use pagefold_disk::{
    BlockDevice, Pool, PoolConfig, Precopy, RamDisk, export_disks, finish_disks, precopy_disks,
};

/// Inputs of [`pagefold_fuzz::page`]: zeros and a tail, records, text, a run of numbers, and short
/// fields that repeat among numbers that do not.
fn pages() -> [Vec<u8>; 5] {
    let numbers = (0..64u8).flat_map(|number| [number, 0, number / 2, 0x7f, 0, 0, number ^ 3, 0xff]);
    let fields = (1..PAGE_SIZE as u32).flat_map(|row| {
        let mixed = row.wrapping_mul(0x9E37_79B1);
        let field = ((mixed >> 28) + 1).wrapping_mul(0x85EB_CA6B);
        [field, mixed.wrapping_mul(row) ^ mixed >> 13].map(u32::to_be_bytes).concat()
    });
    [
        vec![0, 1, 2, 3, 0, 0, 0, 0, 9],
        b"\x02.id=00;name=\"page\";left=null;right=0x7f00;".to_vec(),
        b"\x01the store keeps a page, the stream compresses the page, and the codec is the store's. ".to_vec(),
        [1].into_iter().chain(numbers).collect(),
        [0].into_iter().chain(fields.take(PAGE_SIZE)).collect(),
    ]
}

/// One of each command of the control socket.
const CONTROL: &str = r#"{"id":1,"command":"add","name":"a","size_bytes":1024,"limit_bytes":4096,"read_only":true}
{"id":"b","command":"list"}
{"command":"stat","name":"a"}
{"command":"resize","name":"a","size_bytes":512,"shrink":true}
{"command":"rename","name":"a","to":"\u00fc"}
{"command":"reset","name":"\u00fc"}
{"command":"limit","limit_bytes":null}
{"command":"limit-connections","connections":2}
{"command":"compact","seconds":1}
{"command":"snapshot","name":"\u00fc","snapshot":"s"}
{"command":"fork","from":"\u00fc@s","names":["b","c"],"limit_bytes":4096}
{"command":"rollback","name":"\u00fc","snapshot":"s"}
{"command":"changes","name":"b","offset":512}
{"command":"drop","name":"\u00fc","snapshots":true}
{"command":"remove","name":"b"}
{"command":"stop"}
"#;

/// Returns a queue of 16 descriptors for `vhost_user.rs`, with a request of each type, the last one in an
/// indirect table.
fn rings(mode: u8) -> Vec<u8> {
    let [next, write, indirect] = [1_u16, 2, 4];
    let (available, used, headers, ranges, table) = (0x100_u16, 0x200_u16, 0x300_u16, 0x400_u16, 0x500_u16);
    let mut memory = vec![0; 0x600];
    let mut put = |at: u16, bytes: &[u8]| memory[usize::from(at)..][..bytes.len()].copy_from_slice(bytes);
    let descriptor = |address: u16, len: u32, flags: u16, next: u16| {
        let parts = [&u64::from(address).to_le_bytes()[..], &len.to_le_bytes()];
        [&parts.concat()[..], &flags.to_le_bytes(), &next.to_le_bytes()].concat()
    };
    // Type, and data: its place, its length, and whether the device writes it.
    let requests: [(u32, u16, u32, u16); 6] = [
        (1, 0x1000, 1024, 0),
        (0, 0x1800, 512, write),
        (8, 0x2000, 20, write),
        (11, ranges, 16, 0),
        (13, ranges, 16, 0),
        (4, 0, 0, 0),
    ];
    put(ranges, &[&8_u64.to_le_bytes()[..], &16_u32.to_le_bytes(), &[0; 4]].concat());
    put(available, &[0, 0, 6, 0]);
    for (number, (kind, data, len, flags)) in (0_u16..).zip(requests) {
        let header = headers + 16 * number;
        put(header, &[&kind.to_le_bytes()[..], &[0; 4], &u64::from(number).to_le_bytes()].concat());
        let (head, first, at) = if number < 5 { (3 * number, 3 * number, 48 * number) } else { (15, 0, table) };
        put(available + 4 + 2 * number, &head.to_le_bytes());
        if number == 5 {
            put(16 * 15, &descriptor(table, 32, indirect, 0));
            put(at, &[descriptor(header, 16, next, 1), descriptor(0x8000, 1, write, 0)].concat());
            continue;
        }
        put(at, &descriptor(header, 16, next, first + 1));
        put(at + 16, &descriptor(data, len, flags | next, first + 2));
        put(at + 32, &descriptor(0x8000 + number, 1, write, 0));
    }
    let [d, a, u, len] = [0, available, used, 0x600].map(u16::to_le_bytes);
    // The second part makes the same requests available again.
    let later = [&memory[..usize::from(available)], &[0, 0, 12, 0]].concat();
    [&[mode, 4][..], &d, &a, &u, &len, &memory, &later].concat()
}

/// Sequences for `disks.rs`: codec and limit, then operations with their operands.
const DISKS: [&[u8]; 5] = [
    // Written, forked, written again and compacted; then the fork becomes the first disk.
    &[0, 7, 4, 0, 5, 9, 11, 70, 3, 1, 2, 0, 4, 1, 6, 20, 2, 3, 2, 9, 16, 0, 12, 1, 0, 18, 0, 10, 0, 9, 7, 11, 0],
    // A snapshot, which the disk returns to; equal pages; a limit.
    &[
        3, 4, 4, 0, 0, 0, 3, 0, 3, 5, 3, 0, 7, 0, 1, 0, 9, 0, 1, 8, 0, 2, 9, 150, 30, 12, 0, 1, 14, 0, 3, 4, 0, 9, 0,
        12, 0, 3, 8,
    ],
    // The base fails while a page is changed in part, and while pages are read.
    &[
        0, 6, 17, 0, 1, 4, 0, 2, 77, 0, 90, 3, 4, 17, 0, 2, 19, 0, 13, 8, 9, 1, 10, 0, 12, 5, 10, 0, 13, 200, 9, 0, 11,
        9, 30, 5, 1,
    ],
    // A disk over the base is cut, reset, and grows again.
    &[0, 7, 10, 0, 4, 11, 11, 0, 10, 0, 12, 3, 2, 0, 11, 1, 9, 1, 2, 0, 1, 40, 0],
    // Disks without a base: zeros, discards, a limit of a disk, and an end.
    &[
        1, 5, 0, 0, 90, 16, 4, 1, 5, 33, 9, 12, 3, 77, 2, 1, 13, 2, 1, 40, 4, 2, 6, 9, 12, 55, 3, 1, 8, 2, 5, 60, 40,
        0, 15, 1, 18,
    ],
];

/// Returns streams of small pools of a codec: one disk; forks, a snapshot, holes and equal pages; a
/// disk over a base; forks in rounds.
fn streams(name: &str) -> [Vec<u8>; 4] {
    let stream = |pool: &Pool, disks: &[&RamDisk]| {
        let mut stream = Vec::new();
        export_disks(pool, disks, &mut stream).expect("a stream");
        stream
    };
    let pool = || {
        // With tables, but not those of a dictionary, which would make the streams too long.
        let pages = pages().map(|data| pagefold_fuzz::page(&data));
        let codec = match pagefold_codec::by_name(name).expect("a codec").tables() {
            Some(Tables::Fold(_)) => {
                Tables::Fold(Arc::new(FoldTables::train_unjudged(&pages.iter().collect::<Vec<_>>(), &[]))).codec()
            }
            _ => pagefold_codec::by_name(name).expect("a codec"),
        };
        Pool::new(PoolConfig::default().codec(codec).dedupe(true)).expect("a pool")
    };
    let numbers: Vec<u8> = (0..PAGE_SIZE).map(|at| (at / 9 % 5) as u8).collect();
    let one = pool();
    let disk = RamDisk::new(&one, 1 << 20).expect("a disk");
    disk.write(8192, &numbers).expect("no limit");
    disk.write(70 * 4096, &[3; PAGE_SIZE]).expect("no limit");
    let first = stream(&one, &[&disk]);

    let many = pool();
    let disk = Arc::new(RamDisk::new(&many, 20 << 20).expect("a disk"));
    for page in [0, 1, 64, 4096] {
        disk.write(page * 4096, &numbers).expect("no limit");
    }
    let kept = disk.snapshot().expect("no limit");
    let fork = disk.fork().expect("no limit");
    fork.write(4096, &[1; PAGE_SIZE]).expect("no limit");
    disk.discard(0, 4096).expect("no limit");
    let second = stream(&many, &[&disk, &kept, &fork]);

    let (mut precopy, mut rounds) = (Precopy::begin(&many).expect("the only one"), Vec::new());
    for page in [2, 65, 3] {
        precopy_disks(&mut precopy, &[&disk, &fork], &mut rounds).expect("a round");
        disk.write(page * 4096, &numbers).expect("no limit");
        fork.discard((page - 1) * 4096, 4096).expect("no limit");
    }
    finish_disks(&mut precopy, &[&disk, &kept, &fork], &mut rounds).expect("a stream");

    let base = Arc::new(pagefold_faulty::Faulty::new(&[5; 5 * PAGE_SIZE][..]));
    let over = RamDisk::over(&one, base).expect("a disk");
    let fork = over.fork().expect("no limit");
    fork.write(0, &numbers).expect("no limit");
    fork.discard(8192, 8192).expect("no limit");
    [first, second, stream(&one, &[&over, &fork]), rounds]
}

fn main() -> io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1) else {
        return Err(io::Error::other("usage: seeds FOLDER"));
    };
    let folder = Path::new(&folder);
    for target in ["round_trip", "fixed_output"] {
        fs::create_dir_all(folder.join(target))?;
        for (number, page) in pages().iter().enumerate() {
            let sizes: &[u8] = if target == "round_trip" { &[0, 16] } else { &[0, 2, 1, 8] };
            fs::write(folder.join(target).join(format!("seed-{number}")), [sizes, page].concat())?;
        }
    }
    // A page to compress, and a block as it is. `in_place.rs` defines the bytes before them.
    let in_place = folder.join("in_place");
    fs::create_dir_all(&in_place)?;
    let mut encoder = Lz4Encoder::new();
    for (number, data) in pages().iter().enumerate() {
        fs::write(in_place.join(format!("seed-{number}")), [&[1, 40, 0, 1], &data[..]].concat())?;
        let mut block = [0; PAGE_SIZE];
        if let Some(len) = encoder.compress(&pagefold_fuzz::page(data), &mut block) {
            let [low, high] = (PAGE_SIZE as u16).to_le_bytes();
            fs::write(in_place.join(format!("block-{number}")), [&[0, 40, low, high], &block[..len]].concat())?;
        }
    }
    for name in pagefold_fuzz::names() {
        let folder = folder.join("decode").join(&name);
        fs::create_dir_all(&folder)?;
        let mut stream = pagefold_fuzz::codec(&name).stream().map_err(io::Error::other)?;
        for (number, data) in pages().iter().enumerate() {
            let mut object = [0; PAGE_SIZE];
            if let Some(len) = stream.compress(&pagefold_fuzz::page(data), &mut object) {
                fs::write(folder.join(format!("seed-{number}")), &object[..len])?;
            }
        }
    }
    // As in `cluster.rs`: the mode, how often the page is repeated, and a length.
    let [low, high] = (PAGE_SIZE as u16).to_le_bytes();
    for name in pagefold_fuzz::CLUSTER_CODECS {
        let folder = folder.join("cluster").join(name);
        fs::create_dir_all(&folder)?;
        let mut encoder = pagefold_fuzz::cluster_codec(name).encoder().map_err(io::Error::other)?;
        for (number, data) in pages().iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), [&[1, 2, 0, 1], &data[..]].concat())?;
            let mut cluster = [0; PAGE_SIZE];
            if let Some(filled) = encoder.fill(&pagefold_fuzz::page(data), &mut cluster) {
                let input = [&[0, 0, low, high], &cluster[..filled.written]].concat();
                fs::write(folder.join(format!("cluster-{number}")), input)?;
            }
        }
    }
    // Small enough for the inputs that the fuzzer tries.
    let whole = folder.join("erofs_image");
    fs::create_dir_all(&whole)?;
    let images = [pagefold_fuzz::images(512, &[0, 50, 1500]), pagefold_fuzz::foreign_images()].concat();
    for (number, image) in images.iter().enumerate() {
        fs::write(whole.join(format!("image-{number}")), image)?;
    }
    let built = folder.join("erofs_build");
    fs::create_dir_all(&built)?;
    for seed in 0..64 {
        fs::write(built.join(format!("seed-{seed}")), pagefold_roundtrip::seed_bytes(seed))?;
    }
    let disks = folder.join("disks");
    fs::create_dir_all(&disks)?;
    for (number, operations) in DISKS.iter().enumerate() {
        fs::write(disks.join(format!("seed-{number}")), operations)?;
    }
    let control = folder.join("control");
    fs::create_dir_all(&control)?;
    fs::write(control.join("commands"), CONTROL)?;
    for (number, line) in CONTROL.lines().enumerate() {
        fs::write(control.join(format!("line-{number}")), line)?;
    }
    let vhost_user = folder.join("vhost_user");
    fs::create_dir_all(&vhost_user)?;
    // Plain; with the event index; a disk without room at first; one that waits; one that is read-only.
    for (number, mode) in [0, 8, 0x34, 2, 1].into_iter().enumerate() {
        fs::write(vhost_user.join(format!("seed-{number}")), rings(mode))?;
    }
    for name in ["lz4", "fold", "fold-dict"] {
        let folder = folder.join("pool_import").join(name);
        fs::create_dir_all(&folder)?;
        for (number, stream) in streams(name).into_iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), stream)?;
        }
    }
    let edited = folder.join("erofs_edited");
    fs::create_dir_all(&edited)?;
    for number in 0..9 {
        fs::write(edited.join(format!("image-{number}")), [number, 0, 0, 0, 0])?;
    }
    Ok(())
}
