//! The comparisons of the report, in its order. Comparisons that a peer wins are included.

use super::{
    record::Pick,
    verdict::{
        Comparison,
        Measure::{self, Bytes, Speed, Time},
        Pairs,
    },
};

/// What a group compares, and how the two sides differ. Groups come in the order in which users meet
/// their subjects.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) note: &'static str,
}

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: FORKS,
        note: "Times are from the request for a disk to the first page read from it. pagefold's server is one process \
               for all disks; qcow2 needs a qemu-nbd for each; reflinks and copies are opened as files, without a \
               server. Requests are random, of 4 KiB, over NBD, to disks of which 1 % and 50 % were changed: of 32 MiB \
               and of the whole disk.",
    },
    Group {
        name: NBD,
        note: "Random requests, with pages like those of program heaps. pagefold compresses what is written; nbdkit's \
               malloc allocator stores it uncompressed, and its zstd allocator compresses blocks of 32 KiB.",
    },
    Group {
        name: ZRAM,
        note: "zram is a block device of the kernel, reached through O_DIRECT: each request is a system call. pagefold's \
               store is a library in the process. zram's memory excludes the kernel's table of the disk; pagefold's \
               includes its tables and working buffers.",
    },
    Group {
        name: ALLOCATORS,
        note: "Objects as long as compressed pages. xvmalloc and xcfmalloc are the published designs, rebuilt here \
               in user space.",
    },
    Group {
        name: LOCKS,
        note: "The published locks and stream policies run in a small store that differs from the product's in its \
               allocator and tables, too.",
    },
    Group {
        name: IMAGES,
        note: "The same files, codec, level and cluster for each program. squashfs's block size counts input, \
               EROFS's cluster size counts output. The library reads in the process; a kernel or FUSE mount is reached by \
               system calls.",
    },
    Group { name: CODECS, note: "Single 4 KiB pages, one thread. Peers are called as their users call them." },
];

const CODECS: &str = "Page codecs";
const ZRAM: &str = "RAM disks and zram";
const ALLOCATORS: &str = "Allocators";
const LOCKS: &str = "Locks and streams";
const NBD: &str = "NBD servers";
const IMAGES: &str = "Images";
const FORKS: &str = "Forks of a disk";

