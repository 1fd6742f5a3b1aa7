//! Files in the formats of other programs: readable ones are read, others are refused by name.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use pagefold_testing::{programs, skip};
use tempfile::TempDir;

use crate::server::{Server, make_image, pagefold, run, run_to_fail};

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a plain path").to_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        fs::create_dir_all(Path::new(&self.at(name)).parent().expect("a folder")).expect("a folder");
        fs::write(self.at(name), bytes).expect("a file");
        self.at(name)
    }

    fn pack(&self, args: &[&str]) -> Output {
        pagefold().arg("pack").args(args).args(["-o", &self.at("image")]).output().expect("a start")
    }

    /// Packs, and returns the names in the image and the content of the only one.
    #[track_caller]
    fn packed(&self, args: &[&str]) -> (String, Vec<u8>) {
        let output = self.pack(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let names = run(pagefold().args(["ls", "-R", &self.at("image")]));
        let names = names.trim_end().to_owned();
        let cat = pagefold().args(["cat", &format!("{}:{names}", self.at("image"))]).output().expect("a start");
        (names, cat.stdout)
    }

    #[track_caller]
    fn refused(&self, args: &[&str]) -> String {
        let output = self.pack(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{args:?}: {said}");
        said
    }
}

/// Returns the output of a command that reads `input`.
fn filtered(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a start");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        let output = child.wait_with_output().expect("an end");
        assert!(output.status.success());
        output.stdout
    })
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).and_then(|()| gzip.finish()).expect("memory")
}

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in members {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend(header);
        archive.extend(*bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.extend([0; 1024]);
    archive
}

/// Bytes that mean nothing.
fn headed(at: usize, magic: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8 | 0x80).collect();
    bytes[..1100].fill(0);
    bytes[at..at + magic.len()].copy_from_slice(magic);
    bytes
}

#[test]
fn a_compressed_disk_is_packed_decompressed() {
    const TEST: &str = "a_compressed_disk_is_packed_decompressed";
    let folder = Folder::new();
    make_image(Path::new(&folder.at("disk.img")), 3);
    let disk = fs::read(folder.at("disk.img")).expect("a disk");
    let commands: [&[&str]; 10] = [
        &["gz", "gzip", "-c"],
        &["zst", "zstd", "-qc"],
        &["zst", "pzstd", "-qc", "-p", "3"],
        &["xz", "xz", "-0c"],
        &["lzma", "xz", "-0c", "--format=lzma"],
        &["bz2", "bzip2", "-c"],
        &["lz4", "lz4", "-qc"],
        &["lz4", "lz4", "-qc", "-B4", "-BD", "-BX"],
        &["lz4", "lz4", "-qcl"],
        &["lz", "lzip", "-0c"],
    ];
    for command in commands {
        let [extension, program, options @ ..] = command else { panic!("a command") };
        let Some([program]) = programs(TEST, [program]) else { continue };
        let bytes = filtered(Command::new(program).args(options), &disk);
        let path = folder.write(&format!("disk.img.{extension}"), &bytes);
        let (name, content) = folder.packed(&[&path]);
        assert!(name == "disk.img" && content == disk, "{command:?}: {name}");
        // As a source of an archive, it is what the archive is.
        let archive = filtered(Command::new(command[1]).args(options), &tar(&[("a", b"text")]));
        let path = folder.write(&format!("a.tar.{extension}"), &archive);
        assert_eq!(folder.packed(&[&path]), ("a".to_owned(), b"text".to_vec()), "{command:?}");
        let piped = filtered(pagefold().args(["pack", "-", "-o", "-"]), &archive);
        fs::write(folder.at("image"), piped).expect("an image");
        assert_eq!(run(pagefold().args(["cat", &(folder.at("image") + ":a")])), "text", "{command:?}");
        // A truncated file leaves no image.
        fs::remove_file(folder.at("image")).expect("an image");
        let path = folder.write("cut.img.x", &bytes[..bytes.len() - 3]);
        let said = folder.refused(&[&path]);
        assert!(said.contains("cut.img.x is damaged or truncated"), "{said}");
        assert!(!fs::exists(folder.at("image")).expect("a folder"));
    }
}

