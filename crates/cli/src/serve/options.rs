//! Disks, files and addresses on the command line.

use std::{
    ffi::{OsStr, OsString},
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use pagefold_base::Format;
use pagefold_server::{Add, BaseFile, DiskQuota, MemoryLimit};
use pagefold_storage::{Location, shown};

use crate::{
    image::ImagePath,
    manage::quota::{parse_connections, parse_rate},
    size,
};

/// Parses the disk that `--export` describes.
pub(crate) fn parse_disk(text: &str) -> Result<Add, String> {
    const KNOWN: [&str; 6] = ["name", "size", "limit", "connections", "rate", "read-only"];
    let mut values: [Option<&str>; KNOWN.len()] = Default::default();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
        if key == "codec" {
            return Err("the codec applies to all disks of a server: give --codec".to_owned());
        }
        let index = KNOWN.iter().position(|known| *known == key);
        let index = index.ok_or_else(|| format!("unknown key '{key}'; known keys: {}", KNOWN.join(", ")))?;
        let value = match (key, value) {
            ("read-only", None) => "",
            ("read-only", Some(_)) => return Err("'read-only' takes no value; leave it out for a writable disk".into()),
            (_, value) => value.ok_or_else(|| format!("'{key}' needs a value: {key}=…"))?,
        };
        if values[index].replace(value).is_some() {
            return Err(format!("'{key}' is given twice"));
        }
    }
    let [name, size_bytes, limit, connections, rate, read_only] = values;
    let of_key = |key: &'static str| move |error: String| format!("{key}: {error}");
    let connections = connections.map(parse_connections).transpose().map_err(of_key("connections"))?;
    let bytes_per_second = rate.map(parse_rate).transpose().map_err(of_key("rate"))?;
    Ok(Add {
        limit_bytes: limit.map(size::parse).transpose()?,
        read_only: read_only.is_some(),
        quota: DiskQuota { connections, bytes_per_second },
        ..Add::new(name.ok_or("name=NAME is missing")?, size::parse(size_bytes.ok_or("size=SIZE is missing")?)?)
    })
}

/// Parses `[NAME=]FILE[:PATH]`. The default name is the file's name without its last extension and,
/// in a registry, without its tag or digest.
pub(crate) fn parse_base(text: OsString, format: Option<Format>) -> Result<BaseFile, String> {
    let (name, place) = split_name(&text);
    let ImagePath { image, path: inside } = ImagePath::from(place);
    let inside = Some(inside).filter(|inside| !inside.is_empty());
    let name = match name {
        Some(name) => Some(name.to_owned()),
        None => {
            let file =
                inside.as_deref().map_or_else(|| plain_name(&image), |inside| Path::new(OsStr::from_bytes(inside)));
            file.file_stem().and_then(OsStr::to_str).map(str::to_owned)
        }
    };
    let name = name.ok_or_else(|| {
        format!("'{0}' does not contain a name for the disk: write NAME={0}", shown(Path::new(&text)))
    })?;
    if image.as_os_str().is_empty() {
        return Err(format!("'{}' does not name a file: write NAME=FILE", shown(Path::new(&text))));
    }
    let path = pagefold_storage::absolute(&image).map_err(|error| format!("'{}': {error}", shown(&image)))?;
    Ok(BaseFile { name, path, inside, devices: Vec::new(), format })
}

/// Returns a path, or a URL without what selects a version of the file that it leads to.
fn plain_name(image: &Path) -> &Path {
    match Location::of(image) {
        Location::File(path) => path,
        Location::Url { scheme, url } => {
            let url = url.split(['?', '#']).next().unwrap_or(url);
            let file = url.rfind('/').map_or(0, |slash| slash + 1);
            let versions: &[char] = if scheme == "oci" { &[':', '@'] } else { &[] };
            // Without a path, this is the server, perhaps with a user and a password.
            let server =
                if file <= scheme.len() + "://".len() { url.rfind('@').map_or(file, |at| at + 1) } else { file };
            Path::new(url[server..].split(versions).next().unwrap_or_default())
        }
    }
}