/// Makes a comparison whose two sides have the same case and metric.
const fn same(
    group: &'static str,
    what: &'static str,
    measure: Measure,
    ours: (&'static str, &'static str),
    peer: (&'static str, &'static str),
    (bench, case, metric): (&'static str, &'static str, &'static str),
) -> Comparison {
    Comparison {
        group,
        what,
        ours_name: ours.1,
        peer_name: peer.1,
        measure,
        ours: Pick { bench, case, subject: ours.0, metric },
        peer: Pick { bench, case, subject: peer.0, metric },
        pairs: Pairs::Same,
    }
}

const fn codec(
    what: &'static str,
    measure: Measure,
    ours: &'static str,
    peer: &'static str,
    metric: &'static str,
) -> Comparison {
    same(CODECS, what, measure, (ours, ours), (peer, peer), ("codec", "*", metric))
}

const fn zram(
    what: &'static str,
    measure: Measure,
    ours: (&'static str, &'static str),
    peer: (&'static str, &'static str),
    case: &'static str,
    metric: &'static str,
) -> Comparison {
    same(ZRAM, what, measure, ours, peer, ("device", case, metric))
}

const fn nbd(
    what: &'static str,
    measure: Measure,
    ours: (&'static str, &'static str),
    peer: (&'static str, &'static str),
    case: &'static str,
    metric: &'static str,
) -> Comparison {
    same(NBD, what, measure, ours, peer, ("nbd", case, metric))
}

const fn image(
    what: &'static str,
    measure: Measure,
    ours: (&'static str, &'static str),
    peer: (&'static str, &'static str),
    case: &'static str,
    metric: &'static str,
) -> Comparison {
    same(IMAGES, what, measure, ours, peer, ("image", case, metric))
}

const fn fork(
    what: &'static str,
    measure: Measure,
    ours: (&'static str, &'static str, &'static str),
    peer: (&'static str, &'static str, &'static str),
) -> Comparison {
    Comparison {
        group: FORKS,
        what,
        ours_name: "pagefold",
        peer_name: peer.0,
        measure,
        ours: Pick { bench: "fork", case: ours.1, subject: ours.0, metric: ours.2 },
        peer: Pick { bench: "fork", case: peer.1, subject: peer.0, metric: peer.2 },
        pairs: Pairs::Means,
    }
}

const fn fork_io(
    what: &'static str,
    measure: Measure,
    ours: (&'static str, &'static str),
    peer: (&'static str, &'static str),
    case: &'static str,
    metric: &'static str,
) -> Comparison {
    same(FORKS, what, measure, ours, peer, ("nbd", case, metric))
}

const FORK_LZ4: (&str, &str) = ("fork-lz4", "fork of an image, LZ4, 4 KiB clusters");
const FORK_ZSTD: (&str, &str) = ("fork-zstd", "fork of an image, Zstandard, 64 KiB clusters");
const QCOW2_NBD: (&str, &str) = ("qcow2-nbd", "qcow2 overlay, qemu-nbd");
const QCOW2_DAEMON: (&str, &str) = ("qcow2-daemon", "qcow2 overlay, qemu-storage-daemon");
const COW: (&str, &str) = ("nbdkit-cow", "nbdkit cow over a raw file");
const STORE_LZ4: (&str, &str) = ("pagefold-lz4", "pagefold, lz4");
const STORE: (&str, &str) = ("pagefold-default", "pagefold, default codec");
const ZRAM_LZ4: (&str, &str) = ("zram-lz4", "zram, lz4");
const ZRAM_LZO: (&str, &str) = ("zram-lzo-rle", "zram, lzo-rle");
const NBDKIT: (&str, &str) = ("nbdkit-malloc", "nbdkit memory, malloc");
const NBDKIT_ZSTD: (&str, &str) = ("nbdkit-zstd", "nbdkit memory, zstd");
const HEAP: (&str, &str) = ("mosaic", "pagefold's heap");
const LIBRARY: (&str, &str) = ("pagefold", "pagefold, library");
const PROGRAM: (&str, &str) = ("pagefold", "pagefold");
const FUSE: (&str, &str) = ("pagefold-fuse", "pagefold mount");
const KERNEL_EROFS: (&str, &str) = ("kernel-erofs", "Linux EROFS");
const KERNEL_OURS: (&str, &str) = ("kernel-erofs", "Linux, pagefold's image");

pub(super) const COMPARISONS: &[Comparison] = &[
    codec("Compressed size", Bytes, "fold", "liblz4", "compressed_bytes"),
    codec("Compression", Speed, "fold", "liblz4", "compress_mb_s"),
    codec("Decompression", Speed, "fold", "liblz4", "decompress_mb_s"),
    codec("Compressed size", Bytes, "lz4", "liblz4", "compressed_bytes"),
    codec("Compression", Speed, "lz4", "liblz4", "compress_mb_s"),
    codec("Decompression", Speed, "lz4", "liblz4", "decompress_mb_s"),
    codec("Compressed size", Bytes, "lz4dyn", "liblz4", "compressed_bytes"),
    codec("Compression", Speed, "lz4dyn", "liblz4", "compress_mb_s"),
    codec("Decompression", Speed, "lz4dyn", "liblz4", "decompress_mb_s"),
    codec("Compressed size", Bytes, "lzo", "liblzo2", "compressed_bytes"),
    codec("Compression", Speed, "lzo", "liblzo2", "compress_mb_s"),
    codec("Decompression", Speed, "lzo", "liblzo2", "decompress_mb_s"),
    codec("Compressed size", Bytes, "pleat", "libzstd-1", "compressed_bytes"),
    codec("Compression", Speed, "pleat", "libzstd-1", "compress_mb_s"),
    codec("Decompression", Speed, "pleat", "libzstd-1", "decompress_mb_s"),
    codec("Compressed size, trained", Bytes, "pleat-trained", "libzstd-1-dict", "compressed_bytes"),
    codec("Compression, trained", Speed, "pleat-trained", "libzstd-1-dict", "compress_mb_s"),
    codec("Decompression, trained", Speed, "pleat-trained", "libzstd-1-dict", "decompress_mb_s"),
    codec("Compressed size", Bytes, "fold", "snappy", "compressed_bytes"),
    codec("Compression", Speed, "fold", "snappy", "compress_mb_s"),
    codec("Decompression", Speed, "fold", "snappy", "decompress_mb_s"),
    codec("Compressed size", Bytes, "fold", "zxc-3", "compressed_bytes"),
    codec("Compression", Speed, "fold", "zxc-3", "compress_mb_s"),
    codec("Decompression", Speed, "fold", "zxc-3", "decompress_mb_s"),
    zram("RAM for the same pages", Bytes, STORE, ZRAM_LZ4, "*", "spent_bytes"),
    zram("RAM for the same pages", Bytes, STORE, ZRAM_LZO, "*", "spent_bytes"),
    zram("RAM for the same pages", Bytes, STORE_LZ4, ZRAM_LZ4, "*", "spent_bytes"),
    zram("4 KiB reads", Speed, STORE, ZRAM_LZ4, "*-read/4k/*", "read_mb_s"),
    zram("4 KiB writes", Speed, STORE, ZRAM_LZ4, "*-write/4k/*", "write_mb_s"),
    zram("4 KiB reads", Speed, STORE_LZ4, ZRAM_LZ4, "*-read/4k/*", "read_mb_s"),
    zram("4 KiB writes", Speed, STORE_LZ4, ZRAM_LZ4, "*-write/4k/*", "write_mb_s"),
    zram("4 KiB reads", Speed, STORE, ZRAM_LZO, "*-read/4k/*", "read_mb_s"),
    zram("4 KiB writes", Speed, STORE, ZRAM_LZO, "*-write/4k/*", "write_mb_s"),
    zram("128 KiB reads", Speed, STORE_LZ4, ZRAM_LZ4, "*-read/128k/*", "read_mb_s"),
    zram("128 KiB writes", Speed, STORE_LZ4, ZRAM_LZ4, "*-write/128k/*", "write_mb_s"),
    same(
        ZRAM,
        "RAM after all pages were overwritten four times",
        Bytes,
        ("mosaic", "pagefold, lz4"),
        ("zram-zsmalloc", "zram, lz4"),
        ("pool", "*/lz4", "spent_after_churn_bytes"),
    ),
    same(ALLOCATORS, "RAM for text that LZO makes to 75 %", Bytes, HEAP, ("xcfmalloc", "xcfmalloc"), EFFECTIVE),
    same(ALLOCATORS, "RAM for text that LZO makes to 75 %", Bytes, HEAP, ("xvmalloc", "xvmalloc"), EFFECTIVE),
    same(
        ALLOCATORS,
        "RAM for text that LZO makes to 75 %",
        Bytes,
        HEAP,
        ("zram-zsmalloc", "zram's zsmalloc"),
        EFFECTIVE,
    ),
    same(ALLOCATORS, "Allocating and freeing", Speed, HEAP, ("libc-malloc", "glibc malloc"), ALLOC),
    same(ALLOCATORS, "Allocating and freeing", Speed, HEAP, ("mimalloc", "mimalloc"), ALLOC),
    same(ALLOCATORS, "Allocating and freeing", Speed, HEAP, ("xcfmalloc", "xcfmalloc"), ALLOC),
    same(
        LOCKS,
        "iozone's patterns, four threads",
        Speed,
        ("hazard", "pagefold"),
        ("bit-spin", "bit_spinlock"),
        ("locks", "*/16k/*", "*_mb_s"),
    ),
    same(
        LOCKS,
        "All threads on the same 10 MiB",
        Speed,
        ("hazard", "pagefold"),
        ("bit-spin", "bit_spinlock"),
        ("locks", "*/contended-*", "*_mb_s"),
    ),
    same(
        LOCKS,
        "Streams under several jobs",
        Speed,
        ("per-cpu", "pagefold"),
        ("per-cpu-mutex", "zram's streams, one a CPU"),
        ("streams", "*", "*_mb_s"),
    ),
    same(
        LOCKS,
        "Streams under several jobs",
        Speed,
        ("per-cpu", "pagefold"),
        ("idle-4", "zram's list of 4 streams"),
        ("streams", "*", "*_mb_s"),
    ),
    nbd("4 KiB reads", Speed, STORE, NBDKIT, "*/rand-read/4k/*", "read_mb_s"),
    nbd("4 KiB writes", Speed, STORE, NBDKIT, "*-write/4k/*", "write_mb_s"),
    nbd("4 KiB reads and writes mixed", Speed, STORE, NBDKIT, "*-mixed/4k/*", "*_mb_s"),
    nbd("4 KiB, 99th percentile", Time, STORE, NBDKIT, "*/4k/*", "*_p99_us"),
    nbd("32 KiB writes", Speed, STORE, NBDKIT, "*-write/32k/*", "write_mb_s"),
    nbd("128 KiB writes", Speed, STORE, NBDKIT, "*-write/128k/*", "write_mb_s"),
    nbd("4 KiB reads", Speed, STORE, NBDKIT_ZSTD, "*/rand-read/4k/*", "read_mb_s"),
    nbd("4 KiB writes", Speed, STORE, NBDKIT_ZSTD, "*-write/4k/*", "write_mb_s"),
    nbd("RAM of the server", Bytes, STORE, NBDKIT, "*", "rss_bytes"),
    nbd("RAM of the server", Bytes, STORE, NBDKIT_ZSTD, "*", "rss_bytes"),
    image("Image size", Bytes, PROGRAM, ("mkfs.erofs", "mkfs.erofs"), "*/build/all", "image_bytes"),
    image("Image size", Bytes, PROGRAM, ("mksquashfs", "mksquashfs"), "*/build/all", "image_bytes"),
    image("Building", Time, PROGRAM, ("mkfs.erofs", "mkfs.erofs"), "*/build/all", "build_s"),
    image("Building", Time, PROGRAM, ("mksquashfs", "mksquashfs"), "*/build/all", "build_s"),
    image("Peak memory of building", Bytes, PROGRAM, ("mkfs.erofs", "mkfs.erofs"), "*/build/all", "peak_rss_bytes"),
    image("Extracting", Time, PROGRAM, ("fsck.erofs", "fsck.erofs"), "*/extract/all", "extract_s"),
    image("Extracting", Time, PROGRAM, ("unsquashfs", "unsquashfs"), "*/extract/all", "extract_s"),
    image("Reading in order", Speed, LIBRARY, KERNEL_EROFS, "*/read/*", "seq_read_mb_s"),
    image("Reading pages at random", Time, LIBRARY, KERNEL_EROFS, "*/read/*", "rand_read_us"),
    image("Reading in order", Speed, FUSE, ("erofsfuse", "erofsfuse"), "*/read/*", "seq_read_mb_s"),
    image("Reading pages at random", Time, FUSE, ("erofsfuse", "erofsfuse"), "*/read/*", "rand_read_us"),
    image("Reading in order", Speed, FUSE, ("squashfuse", "squashfuse"), "*/read/*", "seq_read_mb_s"),
    image("Reading pages at random", Time, FUSE, ("squashfuse", "squashfuse"), "*/read/*", "rand_read_us"),
    image("Reading in order", Speed, FUSE, KERNEL_EROFS, "*/read/*", "seq_read_mb_s"),
    image("Reading pages at random", Time, FUSE, KERNEL_EROFS, "*/read/*", "rand_read_us"),
    image(
        "Reading in order",
        Speed,
        KERNEL_OURS,
        ("kernel-mkfs.erofs", "Linux, mkfs.erofs's image"),
        "*/read/*",
        "seq_read_mb_s",
    ),
    image("Reading in order", Speed, KERNEL_OURS, ("kernel-squashfs", "Linux squashfs"), "*/read/*", "seq_read_mb_s"),
    image("Reading in order", Speed, KERNEL_OURS, ("kernel-ext4", "Linux ext4"), "*/read/*", "seq_read_mb_s"),
    fork("Time to a new disk's first page, median", Time, FIRST_PAGE, ("qcow2+qemu-nbd", "idle/peer/*", "all_p50_us")),
    fork("Time to a new disk's first page, median", Time, FIRST_PAGE, ("cp-tmpfs", "idle/peer/*", "all_p50_us")),
    fork("Time to a new disk's first page, median", Time, FIRST_PAGE, ("btrfs-reflink", "idle/peer/*", "all_p50_us")),
    fork("Time to a new disk's first page, median", Time, FIRST_PAGE, ("dm-snapshot", "idle/peer/*", "all_p50_us")),
    fork(
        "RAM of an idle disk",
        Bytes,
        ("pagefold", "idle/socket/*", "memory_bytes_each"),
        ("qcow2+qemu-nbd", "idle/peer/*", "*_bytes_each"),
    ),
    fork(
        "RAM of an idle disk",
        Bytes,
        ("pagefold", "idle/socket/*", "memory_bytes_each"),
        ("btrfs-reflink", "idle/peer/*", "file_bytes_each"),
    ),
    fork(
        "RAM of a disk with files copied into it",
        Bytes,
        ("pagefold", "work/*", "resident_bytes_each"),
        ("qcow2-in-tmpfs", "work/*", "file_bytes_each"),
    ),
    fork(
        "Time to copy files into a disk",
        Time,
        ("pagefold", "work/*", "install_s"),
        ("qcow2-in-tmpfs", "work/*", "install_s"),
    ),
    fork_io("4 KiB reads", Speed, FORK_LZ4, QCOW2_NBD, "*/rand-read/4k/*", "read_mb_s"),
    fork_io("4 KiB writes", Speed, FORK_LZ4, QCOW2_NBD, "*/rand-write/4k/*", "write_mb_s"),
    fork_io("4 KiB reads and writes mixed", Speed, FORK_LZ4, QCOW2_NBD, "*/rand-mixed/4k/*", "*_mb_s"),
    fork_io("4 KiB, 99th percentile", Time, FORK_LZ4, QCOW2_NBD, "*/rand-*/4k/*", "*_p99_us"),
    fork_io("4 KiB reads", Speed, FORK_LZ4, QCOW2_DAEMON, "*/rand-read/4k/*", "read_mb_s"),
    fork_io("4 KiB writes", Speed, FORK_LZ4, QCOW2_DAEMON, "*/rand-write/4k/*", "write_mb_s"),
    fork_io("4 KiB reads and writes mixed", Speed, FORK_LZ4, QCOW2_DAEMON, "*/rand-mixed/4k/*", "*_mb_s"),
    fork_io("4 KiB reads", Speed, FORK_LZ4, COW, "*/rand-read/4k/*", "read_mb_s"),
    fork_io("4 KiB writes", Speed, FORK_LZ4, COW, "*/rand-write/4k/*", "write_mb_s"),
    fork_io("4 KiB reads", Speed, FORK_ZSTD, QCOW2_DAEMON, "*/rand-read/4k/*", "read_mb_s"),
    fork_io("RAM with 50 % changed", Bytes, FORK_LZ4, QCOW2_NBD, "*/memory/changed-50", "rss_bytes"),
    fork_io("RAM with 50 % changed", Bytes, FORK_LZ4, COW, "*/memory/changed-50", "rss_bytes"),
];

const FIRST_PAGE: (&str, &str, &str) = ("pagefold", "idle/socket/*", "all_p50_us");
const EFFECTIVE: (&str, &str, &str) = ("pool", "text-75", "effective_percent");
const ALLOC: (&str, &str, &str) = ("pool", "*", "alloc_free_mops");