#[test]
fn the_disk_in_a_qcow2_image_is_packed() {
    const TEST: &str = "the_disk_in_a_qcow2_image_is_packed";
    let Some([qemu_img]) = programs(TEST, ["qemu-img"]) else { return };
    let folder = Folder::new();
    let disk = folder.at("disk.raw");
    make_image(Path::new(&disk), 3);
    File::options().write(true).open(&disk).expect("a disk").set_len(64 << 20).expect("a larger disk");
    let expected = fs::read(&disk).expect("a disk");
    for options in [&[][..], &["-c"], &["-o", "cluster_size=4k"]] {
        let image = folder.at("cloud.qcow2");
        run(Command::new(&qemu_img).args(["convert", "-f", "raw", "-O", "qcow2"]).args(options).args([&disk, &image]));
        for more in [&["--verify"][..], &["--dedupe", "--codec", "zstd"]] {
            let (name, content) = folder.packed(&[&[&image[..]][..], more].concat());
            assert!(name == "cloud.img" && content == expected, "{options:?}");
        }
    }
    let image = fs::read(folder.at("cloud.qcow2")).expect("an image");
    // Clouds name such images like raw disks. So is the disk of a guest that wrote such a header to
    // it.
    let named = folder.write("cloud.img", &image);
    let said = folder.refused(&[&named]);
    assert!(said.contains("contains a qcow2 image") && said.contains("--format qcow2 or --format raw"), "{said}");
    assert!(folder.packed(&[&named, "--format", "qcow2"]) == ("cloud.img".to_owned(), expected.clone()));
    assert!(folder.packed(&[&named, "--format", "raw"]) == ("cloud.img".to_owned(), image.clone()));
    assert!(folder.refused(&[&disk, "--format", "qcow2"]).contains("disk.raw"));
    let compressed = folder.write("cloud.qcow2.gz", &gzip(&image));
    assert!(folder.packed(&[&compressed]) == ("cloud.img".to_owned(), expected.clone()));
    // An image of one disk is packed again, with another codec.
    fs::rename(folder.at("image"), folder.at("first.erofs")).expect("an image");
    let again = folder.packed(&[&folder.at("first.erofs"), "--codec", "zstd"]);
    assert!(again == ("cloud.img".to_owned(), expected));
    let cut = folder.write("cut.qcow2", &image[..image.len() / 2]);
    let said = folder.refused(&[&cut]);
    assert!(said.contains("cut.qcow2"), "{said}");
    // An image that cannot be read alone is refused, with the command that helps.
    let create = ["create", "-f", "qcow2", "-b", "disk.raw", "-F", "raw", "above.qcow2"];
    run(Command::new(&qemu_img).args(create).current_dir(folder.0.path()));
    let said = folder.refused(&[&folder.at("above.qcow2")]);
    assert!(said.contains("has a backing file: 'qemu-img convert -O raw"), "{said}");
}

#[test]
fn formats_of_qemu_are_refused_by_name() {
    const TEST: &str = "formats_of_qemu_are_refused_by_name";
    let Some([qemu_img]) = programs(TEST, ["qemu-img"]) else { return };
    let folder = Folder::new();
    let disk = folder.at("disk.raw");
    make_image(Path::new(&disk), 1);
    for (format, options, name) in [
        ("vmdk", "", "a VMDK disk"),
        ("vmdk", "subformat=streamOptimized", "a VMDK disk"),
        ("vmdk", "subformat=monolithicFlat", "a VMDK disk"),
        ("vdi", "", "a VirtualBox disk"),
        ("vhdx", "", "a VHDX disk"),
        ("vpc", "", "a VHD disk"),
        ("vpc", "subformat=fixed", "a VHD disk"),
        ("qed", "", "a QED image"),
        ("parallels", "", "a Parallels disk"),
        ("qcow", "", "a qcow image of version 1"),
        ("luks", "", "a LUKS volume"),
    ] {
        let image = folder.at(&format!("disk.{format}"));
        let mut convert = Command::new(&qemu_img);
        convert.args(["convert", "-f", "raw", "-O", format]);
        if format == "luks" {
            convert.args(["--object", "secret,id=s,data=s", "-o", "key-secret=s,iter-time=10"]);
        } else if !options.is_empty() {
            convert.args(["-o", options]);
        }
        convert.args([&disk, &image]);
        // To choose the effort for a key, qemu measures the processor time of a try, which may be none.
        let mut output = convert.output().expect("a start");
        for _ in 0..20 {
            if !String::from_utf8_lossy(&output.stderr).contains("CPU usage") {
                break;
            }
            output = convert.output().expect("a start");
        }
        if !output.status.success() {
            skip(TEST, &format!("this qemu-img does not write {format}"));
            continue;
        }
        let said = folder.refused(&[&image]);
        assert!(said.contains(name) && said.contains("--format raw") && said.contains(&image), "{format}: {said}");
        // This holds for any name, and for bases and samples too.
        let other = folder.at("other.img");
        fs::copy(&image, &other).expect("a copy");
        assert!(folder.refused(&[&other]).contains(name));
        for command in ["advise", "ls", "serve"] {
            let mut command = pagefold_in(&folder, command);
            let said = run_to_fail(command.arg(&other));
            assert!(said.contains(name), "{format}: {said}");
        }
        assert!(folder.packed(&[&other, "--format", "raw"]) == ("other.img".to_owned(), fs::read(&image).expect("it")));
    }
}

