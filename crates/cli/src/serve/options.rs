//! Disks and addresses on the command line.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};

use pagefold_control::Add;

use crate::size;

/// Parses the disk that `--export` describes.
pub(crate) fn parse_disk(text: &str) -> Result<Add, String> {
    const KNOWN: [&str; 4] = ["name", "size", "limit", "read-only"];
    let mut values: [Option<&str>; KNOWN.len()] = Default::default();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
        if key == "codec" {
            return Err("all disks have the server's codec: give --codec".to_owned());
        }
        let index = KNOWN.iter().position(|known| *known == key);
        let index = index.ok_or_else(|| format!("unknown key '{key}'; known keys: {}", KNOWN.join(", ")))?;
        let value = match (key, value) {
            ("read-only", None) => "",
            ("read-only", Some(_)) => return Err("'read-only' takes no value; leave it out for a disk to write".into()),
            (_, value) => value.ok_or_else(|| format!("'{key}' needs a value: {key}=…"))?,
        };
        if values[index].replace(value).is_some() {
            return Err(format!("'{key}' is given twice"));
        }
    }
    let [name, size_bytes, limit, read_only] = values;
    Ok(Add {
        name: name.ok_or("name=NAME is missing")?.to_owned(),
        size_bytes: size::parse(size_bytes.ok_or("size=SIZE is missing")?)?,
        limit_bytes: limit.map(size::parse).transpose()?,
        read_only: read_only.is_some(),
        socket: None,
    })
}

pub(crate) fn parse_tcp(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let mut found = text.to_socket_addrs().map_err(|error| format!("write PORT or ADDRESS:PORT ({error})"))?;
    found.next().ok_or_else(|| format!("'{text}' has no address"))
}

/// The value of `--memory-limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    None,
    Bytes(u64),
}

pub(crate) fn parse_limit(text: &str) -> Result<MemoryLimit, String> {
    if text == "none" { Ok(MemoryLimit::None) } else { size::parse(text).map(MemoryLimit::Bytes) }
}

pub(crate) fn parse_connections(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "not a number of at least 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_loopback_unless_told_otherwise() {
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
    fn disks_are_read() {
        let disk = parse_disk("name=a,size=1G,limit=100M,read-only").expect("a disk");
        let expected = Add {
            name: "a".to_owned(),
            size_bytes: 1 << 30,
            limit_bytes: Some(100 << 20),
            read_only: true,
            socket: None,
        };
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
        ] {
            assert!(parse_disk(text).is_err(), "{text}");
        }
    }
}
