//! Writes tar archives as different archivers do, from the description of the format.

use std::io::Write;

/// The program that wrote a header, which determines its magic number and fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Magic {
    /// Before POSIX: nothing after the link's target.
    Old,
    Ustar,
    /// ustar with another version than POSIX's.
    UstarOf([u8; 2]),
    Gnu,
}

/// How the numbers of a header are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Octal digits and a NUL.
    Octal,
    /// Octal digits after spaces, and then a space and a NUL, as in V7.
    Spaced,
    /// Base 256.
    Binary,
    /// In PAX records; the fields of the header are zero.
    Pax,
}

/// The format of a sparse member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holes {
    Gnu,
    Pax00,
    Pax01,
    Pax10,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    File(Vec<u8>),
    /// The size, and the ranges that are not holes.
    Sparse(u64, Vec<(u64, Vec<u8>)>, Holes),
    Directory,
    Symlink(String),
    HardLink(String),
    Fifo,
}

/// A member, and the way in which it is written.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) path: String,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: i64,
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
    pub(crate) magic: Magic,
    pub(crate) numbers: Numbers,
    /// The sum is over signed bytes.
    pub(crate) signed: bool,
    /// The type of the PAX header: x, or Solaris's X.
    pub(crate) pax_kind: u8,
    /// The path and the target are in extension headers even if they are short.
    pub(crate) long: bool,
    /// The size in the header of a member without content.
    pub(crate) false_size: u64,
    /// What follows the header of a hard link.
    pub(crate) content_of_link: Option<Vec<u8>>,
}

impl Member {
    pub(crate) fn new(path: &str, kind: Kind) -> Self {
        Self {
            path: path.to_owned(),
            kind,
            mode: 0o644,
            owner: (0, 0),
            mtime: 1,
            xattrs: Vec::new(),
            magic: Magic::Ustar,
            numbers: Numbers::Octal,
            signed: false,
            pax_kind: b'x',
            long: false,
            false_size: 0,
            content_of_link: None,
        }
    }

    pub(crate) fn file(path: &str, content: &[u8]) -> Self {
        Self::new(path, Kind::File(content.to_vec()))
    }

    pub(crate) fn directory(path: &str) -> Self {
        Self { mode: 0o755, ..Self::new(path, Kind::Directory) }
    }

    pub(crate) fn symlink(path: &str, target: &str) -> Self {
        Self { mode: 0o777, ..Self::new(path, Kind::Symlink(target.to_owned())) }
    }

    pub(crate) fn hard_link(path: &str, target: &str) -> Self {
        Self::new(path, Kind::HardLink(target.to_owned()))
    }

    /// Returns the member's bytes: extension headers, header and content.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut records: Vec<(String, Vec<u8>)> = Vec::new();
        for (name, value) in &self.xattrs {
            let name = name.replace('%', "%25").replace('=', "%3D");
            records.push((format!("SCHILY.xattr.{name}"), value.clone()));
        }
        let (kind, link, content) = match &self.kind {
            Kind::File(content) => (b'0', "", content.clone()),
            Kind::Sparse(size, spans, holes) => {
                let (content, more) = sparse(*size, spans, *holes);
                records.extend(more);
                if *holes == Holes::Pax10 {
                    records.push(("GNU.sparse.name".to_owned(), self.path.clone().into()));
                }
                (if *holes == Holes::Gnu { b'S' } else { b'0' }, "", content)
            }
            Kind::Directory => (b'5', "", Vec::new()),
            Kind::Symlink(target) => (b'2', &target[..], Vec::new()),
            Kind::HardLink(target) => (b'1', &target[..], self.content_of_link.clone().unwrap_or_default()),
            Kind::Fifo => (b'6', "", Vec::new()),
        };
        let size = if content.is_empty() { self.false_size } else { content.len() as u64 };
        if self.numbers == Numbers::Pax {
            let numbers = [("uid", i64::from(self.owner.0)), ("gid", i64::from(self.owner.1)), ("mtime", self.mtime)];
            records.extend(numbers.map(|(key, number)| (key.to_owned(), number.to_string().into())));
            records.push(("size".to_owned(), size.to_string().into()));
        }
        let mut bytes = Vec::new();
        let (mut path, mut target) = (&self.path[..], link);
        for (text, gnu, key) in [(&mut path, b'L', "path"), (&mut target, b'K', "linkpath")] {
            if text.len() <= 100 && (text.is_empty() || !self.long) {
                continue;
            }
            if self.magic == Magic::Gnu {
                let long = [text.as_bytes(), b"\0"].concat();
                bytes.extend(self.header("././@LongLink", gnu, "", long.len() as u64, Numbers::Octal));
                padded(&mut bytes, &long);
            } else {
                records.push((key.to_owned(), text.as_bytes().to_vec()));
            }
            *text = "cut";
        }
        if !records.is_empty() {
            let records = pax(&records);
            bytes.extend(self.header("pax", self.pax_kind, "", records.len() as u64, Numbers::Octal));
            padded(&mut bytes, &records);
        }
        let mut header = self.header(path, kind, target, size, self.numbers);
        if let Kind::Sparse(size, spans, Holes::Gnu) = &self.kind {
            gnu_map(&mut header, *size, spans, self.signed);
        }
        bytes.extend(header);
        padded(&mut bytes, &content);
        bytes
    }

    fn header(&self, path: &str, kind: u8, target: &str, size: u64, numbers: Numbers) -> [u8; 512] {
        let mut bytes = [0; 512];
        let is_ustar = matches!(self.magic, Magic::Ustar | Magic::UstarOf(_));
        let (prefix, name) = match path.rsplit_once('/') {
            Some((prefix, name)) if is_ustar && !name.is_empty() => (prefix, name),
            _ => ("", path),
        };
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes[345..345 + prefix.len()].copy_from_slice(prefix.as_bytes());
        bytes[157..157 + target.len()].copy_from_slice(target.as_bytes());
        bytes[156] = kind;
        match self.magic {
            Magic::Old => {}
            Magic::Ustar => bytes[257..265].copy_from_slice(b"ustar\x0000"),
            Magic::UstarOf(version) => {
                bytes[257..263].copy_from_slice(b"ustar\0");
                bytes[263..265].copy_from_slice(&version);
            }
            Magic::Gnu => bytes[257..265].copy_from_slice(b"ustar  \0"),
        }
        let fields = [
            (100..108, i64::from(self.mode)),
            (108..116, i64::from(self.owner.0)),
            (116..124, i64::from(self.owner.1)),
            (124..136, size as i64),
            (136..148, self.mtime),
        ];
        for (field, number) in fields {
            let len = field.len();
            let is_mode = field.start == 100;
            let text = match numbers {
                Numbers::Pax if !is_mode => format!("{:0width$o}\0", 0, width = len - 1).into_bytes(),
                _ if number < 0 || number >> (3 * (len - 2)) > 0 => binary(number, len),
                Numbers::Binary => binary(number, len),
                Numbers::Spaced => format!("{number:>width$o} \0", width = len - 2).into_bytes(),
                Numbers::Octal | Numbers::Pax => format!("{number:0width$o}\0", width = len - 1).into_bytes(),
            };
            bytes[field].copy_from_slice(&text);
        }
        add_up(&mut bytes, self.signed);
        bytes
    }
}