fn pagefold_in(folder: &Folder, name: &str) -> Command {
    let mut command = pagefold();
    command.arg(name);
    if name == "serve" {
        command.args(["--dir", &folder.at("server")]);
    }
    command
}

/// The names of raw disks say nothing of an image, so `pack` says what `serve` needs for them.
#[test]
fn a_disk_is_packed_under_any_name_and_served() {
    let folder = Folder::new();
    let disk = folder.write("disk", &[7; 5000]);
    let tree = folder.write("tree/a/b", b"text");
    let tree = Path::new(&tree).ancestors().nth(2).expect("a folder").to_str().expect("text");
    for name in ["y.erofs", "y.EROFS", "y.img", "y.IMG", "y", "y.bin"] {
        let image = folder.at(name);
        let pack = |source: &str| {
            let output = pagefold().args(["pack", source, "-o", &image]).output().expect("a start");
            assert!(output.status.success());
            String::from_utf8_lossy(&output.stderr).contains("--format erofs")
        };
        let needs_format = pack(&disk);
        assert_eq!(needs_format, !name.to_lowercase().ends_with(".erofs"), "{name}");
        if needs_format {
            let said = run_to_fail(pagefold_in(&folder, "serve").arg(&image));
            assert!(said.contains("contains an EROFS image") && said.contains("give --format erofs"), "{said}");
        }
        let args = ["--format", "erofs", &image];
        let server = Server::start(if needs_format { &args } else { &args[2..] });
        assert!(run(&mut server.ask(&["disks"])).contains("5 KiB"), "{name}");
        assert!(!pack(tree), "{name}");
    }
}

/// The beginning of version 4.
const SQUASHFS: &[u8] = b"hsqs\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\0";

/// The header of an empty file.
const CPIO: &[u8] =
    b"070701000000010000000000000000000000000000000100000000000000000000000000000000000000000000000000000002\
    00000000a\0";