/// Splits off the name before an equals sign, unless the whole text names an existing file, or the
/// name would contain a slash.
fn split_name(text: &OsStr) -> (Option<&str>, OsString) {
    let bytes = text.as_bytes();
    let is_named = !ImagePath::from(text.to_owned()).image.exists();
    let sign = bytes.iter().position(|byte| *byte == b'=').filter(|_| is_named);
    let name = sign.and_then(|sign| str::from_utf8(&bytes[..sign]).ok()).filter(|name| !name.contains('/'));
    match (name, sign) {
        (Some(name), Some(sign)) => (Some(name), OsString::from_vec(bytes[sign + 1..].to_vec())),
        _ => (None, text.to_owned()),
    }
}

pub(crate) fn parse_tcp(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let mut found = text.to_socket_addrs().map_err(|error| format!("write PORT or ADDRESS:PORT ({error})"))?;
    found.next().ok_or_else(|| format!("'{text}' has no address"))
}

/// The value of `--metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricsArg {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

pub(crate) fn parse_metrics(text: &str) -> Result<MetricsArg, String> {
    if text.contains('/') {
        return Ok(MetricsArg::Unix(text.into()));
    }
    let wrong = |_| "write PORT, ADDRESS:PORT, or the path of a socket with a slash, such as ./metrics.sock".to_owned();
    parse_tcp(text).map(MetricsArg::Tcp).map_err(wrong)
}

/// The value of `--vsock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VsockArg {
    /// The context id to listen on; `None` for all of this machine.
    pub(crate) cid: Option<u32>,
    pub(crate) port: u32,
}

pub(crate) fn parse_vsock(text: &str) -> Result<VsockArg, String> {
    let (cid, port) = text.split_once(':').map_or((None, text), |(cid, port)| (Some(cid), port));
    // The greatest number stands for any.
    let number = |text: &str| text.parse().ok().filter(|&number| number < u32::MAX);
    let parsed = match cid {
        None => Some(None),
        Some(cid) => number(cid).map(Some),
    };
    let (Some(cid), Some(port)) = (parsed, number(port)) else {
        return Err("write PORT or CID:PORT, both numbers".to_owned());
    };
    Ok(VsockArg { cid, port })
}

/// Returns a path that stays valid when the process changes its directory.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The value of `--when-full`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum WhenFullArg {
    /// They fail with ENOSPC
    Error,
    /// They wait until there is room
    Wait,
}