fn binary(number: i64, len: usize) -> Vec<u8> {
    let mut bytes = i128::from(number).to_be_bytes()[16 - len..].to_vec();
    bytes[0] |= 0x80;
    bytes
}

/// Writes the sum of a header.
pub(crate) fn add_up(bytes: &mut [u8; 512], signed: bool) {
    bytes[148..156].fill(b' ');
    // A negative sum cannot be written.
    let signed = signed && bytes.iter().map(|byte| i64::from(byte.cast_signed())).sum::<i64>() >= 0;
    let sum: i64 = bytes.iter().map(|byte| if signed { i64::from(byte.cast_signed()) } else { i64::from(*byte) }).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn padded(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
}

/// Returns the content of a PAX header.
pub(crate) fn pax(records: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut text = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let digits = (1..9).find(|digits| (rest + digits).to_string().len() == *digits).unwrap();
        write!(text, "{} {key}=", rest + digits).unwrap();
        text.extend_from_slice(value);
        text.push(b'\n');
    }
    text
}

/// Returns the stored bytes of a member with holes, and its PAX records.
fn sparse(size: u64, spans: &[(u64, Vec<u8>)], holes: Holes) -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
    let data: Vec<u8> = spans.iter().flat_map(|(_, bytes)| bytes).copied().collect();
    let numbers: Vec<String> = spans.iter().flat_map(|(at, bytes)| [at.to_string(), bytes.len().to_string()]).collect();
    let record = |key: &str, value: String| (format!("GNU.sparse.{key}"), value.into_bytes());
    match holes {
        Holes::Gnu => (data, Vec::new()),
        Holes::Pax00 => {
            let mut records = vec![record("size", size.to_string()), record("numblocks", spans.len().to_string())];
            for (number, key) in numbers.into_iter().zip(["offset", "numbytes"].into_iter().cycle()) {
                records.push(record(key, number));
            }
            (data, records)
        }
        Holes::Pax01 => {
            let count = record("numblocks", spans.len().to_string());
            (data, vec![record("size", size.to_string()), count, record("map", numbers.join(","))])
        }
        Holes::Pax10 => {
            let mut stored = Vec::new();
            let map: String = [spans.len().to_string()].into_iter().chain(numbers).map(|n| n + "\n").collect();
            padded(&mut stored, map.as_bytes());
            stored.extend(data);
            let version = [record("major", "1".into()), record("minor", "0".into())];
            (stored, [&version[..], &[record("realsize", size.to_string())]].concat())
        }
    }
}

/// Writes a map of at most four ranges into a GNU header.
fn gnu_map(header: &mut [u8; 512], size: u64, spans: &[(u64, Vec<u8>)], signed: bool) {
    assert!(spans.len() <= 4);
    for (number, (at, bytes)) in spans.iter().enumerate() {
        let at_field = 386 + 24 * number;
        header[at_field..at_field + 12].copy_from_slice(format!("{at:011o}\0").as_bytes());
        header[at_field + 12..at_field + 24].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
    }
    header[483..495].copy_from_slice(format!("{size:011o}\0").as_bytes());
    add_up(header, signed);
}

/// Returns an archive of these members.
pub(crate) fn archive(members: &[Member]) -> Vec<u8> {
    let mut bytes: Vec<u8> = members.iter().flat_map(Member::write).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}