#[test]
fn unreadable_formats_are_refused_with_a_helpful_command() {
    let folder = Folder::new();
    let server = Server::start(&["--size", "1M"]);
    for (file, at, magic, name, command) in [
        ("a.squashfs", 0, SQUASHFS, "a squashfs image", "unsquashfs -d DIRECTORY"),
        ("a.zip", 0, b"PK\x03\x04", "a zip archive", "bsdtar -cf - @"),
        ("initrd", 0, CPIO, "a cpio archive", "bsdtar -cf - @"),
        ("a.deb", 0, b"!<arch>\ndebian-binary", "a Debian package", "dpkg-deb --fsys-tarfile"),
        ("a.rpm", 0, b"\xed\xab\xee\xdb", "an RPM package", "rpm2cpio"),
        ("a.7z", 0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "bsdtar"),
        ("a.simg", 0, b"\x3a\xff\x26\xed", "an Android sparse image", "simg2img"),
        ("a.luks", 0, b"LUKS\xba\xbe\0\x02", "a LUKS volume", "cryptsetup open"),
        ("a.tar.lzo", 0, b"\x89LZO\0\r\n\x1a\n", "data compressed by lzop", "lzop -dc"),
        ("a.tar.lrz", 0, b"LRZI\0", "data compressed by lrzip", "lrzip -d"),
        ("a.tar.Z", 0, b"\x1f\x9d\x90ab\0", "data compressed by compress", "gzip -dc"),
        ("a.vdi", 64, b"\x7f\x10\xda\xbe", "a VirtualBox disk", "qemu-img convert"),
        ("sda1", 0, b"partclone-imageEXTFS\0\0\0\0\0\0\0\0\0\0\x30001", "a partclone image", "partclone.restore -W -s"),
        ("case.E01", 0, b"EVF\t\r\n\xff\0", "a forensic image", "ewfmount"),
        ("disk.img", 0, b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS", "git lfs pull"),
    ] {
        let bytes = headed(at, magic);
        let path = folder.write(file, &bytes);
        let layer = folder.write("tree/text", b"text");
        let tree = Path::new(&layer).parent().expect("a folder").to_str().expect("text").to_owned();
        // Alone, as a layer, below and above others.
        for args in [&[&path[..]][..], &["--layer", &path], &[&tree, &path], &[&path, &tree]] {
            let said = folder.refused(args);
            assert!(said.contains(name) && said.contains(command), "{args:?}: {said}");
        }
        let piped =
            pagefold().args(["pack", "-", "-o", &folder.at("image")]).stdin(File::open(&path).expect("it")).output();
        let said = String::from_utf8_lossy(&piped.expect("a start").stderr).into_owned();
        assert!(said.contains(name) && said.contains("standard input"), "{said}");
        let said = run_to_fail(&mut server.ask(&["add", "a", "--base", &path]));
        assert!(said.contains(name) && said.contains(command) && said.contains("--format raw"), "{said}");
        let said = run_to_fail(pagefold().args(["info", &path]));
        assert!(said.contains("is not an EROFS image; it is") && said.contains(name), "{said}");
        assert!(folder.packed(&[&path, "--format", "raw"]) == (file.to_owned(), bytes.clone()));
        run(&mut server.ask(&["add", "a", "--base", &path, "--format", "raw"]));
        run(&mut server.ask(&["remove", "a"]));
        // In an image, it is still not a disk.
        let image = folder.at("a.erofs");
        fs::rename(folder.at("image"), &image).expect("an image");
        let inside = format!("{image}:/{file}");
        let mut commands = vec![pagefold_in(&folder, "serve"), pagefold_in(&folder, "serve")];
        commands[0].arg(&image);
        commands[1].arg(&inside);
        commands.extend([&image, &inside].map(|place| server.ask(&["add", "a", "--base", place])));
        let said = commands.iter_mut().map(run_to_fail).chain([folder.refused(&[&image])]);
        for said in said.collect::<Vec<_>>() {
            let what = format!("{file} in it is {name}");
            let words = [&what, command, &format!("'pagefold cat {inside} > FILE'"), "--format erofs"];
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
        run(&mut server.ask(&["add", "a", "--base", &inside, "--format", "erofs"]));
        run(&mut server.ask(&["remove", "a"]));
        assert!(folder.packed(&[&image, "--format", "erofs"]) == (file.to_owned(), bytes));
        // Compressed, it is still not a disk.
        let path = folder.write("compressed.gz", &gzip(&headed(at, magic)));
        let said = folder.refused(&[&path]);
        assert!(said.contains(name) && said.contains("'gzip -dc ") && said.contains("its content is"), "{said}");
    }
    // The second command reads what the first one creates.
    let path = folder.write("zipped.tgz", &gzip(&headed(0, b"PK\x03\x04")));
    for created in [folder.at("zipped.tar"), "NEW".to_owned()] {
        let said = folder.refused(&[&path]);
        assert!(said.contains(&format!(" > {created}'")) && said.contains(&format!(" @{created} ")), "{said}");
        folder.write("zipped.tar", b"precious");
    }
    let brotli = folder.write("a.tar.br", b"any bytes");
    assert!(folder.refused(&[&brotli]).contains("Brotli data: 'brotli -dc"));
    let twice = folder.write("a.gz", &gzip(&gzip(b"text")));
    assert!(folder.refused(&[&twice]).contains("compressed twice"));
    // A disk that begins with zeros is not an empty archive.
    let mut disk = vec![0; 9 << 20];
    disk[8 << 20..].fill(7);
    for name in ["disk.tar", "disk.tar.gz"] {
        let path = folder.write(name, &if name.ends_with("gz") { gzip(&disk) } else { disk.clone() });
        let said = folder.refused(&[&path]);
        assert!(said.contains("not a tar archive") && !said.contains("pipe"), "{said}");
    }
    assert!(folder.refused(&[&folder.at("disk.tar")]).contains("give --format raw"));
    // The format that was given is not that of the compressed file.
    let qcow2 = gzip(&headed(0, b"QFI\xfb\0\0\0\x03"));
    for name in ["a.img.gz", "a.tar.gz", "a.gz"] {
        let path = folder.write(name, &qcow2);
        let said = folder.refused(&[&path]);
        let words = ["'gzip -dc ", "its content is a qcow2 image: 'qemu-img convert"];
        assert!(words.iter().all(|word| said.contains(word)) && !said.contains("--format"), "{said}");
        let said = folder.refused(&["--format", "qcow2", &path]);
        assert!(said.contains("not a qcow2 image, but gzip data: 'pagefold pack "), "{said}");
    }
    let text = folder.write("text.qcow2", &[b'x'; 200]);
    assert!(folder.refused(&["--format", "qcow2", &text]).contains("text.qcow2: not a qcow2 image"));
    let said = run_to_fail(
        pagefold().args(["pack", "-", "-o", &folder.at("image")]).stdin(File::open(folder.at("disk.tar")).expect("it")),
    );
    assert!(said.contains("Give a disk as a file"), "{said}");
    for args in [
        &["--format", "raw", &folder.at("tree"), &folder.at("a.zip")][..],
        &["--format", "raw", "-"],
        &["--platform", "linux/arm64", &folder.at("tree")],
    ] {
        assert_eq!(folder.pack(args).status.code(), Some(2), "{args:?}");
    }
}

/// A kind of content, and the result of packing it.
struct Sample {
    bytes: Vec<u8>,
    /// Names that fit end in one of these.
    fits: &'static [&'static str],
    /// Words that an error mentions.
    named: &'static str,
    /// The content of the only file in an image of it.
    content: Option<Vec<u8>>,
}

/// The contents and the names of files are drawn independently. Whatever the combination, the image
/// has the right content, or an error names the format or the misleading name; nothing is ever
/// packed as something else.
#[test]
fn no_content_is_misread_under_any_name() {
    let folder = Folder::new();
    let disk: Vec<u8> = (0..70_000u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8 | 1).collect();
    let raw = folder.write("disk.img", &disk);
    let image = {
        folder.packed(&[&raw]);
        fs::read(folder.at("image")).expect("an image")
    };
    let archive = tar(&[("a", &disk)]);
    let xz = |bytes: &[u8]| {
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 0);
        xz.write_all(bytes).and_then(|()| xz.finish()).expect("memory")
    };
    let sample = |bytes, fits, named, content| Sample { bytes, fits, named, content };
    let none = || None;
    let ends = &["", ".img", ".raw", ".iso", ".txt", ".bin", ".x.y"][..];
    let archives = &["", ".txt", ".bin", ".x.y", ".tar", ".gz", ".tar.gz", ".tgz", ".tar.xz", ".zst", ".img.gz"][..];
    // The content in it has the name of its own format.
    let of_tar = &archives[..10];
    let of_disk = &["", ".txt", ".bin", ".x.y", ".gz", ".zst", ".img.gz", ".img.xz"][..];
    let samples = [
        sample(disk.clone(), ends, "a raw disk", Some(disk.clone())),
        sample(b"sqsh is a shell\n".to_vec(), ends, "a text", Some(b"sqsh is a shell\n".to_vec())),
        sample(b"MSCF begins a cabinet\n".to_vec(), ends, "a text", Some(b"MSCF begins a cabinet\n".to_vec())),
        sample(archive.clone(), archives, "a tar archive", Some(disk.clone())),
        sample(gzip(&archive), of_tar, "a tar archive", Some(disk.clone())),
        sample(gzip(&disk), of_disk, "gzip data", Some(disk.clone())),
        sample(xz(&disk), of_disk, "xz data", Some(disk.clone())),
        sample(zstd::encode_all(&disk[..], 1).expect("memory"), of_disk, "Zstandard data", Some(disk.clone())),
        sample(image.clone(), &[".erofs"], "an EROFS image", Some(disk.clone())),
        sample(gzip(&image), &[], "an EROFS image", none()),
        sample(headed(0, b"QFI\xfb\0\0\0\x03"), &[], "qcow2", none()),
        sample(headed(0, b"KDMV\x01\0\0\0"), &[], "a VMDK disk", none()),
        sample(headed(0, b"PK\x03\x04"), &[], "a zip archive", none()),
        sample(headed(0, SQUASHFS), &[], "a squashfs image", none()),
        sample(headed(0, CPIO), &[], "a cpio archive", none()),
        sample(headed(0, b"LUKS\xba\xbe\0\x01"), &[], "a LUKS volume", none()),
        sample(gzip(&headed(0, b"KDMV\x01\0\0\0")), &[], "a VMDK disk", none()),
    ];
    let names =
        ends.iter().chain(archives).chain(&[".erofs", ".qcow2", ".vmdk", ".zip", ".luks", ".QCOW2", ".squashfs"]);
    let pairs: Vec<_> = names.flat_map(|name| samples.iter().map(move |sample| (*name, sample))).collect();
    // Each run tries others.
    let seed = std::process::id() as usize;
    for number in 0..60 {
        let (end, sample) = &pairs[(seed + number * 7919) % pairs.len()];
        let path = folder.write(&format!("file{end}"), &sample.bytes);
        let output = folder.pack(&[&path]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let shown = format!("{} as file{end}: {said}", sample.named);
        fs::remove_file(&path).expect("a file");
        if output.status.success() {
            let expected = sample.content.as_ref().unwrap_or_else(|| panic!("packed: {shown}"));
            let names = run(pagefold().args(["ls", "-R", &folder.at("image")]));
            let cat = format!("{}:{}", folder.at("image"), names.trim_end());
            let found = pagefold().args(["cat", &cat]).output().expect("a start").stdout;
            assert!(&found == expected, "other content: {shown}");
            fs::remove_file(folder.at("image")).expect("an image");
        } else {
            assert_eq!(output.status.code(), Some(1), "{shown}");
            assert!(!sample.fits.contains(end), "refused: {shown}");
            let names = said.contains(sample.named)
                || said.contains("its name is that of")
                || said.contains("named")
                || said.contains("not a tar archive")
                || said.contains("is this a tar archive");
            assert!(names, "not named: {shown}");
        }
    }
}

#[test]
fn an_image_in_a_disk_is_found() {
    let folder = Folder::new();
    folder.write("tree/text", b"text");
    run(pagefold().args(["pack", &folder.at("tree"), "-o", &folder.at("image")]));
    let image = fs::read(folder.at("image")).expect("an image");
    let mut disk = vec![0; 40 << 20];
    // A GPT with two partitions. The second one begins after the range that is searched without a
    // table.
    disk[510..512].copy_from_slice(b"\x55\xaa");
    disk[512..520].copy_from_slice(b"EFI PART");
    disk[512 + 72..][..8].copy_from_slice(&2u64.to_le_bytes());
    disk[512 + 80..][..4].copy_from_slice(&4u32.to_le_bytes());
    disk[512 + 84..][..4].copy_from_slice(&128u32.to_le_bytes());
    for (number, sector) in [2048u64, 65536].into_iter().enumerate() {
        let entry = &mut disk[1024 + 128 * number..][..128];
        entry[..16].fill(1);
        entry[32..40].copy_from_slice(&sector.to_le_bytes());
    }
    let path = folder.write("disk.img", &disk);
    let fails = |command: &str| run_to_fail(pagefold().args([command, &path]));
    let said = fails("ls");
    assert!(said.contains("GPT") && said.contains("partitions begin at byte 1048576, 33554432"), "{said}");
    disk[32 << 20..][..image.len()].copy_from_slice(&image);
    folder.write("disk.img", &disk);
    for command in ["ls", "check", "info"] {
        let said = fails(command);
        assert!(said.contains("give --offset 33554432"), "{said}");
    }
    assert_eq!(run(pagefold().args(["ls", "--offset", "33554432", &path])), "text\n");
    // Behind any header, without a table.
    for start in [512, 4096, 1 << 20] {
        let path = folder.write("firmware.bin", &[&vec![9; start][..], &image].concat());
        let said = run_to_fail(pagefold().args(["ls", &path]));
        assert!(said.contains(&format!("give --offset {start}")), "{said}");
    }
    // A damaged table is not followed.
    disk[512 + 72..][..8].fill(0xff);
    disk[512 + 80..][..4].fill(0xff);
    folder.write("disk.img", &disk);
    assert!(fails("ls").contains("GPT"));
}

#[test]
fn a_truncated_image_says_where_it_ends() {
    let folder = Folder::new();
    let noise: Vec<u8> = (0..300_000u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 23) as u8).collect();
    let disk = folder.write("disk.img", &noise);
    run(pagefold().args(["pack", "--codec", "none", &disk, "-o", &folder.at("disk.erofs")]));
    let image = fs::read(folder.at("disk.erofs")).expect("an image");
    for len in [1000, 1100, 100_000] {
        let path = folder.write("cut.erofs", &image[..len]);
        let said = run_to_fail(pagefold().args(["check", &path]));
        assert!(!said.contains("failed to fill"), "{len}: {said}");
        let output = pagefold().args(["cat", &(path + ":disk.img")]).output().expect("a start");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("failed to fill") && !output.status.success(), "{len}: {said}");
        if len > 50_000 {
            assert!(said.contains(&format!("the image ends at byte {len}, before this structure")), "{said}");
        }
    }
}
