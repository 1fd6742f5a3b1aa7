//! Formats of images that are written, and the names that stand for them.

use std::path::Path;

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
    fn of(path: &Path) -> Self {
        let Some(extension) = path.extension() else { return Self::Unknown };
        match extension.to_string_lossy().to_ascii_lowercase().as_str() {
            "erofs" => Self::Format(ImageFormat::Erofs),
            "raw" => Self::Format(ImageFormat::Raw),
            "qcow2" | "qcow" => Self::Format(ImageFormat::Qcow2),
            "img" => Self::AnyImage,
            "vmdk" => Self::OtherDisk("vmdk"),
            "vdi" => Self::OtherDisk("vdi"),
            "vhd" | "vpc" => Self::OtherDisk("vpc"),
            "vhdx" => Self::OtherDisk("vhdx"),
            "qed" => Self::OtherDisk("qed"),
            "hdd" => Self::OtherDisk("parallels"),
            "gz" | "xz" | "zst" | "bz2" | "lz4" | "lz" | "lzma" | "lzo" | "lrz" | "z" | "tgz" | "txz" | "tzst" => {
                Self::Compressed
            }
            "tar" | "zip" | "7z" | "cpio" | "deb" | "rpm" | "iso" | "dmg" | "squashfs" | "sqfs" | "sqsh" | "snap" => {
                Self::Other
            }
            _ => Self::Unknown,
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
    use super::*;

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
            ("b.qcow", Qcow2),
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
            for name in ["a.vmdk", "a.img.gz", "a.tar"] {
                of(name, Some(format)).expect_err("a contradiction");
            }
        }
        for (name, advice) in [
            ("a.vmdk", "qemu-img convert -O vmdk"),
            ("a.vhd", "qemu-img convert -O vpc"),
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
