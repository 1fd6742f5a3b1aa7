//! What files in EROFS images are: the same as outside.

use std::{fs, path::Path};

use pagefold_base::{Base, Cache, Format, OpenError, Options, Signature};
use pagefold_disk::BlockDevice;
use pagefold_erofs::{BuildOptions, ClusterCodec, Fragments, Indexes};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::{content, image_of};

fn opened(path: &Path, options: &Options) -> Result<Base, OpenError> {
    Base::open(path, options, &Cache::new(1 << 20), |line| panic!("logged: {line}"))
}

fn options(format: Option<Format>, inside: Option<&str>) -> Options {
    let mut options = Options::default();
    options.format = format;
    options.inside = inside.map(|inside| inside.as_bytes().to_vec());
    options
}

/// A footer of a VHD disk of a fixed size.
fn vhd_footer() -> Vec<u8> {
    let mut footer = vec![0; 512];
    footer[..8].copy_from_slice(b"conectix");
    footer[12..16].copy_from_slice(b"\0\x01\0\0");
    let sum = !footer.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    footer[64..68].copy_from_slice(&sum.to_be_bytes());
    footer
}

/// Signs of formats of each kind, also of raw disks, and where they are; negative offsets are from
/// the end.
fn signs() -> Vec<(i64, Vec<u8>)> {
    let at = |at: i64, bytes: &[u8]| (at, bytes.to_vec());
    vec![
        at(0, b""),
        at(510, b"\x55\xaa"),
        at(512, b"EFI PART"),
        at(1080, b"\x53\xef"),
        at(0x8001, b"CD001"),
        at(0x1_0040, b"_BHRfS_M"),
        at(1024, &0xe0f5_e1e2_u32.to_le_bytes()),
        at(0, b"QFI\xfb\0\0\0\x03"),
        at(0, b"KDMV\x01\0\0\0"),
        at(0, b"# Disk DescriptorFile\nversion=1\n"),
        at(64, &0xbeda_107f_u32.to_le_bytes()),
        at(0, b"LUKS\xba\xbe\0\x02"),
        at(0x4000, b"SKUL\xba\xbe\0\x02"),
        at(0, b"\x1f\x8b\x08"),
        at(0, b"\xfd7zXZ\0"),
        at(0, b"\x5c\x2a\x4d\x18\0\x40\x01\0"),
        at(257, b"ustar\0\0\0"),
        at(0, b"PK\x03\x04"),
        at(0, b"!<arch>\ndebian-binary"),
        at(0, b"\x3a\xff\x26\xed"),
        at(-512, b"koly\0\0\0\x04\0\0\x02\0"),
        (-512, vhd_footer()),
        at(-8, b"NERO\0\0\0\x10"),
    ]
}

fn packings() -> [BuildOptions; 5] {
    let plain = BuildOptions::default();
    let zstd = Some(ClusterCodec::Zstd { level: 1, window_log: 16 });
    [
        plain.clone(),
        BuildOptions { codec: None, ..plain.clone() },
        BuildOptions { codec: zstd, pcluster_bytes: 64 << 10, ..plain.clone() },
        BuildOptions { indexes: Indexes::Extents, dedupe: true, ..plain.clone() },
        BuildOptions { fragments: Fragments::All, ..plain },
    ]
}

/// A file is a disk in an image if it is one outside, whatever its name in the image is, and
/// otherwise the error has the same name of its format. The format of the image can be insisted on.
#[test]
fn a_file_is_the_same_in_an_image_as_outside() {
    let folder = tempfile::tempdir().expect("a folder");
    let any = (
        prop::sample::select(signs()),
        prop::sample::select(signs()),
        prop_oneof![Just(0), Just(1), Just(2)],
        prop_oneof![1..2000usize, 60_000..80_000usize, 1..400_000usize],
        0..packings().len(),
        prop::sample::select(&["disk", "disk.img", "disk.vmdk", "disk.qcow2", "disk.tar.gz", "disk.br"][..]),
        any::<bool>(),
    );
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    let tested = TestRunner::new(config).run(&any, |(first, second, fill, len, packing, name, is_named)| {
        let mut bytes = match fill {
            0 => vec![0; len],
            1 => content(len),
            _ => vec![b'\n'; len],
        };
        for (at, sign) in [first, second] {
            let at = if at < 0 { len.checked_sub(at.unsigned_abs() as usize) } else { Some(at as usize) };
            if let Some(place) = at.and_then(|at| bytes.get_mut(at..at + sign.len())) {
                place.copy_from_slice(&sign);
            }
        }
        let outside = folder.path().join("outside");
        fs::write(&outside, &bytes).expect("a file");
        let path = folder.path().join(name);
        fs::write(&path, &bytes).expect("a file");
        let image = image_of(&path, &packings()[packing]);
        let place = format!("/{name}");
        let inside = is_named.then_some(&*place);
        let found = Signature::of(&bytes, 0).expect("memory").map(Signature::name);
        match (opened(&outside, &Options::default()), opened(&image, &options(None, inside))) {
            (Ok(_), Ok(base)) => prop_assert_eq!(base.decoded_clusters(), 0),
            (Err(_), Err(error)) => {
                let said = error.to_string();
                let in_it = format!("{name} in it is ");
                prop_assert!(said.contains(found.expect("a format")), "{}", said);
                prop_assert!(said.contains(&in_it) && said.contains("--format erofs"));
            }
            (outside, inside) => prop_assert!(false, "{found:?}: outside {outside:?}, inside {inside:?}"),
        }
        let base = opened(&image, &options(Some(Format::Erofs), inside));
        let base = base.expect("any bytes");
        prop_assert_eq!(base.decoded_clusters(), 0);
        let mut read = vec![0; base.size_bytes() as usize];
        base.read(0, &mut read).expect("a read");
        prop_assert!(read[..len] == bytes);
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

/// The error has commands that a shell takes literally, and what it says about formats is true.
#[test]
fn a_refusal_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("r.vmdk");
    fs::write(&path, [&b"KDMV\x01\0\0\0"[..], &[3; 5000]].concat()).expect("a file");
    let image = image_of(&path, &BuildOptions::default());
    let shown = image.display();
    let error = opened(&image, &Options::default()).expect_err("a VMDK disk").to_string();
    assert_eq!(
        error,
        format!(
            "{shown}: r.vmdk in it is a VMDK disk ('pagefold cat {shown}:/r.vmdk > FILE' extracts it): 'qemu-img convert \
             -O raw FILE NEW.img' makes a raw disk of it; --format erofs takes its bytes as they are"
        )
    );
    let odd = folder.path().join("r $(b)\n.vmdk");
    fs::rename(&path, &odd).expect("another name");
    let error = opened(&image_of(&odd, &BuildOptions::default()), &Options::default()).expect_err("a VMDK disk");
    assert!(error.to_string().contains("'pagefold cat IMAGE:/PATH > FILE'"), "{error}");

    // A path needs an image, and the format that was given says that the file is none.
    let error = opened(&image, &options(Some(Format::Qcow2), Some("/r.vmdk"))).expect_err("a contradiction");
    let said = error.to_string();
    assert!(said.contains("--format qcow2") && !said.contains("not an EROFS image"), "{said}");
}
