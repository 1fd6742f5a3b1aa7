//! Formats of images that are written, and the names that stand for them.

use std::path::Path;

use pagefold_base::{Format, Kind, Signature};

use crate::{Error, Result};

/// The format of an image that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// A compressed image.
    Erofs,
    /// A raw disk, with holes for zeros.
    Raw,
    /// QEMU's format, version 3.
    Qcow2,
}

/// The meaning of a name's ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Format(ImageFormat),
    /// An image of any format; raw, unless another is given.
    AnyImage,
    /// A disk format that is not written; the name is what `qemu-img convert -O` calls it.
    OtherDisk(&'static str),
    /// Compressed data.
    Compressed,
    /// Other data.
    Other,
    Unknown,
}

impl Ending {
    /// The formats of other names are those that readers take the names for.
    fn of(path: &Path) -> Self {
        let Some(extension) = path.extension() else { return Self::Unknown };
        match extension.to_ascii_lowercase().to_str() {
            Some("img") => return Self::AnyImage,
            Some("raw" | "dd") => return Self::Format(ImageFormat::Raw),
            Some("iso") => return Self::Other,
            _ => {}
        }
        match Signature::of_extension(extension).map(Signature::kind) {
            Some(Kind::Base(Format::Erofs)) => Self::Format(ImageFormat::Erofs),
            Some(Kind::Base(Format::Qcow2)) => Self::Format(ImageFormat::Qcow2),
            Some(Kind::OtherDisk(name)) => Self::OtherDisk(name),
            Some(Kind::Compressed(_)) => Self::Compressed,
            Some(_) => Self::Other,
            None => Self::Unknown,
        }
    }

    /// Returns whether a file with such a name may have this format.
    fn allows(self, format: ImageFormat) -> bool {
        match self {
            Self::Format(named) => named == format,
            Self::AnyImage | Self::Unknown => true,
            Self::OtherDisk(_) | Self::Compressed | Self::Other => false,
        }
    }
}

