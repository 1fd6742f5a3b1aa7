//! NBD URIs, to be passed to other programs.

use std::{
    ffi::OsString,
    fmt::Write,
    net::SocketAddr,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use percent_encoding::percent_decode_str;

const UNIX_SCHEME: &str = "nbd+unix:///";
const SOCKET: &str = "?socket=";

/// Returns the NBD URI of an export on a Unix socket, as defined in the NBD project's `doc/uri.md`.
/// It can be pasted between single quotes for any path and name. The empty name refers to the
/// default export.
///
/// ```
/// let uri = pagefold_serve::unix_uri("/run/my disks/a&b.sock".as_ref(), "root fs");
/// assert_eq!(uri, "nbd+unix:///root%20fs?socket=/run/my%20disks/a%26b.sock");
/// ```
pub fn unix_uri(path: &Path, export: &str) -> String {
    let mut uri = UNIX_SCHEME.to_owned();
    // A slash in a name is encoded: clients disagree about a leading one.
    push_encoded(&mut uri, export.as_bytes(), IN_NAMES);
    uri.push_str(SOCKET);
    push_encoded(&mut uri, path.as_os_str().as_bytes(), b"/");
    uri
}

/// Returns the socket and the export of a URI that [`unix_uri`] made; `None` for any other text.
///
/// ```
/// let uri = "nbd+unix:///root%20fs?socket=/run/my%20disks/a%26b.sock";
/// assert_eq!(pagefold_serve::of_unix_uri(uri), Some(("/run/my disks/a&b.sock".into(), "root fs".into())));
/// ```
pub fn of_unix_uri(uri: &str) -> Option<(PathBuf, String)> {
    let (export, path) = uri.strip_prefix(UNIX_SCHEME)?.split_once(SOCKET)?;
    let path = OsString::from_vec(percent_decode_str(path).collect());
    let export = percent_decode_str(export).decode_utf8().ok()?;
    let found = (PathBuf::from(path), export.into_owned());
    (unix_uri(&found.0, &found.1) == uri).then_some(found)
}

/// Returns the NBD URI of an export on a TCP address.
///
/// ```
/// assert_eq!(pagefold_serve::tcp_uri("[::1]:10809".parse()?, "root fs"), "nbd://[::1]:10809/root%20fs");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn tcp_uri(address: SocketAddr, export: &str) -> String {
    uri(&format!("nbd://{address}/"), export)
}

/// Returns the NBD URI of an export on a TCP address, for clients that use TLS.
///
/// ```
/// assert_eq!(pagefold_serve::tls_uri("192.0.2.1:10809".parse()?, "root"), "nbds://192.0.2.1:10809/root");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn tls_uri(address: SocketAddr, export: &str) -> String {
    uri(&format!("nbds://{address}/"), export)
}

/// Returns the NBD URI of an export on a vsock port, as libnbd takes it. Without TLS, the scheme is
/// `nbd+vsock`.
///
/// ```
/// assert_eq!(pagefold_serve::vsock_uri(2, 10809, "root", false), "nbd+vsock://2:10809/root");
/// ```
pub fn vsock_uri(cid: u32, port: u32, export: &str, tls: bool) -> String {
    uri(&format!("{}+vsock://{cid}:{port}/", if tls { "nbds" } else { "nbd" }), export)
}

fn uri(address: &str, export: &str) -> String {
    let mut uri = address.to_owned();
    push_encoded(&mut uri, export.as_bytes(), IN_NAMES);
    uri
}

/// Reserved characters that export names keep literally and paths do not.
const IN_NAMES: &[u8] = b"@";

/// Appends `bytes`. Percent-encodes all but RFC 3986's unreserved characters and those in
/// `literal`.
fn push_encoded(uri: &mut String, bytes: &[u8], literal: &[u8]) {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || literal.contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_characters_are_encoded() {
        let uri = |path: &[u8], export| {
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            let uri = unix_uri(path, export);
            assert_eq!(of_unix_uri(&uri), Some((path.to_owned(), export.to_owned())));
            uri
        };
        assert_eq!(uri(b"/run/disk-1_a.b~.sock", ""), "nbd+unix:///?socket=/run/disk-1_a.b~.sock");
        assert_eq!(
            uri(b"a b?c#d%e&f+g'h\"i", "/x/\u{e9}"),
            "nbd+unix:///%2Fx%2F%C3%A9?socket=a%20b%3Fc%23d%25e%26f%2Bg%27h%22i"
        );
        assert_eq!(uri(b"/a", "disk@before"), "nbd+unix:///disk@before?socket=/a");
        assert_eq!(uri(b"\xff\n", "disk"), "nbd+unix:///disk?socket=%FF%0A");
        for other in
            ["", "nbd+unix:///", "nbd://[::1]:10809/x", "nbd+unix:///a?socket=/b&tls=on", "nbd+unix:///%FF?socket=/b"]
        {
            assert_eq!(of_unix_uri(other), None, "{other}");
        }
    }
}