pub(crate) fn parse_limit(text: &str) -> Result<MemoryLimit, String> {
    if text == "none" { Ok(MemoryLimit::None) } else { size::parse(text).map(MemoryLimit::Bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_named() {
        let parse = |text: &str| parse_base(text.into(), None).expect("a base");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a=b.erofs");
        std::fs::write(&file, "").expect("a file");
        let path = file.to_str().expect("a plain path");
        let base = |name: &str, path: &str, inside: Option<&str>| BaseFile {
            name: name.to_owned(),
            path: path.into(),
            inside: inside.map(|inside| inside.as_bytes().to_vec()),
            devices: Vec::new(),
            format: None,
        };
        assert_eq!(parse("/no/debian.erofs"), base("debian", "/no/debian.erofs", None));
        assert_eq!(parse("/no/debian.img.erofs"), base("debian.img", "/no/debian.img.erofs", None));
        assert_eq!(parse("/no/all.erofs:/disks/a.raw"), base("a", "/no/all.erofs", Some("/disks/a.raw")));
        assert_eq!(parse("root=/no/debian.erofs"), base("root", "/no/debian.erofs", None));
        assert_eq!(parse("/no=such/disk"), base("disk", "/no=such/disk", None));
        assert_eq!(parse("=/no/disk"), base("", "/no/disk", None));
        assert_eq!(parse(path), base("a=b", path, None));
        assert_eq!(parse(&format!("c={path}:/d")), base("c", path, Some("/d")));
        assert_eq!(parse(&format!("{path}:/d")), base("d", path, Some("/d")));
        for (text, name, path, inside) in [
            ("https://host:8080/a/debian.erofs?sig=a=b", "debian", "https://host:8080/a/debian.erofs?sig=a=b", None),
            ("d=s3://bucket/debian.erofs", "d", "s3://bucket/debian.erofs", None),
            ("oci://host:5000/disks/debian:13.1", "debian", "oci://host:5000/disks/debian:13.1", None),
            ("oci://host/debian@sha256:ab", "debian", "oci://host/debian@sha256:ab", None),
            ("https://user:secret@host.org", "host", "https://user:secret@host.org", None),
            ("oci://user:secret@host", "host", "oci://user:secret@host", None),
            ("s3://b/all.erofs:/disks/a.raw", "a", "s3://b/all.erofs", Some("/disks/a.raw")),
        ] {
            assert_eq!(parse(text), base(name, path, inside));
        }
        assert!(parse_base("https://host/".into(), None).is_err());
        assert!(parse_base("/".into(), None).is_err());
        assert!(parse("disk").path.is_absolute());
    }

    #[test]
    fn tcp_is_loopback_unless_an_address_is_given() {
        for (text, address) in [
            ("10809", "127.0.0.1:10809"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:2", "[::1]:2"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ] {
            assert_eq!(parse_tcp(text).map(|found| found.to_string()), Ok(address.to_owned()));
        }
        for text in ["", "1.2.3.4", "70000", ":", "1.2.3.4:x"] {
            assert!(parse_tcp(text).is_err(), "{text}");
        }
    }

    #[test]
    fn metrics_are_on_a_socket_or_an_address() {
        let tcp = |text: &str| Ok(MetricsArg::Tcp(text.parse().expect("an address")));
        assert_eq!(parse_metrics("9809"), tcp("127.0.0.1:9809"));
        assert_eq!(parse_metrics("[::]:9809"), tcp("[::]:9809"));
        assert_eq!(parse_metrics("/run/m.sock"), Ok(MetricsArg::Unix("/run/m.sock".into())));
        assert_eq!(parse_metrics("./1"), Ok(MetricsArg::Unix("./1".into())));
        for text in ["", "m.sock", "1.2.3.4", "99999"] {
            assert!(parse_metrics(text).is_err(), "{text}");
        }
    }

    #[test]
    fn vsock_ports_are_read() {
        let arg = |cid, port| Ok(VsockArg { cid, port });
        assert_eq!((parse_vsock("10809"), parse_vsock("3:0")), (arg(None, 10809), arg(Some(3), 0)));
        for text in ["", ":", "a", "1:", ":1", "1:2:3", "-1", "4294967295", "4294967295:1"] {
            assert!(parse_vsock(text).is_err(), "{text}");
        }
    }

    #[test]
    fn disks_are_read() {
        let disk = parse_disk("name=a,size=1G,limit=100M,read-only,connections=8,rate=1M").expect("a disk");
        let quota = DiskQuota { connections: Some(8), bytes_per_second: Some(1 << 20) };
        let expected = Add { limit_bytes: Some(100 << 20), read_only: true, quota, ..Add::new("a", 1 << 30) };
        assert_eq!(disk, expected);
    }

    #[test]
    fn what_is_not_a_disk_is_refused() {
        for text in [
            "",
            "name=a",
            "size=1G",
            "name=a,size=x",
            "name=a,size=1G,colour=red",
            "name,size=1G",
            "name=a,name=b,size=1G",
            "name=a,size=1G,read-only=no",
            "name=a,size=1G,codec=lz4",
            "name=a,size=1G,connections=0",
            "name=a,size=1G,rate=1K",
        ] {
            assert!(parse_disk(text).is_err(), "{text}");
        }
    }
}