impl ImageFormat {
    /// Returns the format as `--format` names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Erofs => "erofs",
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }

    /// Returns the format in words, with an article.
    pub fn described(self) -> &'static str {
        match self {
            Self::Erofs => "an EROFS image",
            Self::Raw => "a raw disk",
            Self::Qcow2 => "a qcow2 image",
        }
    }

    /// Returns the format of the output `path`: the `given` one, or the one that the name means.
    /// `is_device` says that it is a block device, which is a raw disk.
    ///
    /// # Errors
    /// [`Error::Name`]: name and format disagree, or neither says the format.
    pub fn of_output(path: &Path, given: Option<Self>, is_device: bool) -> Result<Self> {
        let shown = path.display();
        if path == Path::new("-") {
            let unnamed = || Error::Name("standard output has no name that says the format: give --format".to_owned());
            return given.ok_or_else(unnamed);
        }
        if is_device {
            return Ok(given.unwrap_or(Self::Raw));
        }
        if let Some(given) = given {
            given.check_name(path, &format!("--format {}", given.name()))?;
            return Ok(given);
        }
        let wrong = |what: String| Err(Error::Name(what));
        match Ending::of(path) {
            Ending::Format(format) => Ok(format),
            Ending::AnyImage => Ok(Self::Raw),
            Ending::OtherDisk(name) => wrong(format!(
                "{shown}: this format is not supported: write a qcow2 image, then convert it with 'qemu-img convert -O {name}'"
            )),
            Ending::Compressed => wrong(format!(
                "{shown}: the output is not compressed in this way: write an EROFS or qcow2 image, or pipe the disk to a \
                 compressor with --format raw -o -"
            )),
            Ending::Other => {
                wrong(format!("{shown}: this format is not supported: end the name in .erofs, .qcow2 or .img"))
            }
            Ending::Unknown => wrong(format!(
                "{shown}: the name does not say the format: end it in .erofs, .qcow2 or .img, or give --format"
            )),
        }
    }

    /// Checks that the name of an output does not mean another format than this one, which `why`
    /// has chosen.
    ///
    /// # Errors
    /// [`Error::Name`]: the name means another format.
    pub fn check_name(self, path: &Path, why: &str) -> Result<()> {
        let ending = Ending::of(path);
        if ending.allows(self) {
            return Ok(());
        }
        let named = match ending {
            Ending::Format(named) => named.described(),
            Ending::OtherDisk(_) => "a disk of another format",
            Ending::Compressed => "compressed data",
            _ => "a file of another format",
        };
        let fitting = match self {
            Self::Erofs => ".erofs",
            Self::Raw => ".img or .raw",
            Self::Qcow2 => ".qcow2",
        };
        Err(Error::Name(format!(
            "{} is named like {named}, but {why} means {}: end the name in {fitting}",
            path.display(),
            self.described()
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pagefold_base::OpenError;
    use proptest::prelude::*;

    use super::*;

    /// The start of a file of this format.
    fn front(format: ImageFormat) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        match format {
            ImageFormat::Erofs => bytes[1024..1028].copy_from_slice(&[0xe2, 0xe1, 0xf5, 0xe0]),
            ImageFormat::Raw => {}
            ImageFormat::Qcow2 => bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03"),
        }
        bytes
    }

    const EXTENSIONS: &[&str] = &[
        "erofs",
        "qcow2",
        "qcow",
        "vmdk",
        "vdi",
        "vhd",
        "vpc",
        "vhdx",
        "qed",
        "parallels",
        "hdd",
        "hds",
        "dmg",
        "simg",
        "luks",
        "vma",
        "wim",
        "esd",
        "squashfs",
        "sqfs",
        "snap",
        "cramfs",
        "romfs",
        "gz",
        "tgz",
        "zst",
        "tzst",
        "xz",
        "txz",
        "bz2",
        "tbz",
        "tbz2",
        "lz4",
        "tlz4",
        "lz",
        "tlz",
        "lzma",
        "lzo",
        "tzo",
        "lrz",
        "Z",
        "z",
        "taz",
        "br",
        "sz",
        "tar",
        "ova",
        "zip",
        "jar",
        "apk",
        "cpio",
        "deb",
        "a",
        "ar",
        "rpm",
        "7z",
        "rar",
        "xar",
        "cab",
        "warc",
        "raw",
        "img",
        "dd",
        "iso",
    ];

    proptest! {
        /// What is written under a name is read as what it is, or refused because the name does not
        /// say it, or not written.
        #[test]
        fn what_is_written_is_read(
            extension in prop_oneof![prop::sample::select(EXTENSIONS).prop_map(str::to_owned), "[A-Za-z0-9]{1,4}"],
            upper in any::<bool>(),
        ) {
            use ImageFormat::{Erofs, Qcow2, Raw};
            let folder = tempfile::tempdir().expect("a folder");
            let extension = if upper { extension.to_ascii_uppercase() } else { extension };
            let path = folder.path().join(format!("a.b.{extension}"));
            for (format, read) in [(Erofs, Format::Erofs), (Raw, Format::Raw), (Qcow2, Format::Qcow2)] {
                if ImageFormat::of_output(&path, Some(format), false).is_err() {
                    continue;
                }
                fs::write(&path, front(format)).expect("a file");
                let storage = pagefold_storage::open(&path).expect("a file");
                let is_named = Signature::of_name(&path).is_some();
                match Format::of(&path, &*storage) {
                    Ok(found) => prop_assert_eq!(found, read),
                    Err(OpenError::Doubtful { found, .. }) => prop_assert!(found == read && !is_named),
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
        }
    }

    fn of(name: &str, given: Option<ImageFormat>) -> Result<ImageFormat, String> {
        ImageFormat::of_output(Path::new(name), given, false).map_err(|error| error.to_string())
    }

    #[test]
    fn names_choose_the_format() {
        use ImageFormat::{Erofs, Qcow2, Raw};
        for (name, format) in [
            ("a.erofs", Erofs),
            ("a.EROFS", Erofs),
            ("a.img", Raw),
            ("a.b.raw", Raw),
            ("a.qcow2", Qcow2),
            ("a.DD", Raw),
        ] {
            assert_eq!(of(name, None), Ok(format), "{name}");
            assert_eq!(of(name, Some(format)), Ok(format), "{name}");
        }
        for format in [Erofs, Raw, Qcow2] {
            for name in ["a", "a.img", "job.1", "-", ".erofs"] {
                assert_eq!(of(name, Some(format)), Ok(format), "{name}");
            }
            let named = [("a.erofs", Erofs), ("a.raw", Raw), ("a.qcow2", Qcow2)];
            for (name, _) in named.into_iter().filter(|(_, named)| *named != format) {
                let what = of(name, Some(format)).expect_err("a contradiction");
                assert!(what.contains(name) && what.contains(format.name()), "{what}");
            }
            for name in ["a.vmdk", "a.img.gz", "a.tar", "a.ova", "a.qcow", "a.jar", "a.tbz", "a.hds", "a.br"] {
                of(name, Some(format)).expect_err("a contradiction");
            }
        }
        for (name, advice) in [
            ("a.vmdk", "qemu-img convert -O vmdk"),
            ("a.vhd", "qemu-img convert -O vpc"),
            ("a.qcow", "qemu-img convert -O qcow'"),
            ("a.hds", "qemu-img convert -O parallels"),
            ("a.img.gz", "--format raw -o -"),
            ("a.squashfs", ".erofs, .qcow2 or .img"),
            ("a", "or give --format"),
            ("-", "give --format"),
        ] {
            let what = of(name, None).expect_err("no format");
            assert!(what.contains(advice), "{what}");
        }
        assert_eq!(ImageFormat::of_output(Path::new("/dev/sdz.vmdk"), None, true).expect("a device"), Raw);
    }
}
