//! Extraction with `fsck.erofs` of erofs-utils, for comparison.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pagefold_erofs::{ClusterCodec, Fragments, Indexes};

use crate::case::Case;
use crate::compare::Keeps;

/// An installed `fsck.erofs`.
#[derive(Clone, Debug)]
pub struct Fsck {
    program: PathBuf,
    version: (u32, u32),
    /// Its complete version and help texts.
    says: String,
}

impl Fsck {
    /// Runs the program to find its version and features.
    ///
    /// # Errors
    /// The program cannot be run or prints no version.
    pub fn new(program: &Path) -> Result<Self, String> {
        let ask = |argument: &str| {
            let output = Command::new(program).arg(argument).output();
            output.map(|output| said(&output)).map_err(|error| format!("{}: {error}", program.display()))
        };
        let version_text = ask("-V")?;
        let mut numbers = version_text.split_whitespace().filter_map(|word| {
            let (major, rest) = word.split_once('.')?;
            let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        let version = numbers.next().ok_or_else(|| format!("{} does not print its version", program.display()))?;
        Ok(Self { program: program.to_owned(), version, says: [version_text, ask("--help")?].concat() })
    }

    /// Returns its version.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Returns whether this version supports everything that the case's image may contain.
    pub fn takes(&self, case: &Case) -> bool {
        let options = &case.options;
        let hinted = case.options.hints.iter().filter_map(|hint| hint.compression);
        let mut codecs = hinted.map(|compression| compression.codec).chain(options.codec);
        let knows = |codec: ClusterCodec| {
            let name = match codec {
                ClusterCodec::Lz4 | ClusterCodec::Lz4Hc(_) => "lz4",
                ClusterCodec::MicroLzma { .. } => "lzma",
                ClusterCodec::Deflate(_) => "deflate",
                ClusterCodec::Zstd { .. } => "zstd",
            };
            self.says.contains(name)
        };
        let block = match options.block_bytes {
            4096 => true,
            // 1.8.6 crashes on 512-byte blocks with a superblock checksum.
            512 => self.version >= (1, 9),
            block => block < 4096 && self.version >= (1, 7),
        };
        let packs = options.dedupe || options.fragments != Fragments::Off;
        let prefixes = options.xattr_prefixes.is_empty() || self.version >= (1, 7);
        let extents = options.indexes != Indexes::Extents || self.version >= (1, 9);
        block && prefixes && extents && codecs.all(knows) && (!packs || self.version >= (1, 6))
    }

    /// Returns the properties that it extracts.
    pub fn keeps(&self) -> Keeps {
        let newer = self.version >= (1, 8);
        Keeps { links: newer, xattrs: false, directory_times: false, ..Keeps::COPY }
    }

    /// Extracts an image into a directory, which the program creates.
    ///
    /// # Errors
    /// The program's output.
    pub fn extract(&self, image: &Path, target: &Path) -> Result<(), String> {
        let mut option = std::ffi::OsString::from("--extract=");
        option.push(target);
        // 1.9.3 mistakes the packed inode for the root unless a path is given.
        let root = self.says.contains("--path=").then_some("--path=/");
        let output = Command::new(&self.program).arg(option).args(root).arg(image).output();
        let output = output.map_err(|error| format!("{}: {error}", self.program.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{} failed: {}: {}", self.program.display(), output.status, said(&output)))
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
